"""A schema goes forwards, once, while older code still works on it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.postgres import database, wakes
from lucius.adapters.postgres import migrating as migrations_run
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.functions import COMMIT_2
from lucius.adapters.postgres.schema import MIGRATIONS, Migration
from lucius.core.decision import Decision
from lucius.core.model import JobStatus
from lucius.ports.errors import LedgerDown, LedgerError, LedgerTooNew, VersionConflict
from lucius.ports.ledger import JobFilter, PendingQuery
from tests.conformance.builders import accept, dispatch, then

KNOWN = len(MIGRATIONS)
NOTES = Migration(("CREATE TABLE notes (body text)", "INSERT INTO notes VALUES ('migrated')"), compatible_with=KNOWN)

# As the rules have it: columns with a default, a table, and a function under the next number that writes them.
COMMIT_3 = (
    COMMIT_2.replace("FUNCTION commit_2(", "FUNCTION commit_3(")
    .replace("INSERT INTO live (id, ", "INSERT INTO live (note, id, ")
    .replace(
        "SELECT h.id, h.expected + 1, h.status, h.tenant, h.type, h.due",
        "SELECT 'new code', h.id, h.expected + 1, h.status, h.tenant, h.type, h.due",
    )
)
NEXT = Migration(
    (
        "ALTER TABLE jobs ADD COLUMN note text",
        *(f"ALTER TABLE {table} ADD COLUMN note text NOT NULL DEFAULT 'old code'" for table in ("live", "outbox")),
        "CREATE TABLE remarks (job bigint PRIMARY KEY, body text NOT NULL)",
        COMMIT_3,
    ),
    compatible_with=KNOWN,
)

INDEX = Migration(
    (
        "DROP INDEX CONCURRENTLY IF EXISTS live_by_tenant",
        "CREATE INDEX CONCURRENTLY live_by_tenant ON live (tenant_id)",
    ),
    compatible_with=KNOWN,
    in_transaction=False,
)
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('live_by_tenant')"
BUILDS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%' AND wait_event_type = 'Lock'"

OPEN = """
import asyncio, sys
from lucius.adapters.postgres.database import Database
from tests.unit.test_postgres_migrations import MIGRATIONS, NOTES

async def main():
    database = Database(sys.argv[1], 1)
    print("here", flush=True)
    sys.stdin.readline()
    await database.open((*MIGRATIONS, NOTES))
    await database.close()

asyncio.run(main())
"""

NEW_CODE = """
import asyncio, sys
from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.postgres import writer
from tests.unit.test_postgres_migrations import MIGRATIONS, NEXT, push_on

async def main():
    writer.CALL = writer.CALL.replace("commit_2(", "commit_3(")
    ledger = await PostgresLedger.open(sys.argv[1], migrations=(*MIGRATIONS, NEXT))
    print(await push_on(ledger, "new", 60), flush=True)
    await ledger.close()

asyncio.run(main())
"""


@asynccontextmanager
async def opened(url: str, migrations: Sequence[Migration] = MIGRATIONS) -> AsyncIterator[Database]:
    database = Database(url, 2)
    await database.open(migrations)
    try:
        yield database
    finally:
        await database.close()


async def tables(database: Database) -> set[str]:
    found = await database.rows("SELECT tablename FROM pg_tables WHERE schemaname = $1", database.schema)
    return {row["tablename"] for row in found}


async def versions(database: Database) -> list[int]:
    return [row["version"] for row in await database.rows("SELECT version FROM schema_version ORDER BY version")]


def process(script: str, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def push_on(ledger: PostgresLedger, name: str, times: int) -> int:
    """Accept a job, and move the common ones on so many times, whoever moved them last."""
    await ledger.commit(dispatch(f"of-{name}"))
    moved = 0
    while moved < times:
        view = await ledger.load(f"common-{moved % 3}", fresh=True)
        assert view is not None
        before = Decision(job=view.job, replies=(), protocol=view.protocol)
        try:
            await ledger.commit(then(before, updated_at=view.job.updated_at + 1))
        except VersionConflict:
            continue
        moved += 1
    return moved


class TestOnce:
    async def test_of_two_processes_that_find_an_empty_database_one_migrates_it(self, postgres_url: str) -> None:
        processes = [process(OPEN, postgres_url) for _ in range(2)]
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "here\n", each.communicate()
        ends = await asyncio.gather(*(asyncio.to_thread(each.communicate, "go\n") for each in processes))
        assert [each.returncode for each in processes] == [0, 0], ends
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 2)]
            assert len(await database.rows("SELECT * FROM notes")) == 1

    async def test_many_at_once_do_not_get_in_each_others_way(self, postgres_url: str) -> None:
        async def open_and_close() -> None:
            async with opened(postgres_url, (*MIGRATIONS, NOTES)):
                pass

        await asyncio.gather(*(open_and_close() for _ in range(8)))
        async with opened(postgres_url) as database:
            assert len(await database.rows("SELECT * FROM notes")) == 1

    async def test_an_older_schema_is_brought_up_to_date_with_its_data(self, postgres_url: str) -> None:
        ledger = await PostgresLedger.open(postgres_url)
        await ledger.commit(accept("old", created_at=1_000))
        await ledger.close()
        ledger = await PostgresLedger.open(postgres_url, migrations=(*MIGRATIONS, NEXT))
        await ledger.commit(accept("new", created_at=2_000))
        assert [job.job_id for job in (await ledger.jobs(JobFilter(), 10, None)).jobs] == ["new", "old"]
        await ledger.close()

    async def test_one_that_fails_leaves_everything_as_it_was(self, postgres_url: str) -> None:
        broken = Migration((*NOTES.statements, "ALTER TABLE jobs ADD COLUMN note text", "SELECT * FROM nowhere"), KNOWN)
        ledger = await PostgresLedger.open(postgres_url)
        await ledger.commit(dispatch("old"))
        with pytest.raises(LedgerError, match="nowhere"):
            await Database(postgres_url, 1).open((*MIGRATIONS, broken))
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 1)]
            assert "notes" not in await tables(database)
        await ledger.commit(dispatch("new"))
        await ledger.close()

    async def test_the_first_that_fails_leaves_nothing(self, postgres_url: str) -> None:
        with pytest.raises(LedgerError, match="nowhere"):
            await Database(postgres_url, 1).open([Migration((*MIGRATIONS[0].statements, "SELECT * FROM nowhere"), 1)])
        async with opened(postgres_url, ()) as database:
            assert await tables(database) == set()


class TestLong:
    async def test_one_may_take_longer_than_any_command_and_others_wait_for_it(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "COMMAND_SECONDS", 0.4)
        long = Migration((*NOTES.statements, "SELECT pg_sleep(1.5)"), compatible_with=KNOWN)

        async def open_and_close() -> None:
            async with opened(postgres_url, (*MIGRATIONS, long)):
                pass

        with capture_logs() as logs:
            await asyncio.gather(*(open_and_close() for _ in range(3)))
        async with opened(postgres_url) as migrated:
            assert await versions(migrated) == [*range(1, KNOWN + 2)]
            assert len(await migrated.rows("SELECT * FROM notes")) == 1
        assert len([line for line in logs if "another process migrates" in line["event"]]) == 2

    async def test_an_index_is_built_beside_commits_while_others_wait(self, postgres_url: str) -> None:
        """For as long as a transaction lasts that had begun before, so that the commits surely meet it."""
        ledger = await PostgresLedger.open(postgres_url)
        async with opened(postgres_url) as other:
            async with other.transaction() as long:
                await long.execute("LOCK TABLE live IN ROW EXCLUSIVE MODE")  # as anybody who commits
                migrating = [
                    asyncio.create_task(PostgresLedger.open(postgres_url, 2, (*MIGRATIONS, INDEX))) for _ in "ab"
                ]
                await self.until_it_builds(other)
                async with asyncio.timeout(5):
                    for n in range(50):
                        await ledger.commit(dispatch(f"j{n}"))
                assert not any(task.done() for task in migrating)
            for task in migrating:
                await (await task).close()
            assert [row["indisvalid"] for row in await other.rows(VALID)] == [True]
            assert await versions(other) == [*range(1, KNOWN + 2)]
        await ledger.close()

    async def test_one_that_was_cut_off_is_begun_again(self, postgres_url: str) -> None:
        async with opened(postgres_url) as other:
            async with other.transaction() as long:
                await long.execute("LOCK TABLE live IN ROW EXCLUSIVE MODE")
                cut_off = asyncio.create_task(Database(postgres_url, 1).open((*MIGRATIONS, INDEX)))
                pid = await self.until_it_builds(other)
                await other.rows("SELECT pg_terminate_backend($1)", pid)
                with pytest.raises(LedgerDown):
                    await cut_off
            assert [row["indisvalid"] for row in await other.rows(VALID)] == [False]
            assert await versions(other) == [*range(1, KNOWN + 1)]
            async with opened(postgres_url, (*MIGRATIONS, INDEX)):
                assert [row["indisvalid"] for row in await other.rows(VALID)] == [True]
            assert await versions(other) == [*range(1, KNOWN + 2)]

    async def until_it_builds(self, database: Database) -> int:
        """And waits for somebody: who builds it."""
        async with asyncio.timeout(10):
            while True:
                row = await database.row(BUILDS)
                if row is not None:
                    return int(row["pid"])
                await asyncio.sleep(0.005)


class TestNewer:
    async def test_code_that_is_too_old_is_refused_with_all_versions(self, postgres_url: str) -> None:
        async with opened(postgres_url, (*MIGRATIONS, Migration(NOTES.statements, compatible_with=KNOWN + 1))):
            pass
        with pytest.raises(LedgerTooNew) as refusal:
            await PostgresLedger.open(postgres_url)
        assert all(word in str(refusal.value) for word in (f"version {KNOWN + 1}", f"knows {KNOWN}"))

    @pytest.mark.parametrize("gone", ["", "DROP FUNCTION poll_2"])
    async def test_code_that_runs_and_is_too_old_by_now_writes_no_more(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch, gone: str
    ) -> None:
        monkeypatch.setattr(wakes, "POLL_SECONDS", 0.05)
        forbids = Migration((*NOTES.statements, *filter(None, [gone])), compatible_with=KNOWN + 1)
        ledger = await PostgresLedger.open(postgres_url)
        needs, heard = ledger._database.needs, asyncio.Event()

        def hear(version: int) -> None:
            needs(version)
            if ledger._database.outdated:
                heard.set()

        monkeypatch.setattr(ledger._database, "needs", hear)
        try:
            before = accept("before")
            await ledger.commit(before)
            with capture_logs() as logs:
                async with opened(postgres_url, (*MIGRATIONS, forbids)):
                    pass
                async with asyncio.timeout(10):
                    await heard.wait()
                with pytest.raises(LedgerDown):
                    await ledger._wakes.look()  # says it once
            assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
                "this process must not use the ledger any more"
            ]
            with pytest.raises(LedgerDown, match=f"needs a Lucius that knows version {KNOWN + 1}"):
                await ledger.commit(then(before))
            asked = monotonic()
            with pytest.raises(LedgerDown):
                await ledger.load("before", fresh=True)
            assert monotonic() - asked < 2, "nothing is to be waited for"
        finally:
            await ledger.close()

    async def test_code_that_can_go_on_goes_on_and_takes_nothing_back(self, postgres_url: str) -> None:
        async with opened(postgres_url, (*MIGRATIONS, NOTES)):
            pass
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 2)]
            assert "notes" in await tables(database)

    async def test_what_one_migration_forbids_a_later_one_does_not_allow(self, postgres_url: str) -> None:
        forbids = Migration(("CREATE TABLE more ()",), compatible_with=KNOWN + 1)
        async with opened(postgres_url, (*MIGRATIONS, forbids, NOTES)):
            pass
        with pytest.raises(LedgerTooNew):
            await Database(postgres_url, 1).open()


class TestTogether:
    async def test_old_and_new_code_work_on_the_same_jobs(self, postgres_url: str) -> None:
        """The old code is at work before, during and after the migration that the new code brings."""
        old = await PostgresLedger.open(postgres_url)
        for n in range(3):
            await old.commit(dispatch(f"common-{n}"))
        new = process(NEW_CODE, postgres_url)
        ends = asyncio.create_task(asyncio.to_thread(new.communicate))
        moved, rounds = 0, 0
        while not ends.done():
            moved += await push_on(old, f"old-{rounds}", 10)
            rounds += 1
        assert ((await ends)[0], new.returncode) == ("60\n", 0), await ends
        taken = await old.pending(PendingQuery(limit=500, now=5_000, service="ocr", hold_ms=10))
        assert {row.job_id for row in taken} == {
            "of-new",
            *(f"common-{n}" for n in range(3)),
            *(f"of-old-{n}" for n in range(rounds)),
        }
        views = [await old.job(f"common-{n}") for n in range(3)]
        assert sum(view.job.version - 1 for view in views if view is not None) == moved + 60
        async with opened(postgres_url) as database:
            notes = await database.rows("SELECT note, count(*) AS n FROM live GROUP BY note")
            assert {row["note"]: row["n"] for row in notes} == {"old code": 3 + rounds, "new code": 1}
            assert await versions(database) == [*range(1, KNOWN + 2)]
        await self.finish(old, "of-new")
        await old.close()

    async def finish(self, ledger: PostgresLedger, job_id: str) -> None:
        view = await ledger.load(job_id)
        assert view is not None
        before = Decision(job=view.job, replies=(), protocol=view.protocol)
        await ledger.commit(then(before, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000))

    async def test_commits_only_wait_for_a_migration(self, postgres_url: str) -> None:
        ledger = await PostgresLedger.open(postgres_url)
        slow = Migration((*NEXT.statements, "SELECT pg_sleep(0.5)"), compatible_with=KNOWN)
        migrating = asyncio.create_task(Database(postgres_url, 1).open((*MIGRATIONS, slow)))
        longest, accepted = 0.0, 0
        while not migrating.done():
            started = monotonic()
            await ledger.commit(accept(f"j{accepted}"))
            longest, accepted = max(longest, monotonic() - started), accepted + 1
        await migrating
        assert len((await ledger.jobs(JobFilter(), accepted + 1, None)).jobs) == accepted
        assert longest > 0.4  # it was in their way
        await ledger.close()

    async def test_one_that_has_to_wait_gets_out_of_the_way(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever comes after DDL that waits for a lock waits too: so it gives up, and tries again."""
        monkeypatch.setattr(migrations_run, "MIGRATION_LOCK_MS", 100)
        ledger = await PostgresLedger.open(postgres_url)
        async with opened(postgres_url) as other, other.transaction() as long:
            await long.execute("LOCK TABLE live IN ROW EXCLUSIVE MODE")  # as anybody who commits
            migrating = asyncio.create_task(Database(postgres_url, 1).open((*MIGRATIONS, NEXT)))
            longest, until = 0.0, monotonic() + 1
            for n in range(10_000):
                started = monotonic()
                await ledger.commit(accept(f"j{n}"))
                longest = max(longest, monotonic() - started)
                if monotonic() > until:
                    break
            assert not migrating.done()
        await migrating
        assert 0.05 < longest < 0.6
        async with opened(postgres_url) as migrated:
            assert await versions(migrated) == [*range(1, KNOWN + 2)]
        await ledger.close()
