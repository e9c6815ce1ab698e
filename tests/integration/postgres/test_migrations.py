"""A schema only goes forwards, once, while older code still works on it."""

import asyncio
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger.postgres import database, notify
from lucius.adapters.ledger.postgres import migrate as migrations_run
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.functions import COMMIT
from lucius.adapters.ledger.postgres.schema import MIGRATIONS, Migration
from lucius.adapters.ledger.postgres.store import PostgresStore, open_postgres
from lucius.core.model.decision import Decision
from lucius.core.model.records import ErrorInfo
from lucius.core.model.statuses import JobStatus
from lucius.ports.errors import LedgerDown, LedgerError, LedgerTooNew, LedgerTooOld, VersionConflict
from lucius.ports.outbox import PendingQuery
from lucius.ports.readers import JobFilter
from tests.conformance.builders import accept, command, dispatch, then
from tests.support.development_ledger import create_development_schema
from tests.support.postgres import PostgresServer
from tests.support.until import until_async

KNOWN = len(MIGRATIONS)
NOTES = Migration(("CREATE TABLE notes (body text)", "INSERT INTO notes VALUES ('migrated')"), compatible_with=KNOWN)

# As the migration rules require: columns with a default, a table, and a new numbered function that writes them.
COMMIT_2 = (
    COMMIT.replace("FUNCTION commit_1(", "FUNCTION commit_2(")
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
        COMMIT_2,
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
# Fills columns from the JSON of older rows, of which one can't be parsed, and then builds an index.
BACKFILL = Migration(
    (
        """
        CREATE OR REPLACE FUNCTION json_text_1(body text, VARIADIC path text[]) RETURNS text
        LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN
            RETURN body::json #>> path;
        EXCEPTION WHEN data_exception THEN
            RETURN NULL;
        END $$
        """,
        """
        UPDATE jobs SET
            doc_id = json_text_1(command, 'doc_id'),
            correlation_id = nullif(json_text_1(command, 'correlation_id'), job_id),
            target = json_text_1(command, 'target', 'type') || '/' || json_text_1(command, 'target', 'id')
        WHERE doc_id IS NULL AND correlation_id IS NULL AND target IS NULL
        """,
        "UPDATE done SET error_code = json_text_1(body, 'error', 'code') WHERE error_code IS NULL",
        "DROP INDEX CONCURRENTLY IF EXISTS jobs_by_doc",
        "CREATE INDEX CONCURRENTLY jobs_by_doc ON jobs (doc_id, id) WHERE doc_id IS NOT NULL",
    ),
    compatible_with=KNOWN,
    in_transaction=False,
)
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('live_by_tenant')"
WAITING = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_try_advisory_lock%' AND pid <> pg_backend_pid()"
BUILDS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%' AND wait_event_type = 'Lock'"

OPEN = """
import asyncio, sys
from lucius.adapters.ledger.postgres.database import Database
from tests.integration.postgres.test_migrations import MIGRATIONS, NOTES

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
from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.adapters.ledger.postgres import writer
from tests.integration.postgres.test_migrations import MIGRATIONS, NEXT, change_common_jobs

async def main():
    writer.COMMIT_SQL = writer.COMMIT_SQL.replace("commit_1(", "commit_2(")
    store = await open_postgres(sys.argv[1], migrations=(*MIGRATIONS, NEXT))
    print(await change_common_jobs(store, "new", 60), flush=True)
    await store.close()

asyncio.run(main())
"""


def up_to(version: int) -> tuple[Migration, ...]:
    """Return the migrations up to this version, the later ones made up."""
    return (*MIGRATIONS, *[Migration((), compatible_with=1)] * version)[:version]


@asynccontextmanager
async def opened(url: str, migrations: Sequence[Migration] = MIGRATIONS) -> AsyncIterator[Database]:
    database = Database(url, 2)
    await database.open(migrations)
    try:
        yield database
    finally:
        await database.close()


async def tables(database: Database) -> set[str]:
    found = await database.fetch_rows("SELECT tablename FROM pg_tables WHERE schemaname = $1", database.schema)
    return {row["tablename"] for row in found}


async def versions(database: Database) -> list[int]:
    found = await database.fetch_rows("SELECT version FROM ledger_versions ORDER BY version")
    return [row["version"] for row in found]


def process(script: str, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def change_common_jobs(store: PostgresStore, name: str, times: int) -> int:
    """Accept a job and change the common jobs `times` times, whichever process changed them last."""
    await store.ledger.commit(dispatch(f"of-{name}"))
    moved = 0
    while moved < times:
        view = await store.ledger.load(f"common-{moved % 3}", fresh=True)
        assert view is not None
        before = Decision(job=view.job, replies=(), protocol=view.protocol)
        try:
            await store.ledger.commit(then(before, updated_at=view.job.updated_at + 1))
        except VersionConflict:
            continue
        moved += 1
    return moved


class TestConcurrentMigration:
    async def test_two_processes_on_an_empty_database_migrate_it_once(self, postgres_url: str) -> None:
        processes = [process(OPEN, postgres_url) for _ in range(2)]
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "here\n", each.communicate()
        ends = await asyncio.gather(*(asyncio.to_thread(each.communicate, "go\n") for each in processes))
        assert [each.returncode for each in processes] == [0, 0], ends
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 2)]
            assert len(await database.fetch_rows("SELECT * FROM notes")) == 1

    async def test_many_concurrent_opens_migrate_once(self, postgres_url: str) -> None:
        async def open_and_close() -> None:
            async with opened(postgres_url, (*MIGRATIONS, NOTES)):
                pass

        await asyncio.gather(*(open_and_close() for _ in range(8)))
        async with opened(postgres_url) as database:
            assert len(await database.fetch_rows("SELECT * FROM notes")) == 1

    async def test_older_schema_is_migrated_with_its_data(self, postgres_url: str) -> None:
        store = await open_postgres(postgres_url)
        await store.ledger.commit(accept("old", created_at=1_000))
        await store.close()
        store = await open_postgres(postgres_url, migrations=(*MIGRATIONS, NEXT))
        await store.ledger.commit(accept("new", created_at=2_000))
        assert [job.job_id for job in (await store.jobs.jobs(JobFilter(), 10, None)).jobs] == ["new", "old"]
        await store.close()

    async def test_failed_migration_leaves_the_schema_unchanged(self, postgres_url: str) -> None:
        broken = Migration((*NOTES.statements, "ALTER TABLE jobs ADD COLUMN note text", "SELECT * FROM nowhere"), KNOWN)
        store = await open_postgres(postgres_url)
        await store.ledger.commit(dispatch("old"))
        with pytest.raises(LedgerError, match="nowhere"):
            await Database(postgres_url, 1).open((*MIGRATIONS, broken))
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 1)]
            assert "notes" not in await tables(database)
        await store.ledger.commit(dispatch("new"))
        await store.close()

    async def test_failed_first_migration_leaves_no_table(self, postgres_url: str) -> None:
        with pytest.raises(LedgerError, match="nowhere"):
            await Database(postgres_url, 1).open([Migration((*MIGRATIONS[0].statements, "SELECT * FROM nowhere"), 1)])
        async with opened(postgres_url, ()) as database:
            assert await tables(database) == set()


class TestLongMigration:
    async def test_migration_may_exceed_the_command_timeout_while_others_wait(
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
            assert len(await migrated.fetch_rows("SELECT * FROM notes")) == 1
        assert len([line for line in logs if "another process is migrating" in line["event"]]) == 2

    async def test_index_is_built_beside_commits_while_other_processes_wait(self, postgres_url: str) -> None:
        """It takes as long as a transaction that began before it, so that commits certainly run beside it."""
        store = await open_postgres(postgres_url)
        async with opened(postgres_url) as other:
            async with other.transaction() as long:
                await long.execute("LOCK TABLE live IN ROW EXCLUSIVE MODE")  # as every commit does
                migrating = [asyncio.create_task(open_postgres(postgres_url, 2, (*MIGRATIONS, INDEX))) for _ in "ab"]
                await self.until_index_builds(other)
                async with asyncio.timeout(5):
                    for n in range(50):
                        await store.ledger.commit(dispatch(f"j{n}"))
                assert not any(task.done() for task in migrating)
            for task in migrating:
                await (await task).close()
            assert [row["indisvalid"] for row in await other.fetch_rows(VALID)] == [True]
            assert await versions(other) == [*range(1, KNOWN + 2)]
        await store.close()

    async def test_interrupted_index_build_is_repeated(self, postgres_url: str) -> None:
        async with opened(postgres_url) as other:
            async with other.transaction() as long:
                await long.execute("LOCK TABLE live IN ROW EXCLUSIVE MODE")
                cut_off = asyncio.create_task(Database(postgres_url, 1).open((*MIGRATIONS, INDEX)))
                pid = await self.until_index_builds(other)
                await other.fetch_rows("SELECT pg_terminate_backend($1)", pid)
                with pytest.raises(LedgerDown):
                    await cut_off
            assert [row["indisvalid"] for row in await other.fetch_rows(VALID)] == [False]
            assert await versions(other) == [*range(1, KNOWN + 1)]
            async with opened(postgres_url, (*MIGRATIONS, INDEX)):
                assert [row["indisvalid"] for row in await other.fetch_rows(VALID)] == [True]
            assert await versions(other) == [*range(1, KNOWN + 2)]

    @pytest.mark.parametrize("done", range(len(BACKFILL.statements) + 1))
    async def test_backfilled_columns_are_searchable_wherever_the_first_run_stopped(
        self, postgres_url: str, done: int
    ) -> None:
        store = await open_postgres(postgres_url)
        asked = command("j1", doc_id="d1", correlation_id="c1", target={"type": "deal", "id": "7"})
        first = accept("j1", asked=asked)
        await store.ledger.commit(first)
        failed = ErrorInfo("BROKEN", "it broke")
        await store.ledger.commit(then(first, status=JobStatus.FAILED_FINAL, completed_at=5_000, error=failed))
        await store.ledger.commit(accept("j2", asked=command("j2", payload={"ocr": "\x00"}, doc_id="d2")))
        await store.close()
        async with opened(postgres_url) as shell:
            await shell.fetch_rows("UPDATE jobs SET doc_id = NULL, correlation_id = NULL, target = NULL")
            await shell.fetch_rows("UPDATE done SET error_code = NULL")
            await shell.fetch_rows("DROP INDEX jobs_by_doc")
            for statement in BACKFILL.statements[:done]:
                await shell.fetch_rows(statement)
        store = await open_postgres(postgres_url, migrations=(*MIGRATIONS, BACKFILL))
        wheres = (JobFilter(doc_id="d1"), JobFilter(correlation_id="c1"))
        for where in (*wheres, JobFilter(target="deal/7"), JobFilter(error_code="BROKEN")):
            assert [job.job_id for job in (await store.jobs.jobs(where, 9, None)).jobs] == ["j1"]
        await store.close()

    async def until_index_builds(self, database: Database) -> int:
        """Return the process id of the session that builds the index, once that waits for another."""
        async with asyncio.timeout(10):
            while True:
                row = await database.fetch_row(BUILDS)
                if row is not None:
                    return int(row["pid"])
                await asyncio.sleep(0.005)


class TestNewerSchema:
    async def test_outdated_code_is_refused_naming_both_versions(self, postgres_url: str) -> None:
        async with opened(postgres_url, (*MIGRATIONS, Migration(NOTES.statements, compatible_with=KNOWN + 1))):
            pass
        with pytest.raises(LedgerTooNew) as refusal:
            await open_postgres(postgres_url)
        assert all(word in str(refusal.value) for word in (f"version {KNOWN + 1}", f"knows {KNOWN}"))

    @pytest.mark.parametrize("gone", ["", "DROP FUNCTION poll_1"])
    async def test_running_code_that_becomes_outdated_stops_using_the_ledger(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch, gone: str
    ) -> None:
        monkeypatch.setattr(notify, "POLL_SECONDS", 0.05)
        forbids = Migration((*NOTES.statements, *filter(None, [gone])), compatible_with=KNOWN + 1)
        store = await open_postgres(postgres_url)
        needs, heard = store.database.require_version, asyncio.Event()

        def hear(version: int) -> None:
            needs(version)
            if store.database.outdated_reason:
                heard.set()

        monkeypatch.setattr(store.database, "require_version", hear)
        try:
            before = accept("before")
            await store.ledger.commit(before)
            with capture_logs() as logs:
                async with opened(postgres_url, (*MIGRATIONS, forbids)):
                    pass
                async with asyncio.timeout(10):
                    await heard.wait()
                with pytest.raises(LedgerDown):
                    await store.replica.notifier.poll()  # logs it once
            assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
                "this process must not use the ledger any more"
            ]
            with pytest.raises(LedgerDown, match=f"needs a Lucius that knows version {KNOWN + 1}"):
                await store.ledger.commit(then(before))
            asked = monotonic()
            with pytest.raises(LedgerDown):
                await store.ledger.load("before", fresh=True)
            assert monotonic() - asked < 2, "nothing is to be waited for"
        finally:
            await store.close()

    async def test_older_compatible_code_opens_a_newer_schema_unchanged(self, postgres_url: str) -> None:
        async with opened(postgres_url, (*MIGRATIONS, NOTES)):
            pass
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 2)]
            assert "notes" in await tables(database)

    async def test_later_migration_does_not_lift_an_earlier_exclusion(self, postgres_url: str) -> None:
        forbids = Migration(("CREATE TABLE more ()",), compatible_with=KNOWN + 1)
        async with opened(postgres_url, (*MIGRATIONS, forbids, NOTES)):
            pass
        with pytest.raises(LedgerTooNew):
            await Database(postgres_url, 1).open()


class TestDevelopmentLedger:
    """Ledgers from before version 1 counted to 8: no such version may be taken for one of ours."""

    @pytest.mark.parametrize("version", [1, 2, 8])
    @pytest.mark.parametrize("known", [KNOWN, 8, 9])
    async def test_development_ledger_of_any_version_is_refused_and_left_as_it_is(
        self, postgres: PostgresServer, postgres_url: str, version: int, known: int
    ) -> None:
        schema = create_development_schema(postgres, postgres_url, version)
        before = postgres.dump(schema)
        assert "'sha256:hash-of-j1'" in before
        assert f"schema_version VALUES ({version}, 1)" in before
        assert f"schema_version VALUES ({version + 1}, 1)" not in before
        with pytest.raises(LedgerTooOld) as refusal:
            await open_postgres(postgres_url, migrations=up_to(known))
        assert postgres.dump(schema) == before
        parts = (schema, "unreleased development version", "left as it is", "?schema=", "the Lucius that made it")
        assert [part for part in parts if part not in str(refusal.value)] == []

    async def test_development_ledger_created_while_waiting_for_the_lock_is_refused(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        schema = Database(postgres_url, 1).schema
        async with opened(postgres_url, ()) as other, other.connection() as migrating:
            key = zlib.crc32(f"lucius/{schema}".encode())
            await migrating.execute("SELECT pg_advisory_lock($1)", key)
            waiting = asyncio.create_task(Database(postgres_url, 1).open())
            await until_async(lambda: other.fetch_rows(WAITING))
            create_development_schema(postgres, postgres_url)
            before = postgres.dump(schema)
            await migrating.execute("SELECT pg_advisory_unlock($1)", key)
            with pytest.raises(LedgerTooOld):
                await waiting
        assert postgres.dump(schema) == before

    @pytest.mark.parametrize("version", range(2, 10))
    async def test_later_version_of_this_schema_is_not_taken_for_a_development_ledger(
        self, postgres_url: str, version: int
    ) -> None:
        async with opened(postgres_url, up_to(version)) as database:
            assert "schema_version" not in await tables(database), "a development version would migrate it"
        async with opened(postgres_url, up_to(version)) as database:
            assert await versions(database) == [*range(1, version + 1)]
        needs_newer = Migration((), compatible_with=version + 1)
        async with opened(postgres_url, (*up_to(version), needs_newer)):
            pass
        with pytest.raises(LedgerTooNew, match=f"version {version + 1}"):
            await open_postgres(postgres_url)

    async def test_ledger_of_the_last_development_version_is_refused_and_left_as_it_is(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        schema = Database(postgres_url, 1).schema
        async with opened(postgres_url):
            pass
        postgres.execute(f"ALTER TABLE {schema}.ledger_versions RENAME TO schema_migrations")
        before = postgres.dump(schema)
        with pytest.raises(LedgerTooOld):
            await open_postgres(postgres_url)
        assert postgres.dump(schema) == before

    async def test_version_table_of_another_program_makes_no_development_ledger(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        schema = Database(postgres_url, 1).schema
        postgres.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.schema_version (version text)")
        async with opened(postgres_url) as database:
            assert await versions(database) == [*range(1, KNOWN + 1)]


class TestMixedVersions:
    async def test_old_and_new_code_work_on_the_same_jobs(self, postgres_url: str) -> None:
        """The old code works before, during and after the migration that the new code brings."""
        old = await open_postgres(postgres_url)
        for n in range(3):
            await old.ledger.commit(dispatch(f"common-{n}"))
        new = process(NEW_CODE, postgres_url)
        ends = asyncio.create_task(asyncio.to_thread(new.communicate))
        moved, rounds = 0, 0
        while not ends.done():
            moved += await change_common_jobs(old, f"old-{rounds}", 10)
            rounds += 1
        assert ((await ends)[0], new.returncode) == ("60\n", 0), await ends
        taken = await old.outbox.pending(PendingQuery(limit=500, now=5_000, service="ocr", hold_ms=10))
        assert {row.job_id for row in taken} == {
            "of-new",
            *(f"common-{n}" for n in range(3)),
            *(f"of-old-{n}" for n in range(rounds)),
        }
        views = [await old.jobs.job(f"common-{n}") for n in range(3)]
        assert sum(view.job.version - 1 for view in views if view is not None) == moved + 60
        async with opened(postgres_url) as database:
            notes = await database.fetch_rows("SELECT note, count(*) AS n FROM live GROUP BY note")
            assert {row["note"]: row["n"] for row in notes} == {"old code": 3 + rounds, "new code": 1}
            assert await versions(database) == [*range(1, KNOWN + 2)]
        await self.finish(old, "of-new")
        await old.close()

    async def finish(self, store: PostgresStore, job_id: str) -> None:
        view = await store.ledger.load(job_id)
        assert view is not None
        before = Decision(job=view.job, replies=(), protocol=view.protocol)
        await store.ledger.commit(then(before, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000))

    async def test_commits_wait_for_a_migration_without_failing(self, postgres_url: str) -> None:
        store = await open_postgres(postgres_url)
        slow = Migration((*NEXT.statements, "SELECT pg_sleep(0.5)"), compatible_with=KNOWN)
        migrating = asyncio.create_task(Database(postgres_url, 1).open((*MIGRATIONS, slow)))
        longest, accepted = 0.0, 0
        while not migrating.done():
            started = monotonic()
            await store.ledger.commit(accept(f"j{accepted}"))
            longest, accepted = max(longest, monotonic() - started), accepted + 1
        await migrating
        assert len((await store.jobs.jobs(JobFilter(), accepted + 1, None)).jobs) == accepted
        assert longest > 0.4  # the lock was in their way
        await store.close()

    async def test_migration_that_waits_for_a_lock_yields_to_commits(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Statements queue behind DDL that waits for a lock: so the migration gives up and tries again."""
        monkeypatch.setattr(migrations_run, "LOCK_TIMEOUT_MS", 100)
        store = await open_postgres(postgres_url)
        async with opened(postgres_url) as other, other.transaction() as long:
            await long.execute("LOCK TABLE live IN ROW EXCLUSIVE MODE")  # as every commit does
            migrating = asyncio.create_task(Database(postgres_url, 1).open((*MIGRATIONS, NEXT)))
            longest, until = 0.0, monotonic() + 1
            for n in range(10_000):
                started = monotonic()
                await store.ledger.commit(accept(f"j{n}"))
                longest = max(longest, monotonic() - started)
                if monotonic() > until:
                    break
            assert not migrating.done()
        await migrating
        assert 0.05 < longest < 0.6
        async with opened(postgres_url) as migrated:
            assert await versions(migrated) == [*range(1, KNOWN + 2)]
        await store.close()
