"""Guarantees of the SQLite ledger only: durability, one writer, clear refusals, and bounded costs."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from lucius.adapters.ledger.sqlite.filters import placeholders
from lucius.adapters.ledger.sqlite.inbox import MAX_LAZY_DELETES
from lucius.adapters.ledger.sqlite.ledger import DRIFT_BATCH_ROWS
from lucius.adapters.ledger.sqlite.schema import MIGRATIONS
from lucius.adapters.ledger.sqlite.searching import build_filters
from lucius.adapters.ledger.sqlite.store import SqliteStore, open_sqlite
from lucius.core.decide.decide import counted
from lucius.core.model.decision import Decision
from lucius.core.model.records import ErrorInfo
from lucius.core.model.statuses import BlockedReason, JobStatus, OutboxStatus, StepStatus
from lucius.ports.errors import (
    AlreadyAccepted,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerTooNew,
    VersionConflict,
)
from lucius.ports.inbox import InboxMessage
from lucius.ports.ledger import Drift
from lucius.ports.outbox import PendingQuery
from lucius.ports.readers import JobFilter, Oldest
from lucius.usecases.queries.audit import verify
from tests.conformance.builders import accept, command, dispatch, row, step, then

REPOSITORY = Path(__file__).parents[3]
SEARCH_INDEXES = (
    "commands_by_doc",
    "commands_by_correlation",
    "commands_by_target",
    "jobs_by_completion",
    "jobs_by_tenant_completion",
    "jobs_by_error",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = open_sqlite(path)
    yield opened
    await opened.close()


async def together(store: SqliteStore, *decisions: Decision) -> list[BaseException | None]:
    return await asyncio.gather(*(store.ledger.commit(decision) for decision in decisions), return_exceptions=True)


@contextmanager
def traced(store: SqliteStore) -> Iterator[list[str]]:
    statements: list[str] = []
    connection = store.file.connection
    connection.set_trace_callback(statements.append)
    yield statements
    connection.set_trace_callback(None)


def raw(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Execute SQL as the sqlite3 shell would; return the rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


def in_another_process(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


COMMIT_FOR_EVER = """
import asyncio, sys
from lucius.adapters.ledger.sqlite.store import open_sqlite
from tests.conformance.builders import dispatch

async def one(ledger, name):
    await ledger.commit(dispatch(name))
    print(name, flush=True)

async def main():
    ledger = open_sqlite(sys.argv[1]).ledger
    for n in range(100_000):
        await asyncio.gather(*(one(ledger, f"j{n}-{k}") for k in range(5)))

asyncio.run(main())
"""


def acknowledged_before_kill(path: Path) -> list[str]:
    """Let a process commit, kill it, and return the commits that were acknowledged as durable before."""
    command_line = [sys.executable, "-c", COMMIT_FOR_EVER, str(path)]
    with subprocess.Popen(command_line, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(203)]
        process.send_signal(signal.SIGKILL)
        return acknowledged + [line.strip() for line in process.stdout if line.endswith("\n")]


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(at)
        file.write(content)


# A made-up migration that rebuilds what `downgrade_file` removes, and fills it from the JSON of older rows.
REBUILD = (
    "UPDATE jobs SET body = json_set(body, '$.unsealed', coalesce(json_extract(body, '$.event_seq'), 0))",
    "ALTER TABLE outbox ADD COLUMN tenant_id TEXT NOT NULL DEFAULT ''",
    "UPDATE outbox SET tenant_id = json_extract(body, '$.tenant_id') WHERE status = 'PENDING'",
    "DROP INDEX outbox_pending",
    *(f"ALTER TABLE commands ADD COLUMN {column} TEXT" for column in ("doc_id", "correlation_id", "target")),
    "ALTER TABLE jobs ADD COLUMN completed_at INTEGER",
    "ALTER TABLE jobs ADD COLUMN error_code TEXT",
    """
    UPDATE commands SET
        doc_id = json_extract(body, '$.doc_id'),
        correlation_id = nullif(json_extract(body, '$.correlation_id'), (SELECT job_id FROM jobs WHERE id = job)),
        target = json_extract(body, '$.target.type') || '/' || json_extract(body, '$.target.id')
    """,
    """
    UPDATE jobs SET
        completed_at = coalesce(json_extract(body, '$.completed_at'), json_extract(body, '$.updated_at')),
        error_code = json_extract(body, '$.error.code')
    WHERE live = 0
    """,
    *(
        statement
        for name in (
            "TABLE inbox",
            "TABLE sightings",
            "INDEX inbox_at",
            "INDEX outbox_pending",
            *map("INDEX {}".format, SEARCH_INDEXES),
        )
        for statement in MIGRATIONS[0]
        if f"CREATE {name} " in statement
    ),
)


def downgrade_file(path: Path) -> None:
    """Make the file as an older version might have left it, with rows that name no tenant and no search columns."""
    raw(path, "DROP TABLE inbox")
    raw(path, "DROP TABLE sightings")
    for index in (*SEARCH_INDEXES, "outbox_pending"):
        raw(path, f"DROP INDEX {index}")
    for column in ("doc_id", "correlation_id", "target"):
        raw(path, f"ALTER TABLE commands DROP COLUMN {column}")
    for column in ("completed_at", "error_code"):
        raw(path, f"ALTER TABLE jobs DROP COLUMN {column}")
    raw(path, "ALTER TABLE outbox DROP COLUMN tenant_id")
    raw(path, "CREATE INDEX outbox_pending ON outbox (service, claimed) WHERE status = 'PENDING'")


async def finish_jobs(store: SqliteStore, names: list[str]) -> None:
    """Run these jobs from acceptance to their end."""
    accepted = [dispatch(name) for name in names]
    done = [
        then(
            decision,
            status=JobStatus.SUCCEEDED,
            active=(),
            blocked=None,
            steps=(step(decision.job.job_id, status=StepStatus.SUCCEEDED),),
            outbox=(row(decision.steps[0], status=OutboxStatus.SENT),),
        )
        for decision in accepted
    ]
    assert set(await together(store, *accepted, *done)) == {None}


class TestDurability:
    async def test_jobs_and_outbox_survive_closing_and_opening(self, path: Path) -> None:
        store = open_sqlite(path)
        first, second = dispatch("j1"), dispatch("j2", service="sis")
        for decision in (first, second, then(first, due_at=7_000)):
            await store.ledger.commit(decision)
        await store.close()
        store = open_sqlite(path)
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job == then(first, due_at=7_000).job
        assert view.steps == {"ocr": first.steps[0]}
        assert await store.ledger.due(7_000, 10) == ["j1"]
        assert [found.job_id for found in await store.outbox.pending(PendingQuery(limit=9, now=1))] == ["j1", "j2"]
        assert len((await store.jobs.jobs(JobFilter(tenants=frozenset({"acme"})), 9, None)).jobs) == 2
        await store.ledger.commit(dispatch("j3"))
        assert [found.job_id for found in await store.outbox.pending(PendingQuery(limit=9, now=1))] == [
            "j1",
            "j2",
            "j3",
        ]
        assert [job.job_id for job in (await store.jobs.jobs(JobFilter(request_type="OCR"), 9, None)).jobs] == [
            "j3",
            "j2",
            "j1",
        ]
        with pytest.raises(VersionConflict):
            await store.ledger.commit(then(first))
        await store.close()

    async def test_every_acknowledged_commit_survives_kill_9(self, path: Path) -> None:
        acknowledged = acknowledged_before_kill(path)
        store = open_sqlite(path)
        for name in acknowledged:
            view = await store.ledger.load(name)
            assert view is not None, name
            assert view.steps.keys() == {"ocr"}
            assert len(await store.history.events(name, 0, 10)) == 2
        await store.close()

    async def test_file_is_configured_to_survive_a_power_cut(self, store: SqliteStore) -> None:
        settings = [store.file.fetch_row(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
        assert settings == [("wal",), (2,)]

    async def test_failed_commit_changes_nothing_in_memory(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)

        def fail() -> None:
            raise sqlite3.OperationalError("disk I/O error")

        change = then(first, steps=(step("j1", status=StepStatus.PROCESSING),), counters={"jobs": 1})
        with monkeypatch.context() as patch:
            patch.setattr(store.file, "_make_durable", fail)
            outcomes = await together(store, change, accept("j2"))
            assert all(isinstance(outcome, LedgerError) for outcome in outcomes)
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job == first.job
        assert view.steps == {"ocr": first.steps[0]}
        assert await store.ledger.load("j2") is None
        assert await store.jobs.counters("") == {}
        assert await together(store, change, accept("j2")) == [None, None]

    async def test_evicted_job_is_read_and_changed_from_the_file(self, store: SqliteStore) -> None:
        store.state.max_cached = 2
        decisions = [dispatch(f"j{n}") for n in range(5)]
        for decision in decisions:
            await store.ledger.commit(decision)
        working = step("j0", status=StepStatus.PROCESSING)
        await store.ledger.commit(then(decisions[0], steps=(working,)))
        with pytest.raises(VersionConflict):
            await store.ledger.commit(then(decisions[0]))
        view = await store.ledger.load("j0")
        assert view is not None
        assert (view.job.version, view.steps) == (2, {"ocr": working})
        assert store.state.cached_count == 2


class TestIsolation:
    async def test_unserialisable_decision_fails_alone(self, store: SqliteStore) -> None:
        poison = accept("poison", asked=command("poison", payload={"ocr": object()}))
        before, outcome, after = await together(store, accept("a"), poison, accept("z"))
        assert before is after is None
        assert isinstance(outcome, TypeError)
        assert await store.ledger.load("poison") is None
        assert await store.ledger.load("z") is not None

    async def test_decision_refused_because_of_a_failed_one_is_judged_anew(self, store: SqliteStore) -> None:
        poison = accept("poison", asked=command("poison", payload={"ocr": object()}, idempotency_key="k"))
        good = accept("good", asked=command("good", idempotency_key="k"))
        lost = accept("lost", asked=command("lost", idempotency_key="k"))
        outcomes = await together(store, poison, good, lost)
        assert [type(outcome) for outcome in outcomes] == [TypeError, type(None), AlreadyAccepted]
        held = await store.ledger.accepted("acme", "key:k")
        assert held is not None
        assert held.job_id == "good"

    async def test_full_disk_refuses_only_what_does_not_fit(self, path: Path) -> None:
        store = open_sqlite(path, max_page_count=100)
        huge = accept("huge", asked=command("huge", payload={"ocr": "x" * 1_000_000}))
        small, outcome, other = await together(store, dispatch("a"), huge, dispatch("b"))
        assert small is other is None
        assert isinstance(outcome, LedgerFull)
        assert str(path) in str(outcome)
        assert await store.ledger.load("huge") is None
        await store.ledger.commit(then(dispatch("a"), due_at=5))
        assert await store.ledger.due(5, 10) == ["a"]
        await store.close()

    async def test_filling_disk_loses_no_accepted_job(self, path: Path) -> None:
        store = open_sqlite(path, max_page_count=60)
        outcomes = {f"j{n}": (await together(store, dispatch(f"j{n}")))[0] for n in range(200)}
        accepted = [name for name, outcome in outcomes.items() if outcome is None]
        assert {type(outcome) for outcome in outcomes.values()} == {type(None), LedgerFull}
        assert len(accepted) > 10
        for name in accepted:
            assert await store.ledger.load(name) is not None
        listed = [job.job_id for job in (await store.jobs.jobs(JobFilter(), 1_000, None)).jobs]
        assert listed == accepted[::-1]
        await store.close()

    async def test_commits_are_busy_only_while_another_program_locks_the_file(
        self, store: SqliteStore, path: Path
    ) -> None:
        await store.ledger.commit(accept("a"))
        store.file.connection.execute("PRAGMA busy_timeout = 10")
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            with traced(store) as statements:
                outcomes = await together(store, accept("b"), accept("c"))
            assert [type(outcome) for outcome in outcomes] == [LedgerBusy, LedgerBusy]
            assert statements.count("BEGIN IMMEDIATE") <= 1  # the event loop must not wait once for each of them
            shell.execute("ROLLBACK")
        assert await together(store, accept("b"), accept("c")) == [None, None]


class TestOpening:
    async def test_second_process_is_refused_naming_the_process_that_holds_the_file(
        self, store: SqliteStore, path: Path
    ) -> None:
        script = "import sys; from lucius.adapters.ledger.sqlite.store import open_sqlite; open_sqlite(sys.argv[1])"
        second = in_another_process(script, path)
        assert second.returncode != 0
        assert "LedgerBusy" in second.stderr
        assert f"process {os.getpid()}" in second.stderr
        assert str(path) in second.stderr
        await store.ledger.commit(accept("still-works"))

    async def test_write_to_a_closed_file_raises_ledger_error(self, path: Path) -> None:
        store = open_sqlite(path)
        await store.close()
        with pytest.raises(LedgerError, match="closed"):
            await store.sightings.forget_services(0, ())

    async def test_closed_file_can_be_opened_again(self, path: Path) -> None:
        store = open_sqlite(path)
        with pytest.raises(LedgerBusy):
            open_sqlite(path)
        await store.close()
        await open_sqlite(path).close()

    async def test_refused_file_is_not_left_locked(self, path: Path) -> None:
        overwrite(path, 0, b"no ledger at all" * 1_000)
        with pytest.raises(LedgerCorrupt, match="not a SQLite file"):
            open_sqlite(path)
        os.unlink(path)
        await open_sqlite(path).close()

    def test_sqlite_file_of_another_program_is_refused_and_left_unchanged(self, path: Path) -> None:
        raw(path, "CREATE TABLE customers (name TEXT)")
        before = path.read_bytes()
        with pytest.raises(LedgerCorrupt, match="not a Lucius ledger"):
            open_sqlite(path)
        assert path.read_bytes() == before

    async def test_a_damaged_file_is_refused(self, path: Path) -> None:
        store = open_sqlite(path)
        await finish_jobs(store, [f"j{n}" for n in range(50)])
        await store.close()
        overwrite(path, 4096, os.urandom(4096 * 19))
        with pytest.raises(LedgerCorrupt, match="restore a backup"):
            open_sqlite(path)

    async def test_damage_found_after_opening_is_reported(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_sqlite(path)
        await finish_jobs(store, [f"j{n}" for n in range(50)])
        await store.close()
        (root,) = raw(path, "SELECT rootpage FROM sqlite_master WHERE name = 'events'")[0]
        assert isinstance(root, int)
        overwrite(path, (root - 1) * 4096, b"\xff" * 4096)
        monkeypatch.setattr("lucius.adapters.ledger.sqlite.file.MAX_QUICK_CHECK_BYTES", 0)
        store = open_sqlite(path)
        with pytest.raises(LedgerCorrupt):
            await store.history.events("j1", 0, 10)
        with pytest.raises(LedgerCorrupt):
            await store.ledger.commit(dispatch("new"))
        await store.close()

    async def test_a_newer_file_is_refused_with_both_versions(self, path: Path) -> None:
        await open_sqlite(path).close()
        raw(path, "PRAGMA user_version = 99")
        with pytest.raises(LedgerTooNew) as refusal:
            open_sqlite(path)
        for word in (str(path), "99", str(len(MIGRATIONS))):
            assert word in str(refusal.value)

    def test_folder_that_cannot_be_created_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(LedgerError, match="check that its folder is writable"):
            open_sqlite(tmp_path / "file" / "ledger.db")

    async def test_older_file_is_migrated_with_its_data(self, path: Path) -> None:
        store = open_sqlite(path)
        await store.ledger.commit(dispatch("old"))
        await store.close()
        newer = (*MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN note TEXT", "UPDATE jobs SET note = 'moved'"))
        store = open_sqlite(path, migrations=newer)
        await store.ledger.commit(dispatch("new"))
        assert await store.ledger.load("old") is not None
        await store.close()
        assert raw(path, "PRAGMA user_version") == [(len(newer),)]
        assert raw(path, "SELECT note FROM jobs ORDER BY id") == [("moved",), (None,)]

    async def test_migrated_jobs_record_which_events_have_no_hash(self, path: Path) -> None:
        store = open_sqlite(path)
        await store.ledger.commit(dispatch("old"))
        await store.close()
        downgrade_file(path)
        store = open_sqlite(path, migrations=(*MIGRATIONS, REBUILD))
        await store.ledger.commit(dispatch("new"))  # this builder writes no hashes
        old, new = await verify(store.jobs, store.history, "old"), await verify(store.jobs, store.history, "new")
        await store.close()
        assert old is not None
        assert new is not None
        assert (old.valid, old.unsealed, new.valid, new.unsealed) == (True, 2, False, 0)

    async def test_migrated_jobs_are_found_by_a_search(self, path: Path) -> None:
        store = open_sqlite(path)
        asked = command("j1", doc_id="d1", correlation_id="c1", target={"type": "deal", "id": "7"})
        first = accept("j1", asked=asked)
        await store.ledger.commit(first)
        failed = ErrorInfo("BROKEN", "it broke")
        await store.ledger.commit(then(first, status=JobStatus.FAILED_FINAL, completed_at=5_000, error=failed))
        await store.ledger.commit(accept("j2", asked=command("j2", correlation_id="j2")))
        await store.close()
        downgrade_file(path)
        store = open_sqlite(path, migrations=(*MIGRATIONS, REBUILD))
        wheres = (
            JobFilter(doc_id="d1"),
            JobFilter(correlation_id="c1"),
            JobFilter(target="deal/7"),
            JobFilter(error_code="BROKEN"),
            JobFilter(completed_after=4_999, completed_before=5_001),
            JobFilter(correlation_id="j2"),
        )
        found = [[job.job_id for job in (await store.jobs.jobs(where, 9, None)).jobs] for where in wheres]
        await store.close()
        assert found == [["j1"]] * 5 + [["j2"]]

    async def test_migrated_rows_take_turns_by_tenant(self, path: Path) -> None:
        store = open_sqlite(path)
        for tenant_id, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
            await store.ledger.commit(dispatch(name, asked=command(name, tenant_id=tenant_id), tenant_id=tenant_id))
        await store.close()
        downgrade_file(path)
        store = open_sqlite(path, migrations=(*MIGRATIONS, REBUILD))
        served = [found.job_id for found in await store.outbox.pending(PendingQuery(limit=9, now=1, service="ocr"))]
        await store.close()
        assert served == ["a1", "b1", "a2"]

    async def test_failed_migration_leaves_the_file_unchanged(self, path: Path) -> None:
        store = open_sqlite(path)
        await store.ledger.commit(dispatch("old"))
        await store.close()
        broken = (*MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN note TEXT", "SELECT * FROM nowhere"))
        with pytest.raises(LedgerError, match="nowhere"):
            open_sqlite(path, migrations=broken)
        store = open_sqlite(path)
        assert await store.ledger.load("old") is not None
        await store.close()

    async def test_counters_are_recounted_and_repaired(self, path: Path) -> None:
        store = open_sqlite(path)
        for name in ("a", "b"):
            decision = dispatch(name)
            counters = counted(decision.job, decision.steps)
            await store.ledger.commit(replace(decision, counters=counters))
        expected = await store.jobs.counters("")
        assert expected["jobs"] == 2
        await store.close()
        raw(path, "UPDATE counters SET value = 77 WHERE name = 'jobs'")
        raw(path, "INSERT INTO counters VALUES ('jobs/tenant/ghost', 3)")
        store = open_sqlite(path)
        assert await store.jobs.counters("") == expected
        await store.close()
        assert dict(raw(path, "SELECT name, value FROM counters")) == expected  # type: ignore[arg-type]


@contextmanager
def work_counted(store: SqliteStore) -> Iterator[list[int]]:
    """Yield a list with one entry per ten steps of SQLite's virtual machine."""
    ticks: list[int] = []
    store.file.connection.set_progress_handler(lambda: ticks.append(1), 10)
    yield ticks
    store.file.connection.set_progress_handler(None, 0)


class TestCosts:
    async def test_commits_of_one_loop_turn_share_a_transaction(self, store: SqliteStore) -> None:
        with traced(store) as statements:
            await together(store, *(dispatch(f"j{n}") for n in range(32)))
        assert statements.count("COMMIT") == 1
        assert sum(statement.startswith("BEGIN") for statement in statements) == 1

    async def test_commit_group_is_bounded(self, store: SqliteStore) -> None:
        sizes: list[int] = []
        store.hooks.on_flush = lambda size, seconds: sizes.append(size)
        await together(store, *(accept(f"j{n}") for n in range(600)))
        assert sizes == [256, 256, 88]

    async def test_refusals_alone_write_nothing(self, store: SqliteStore) -> None:
        await store.ledger.commit(accept("a"))
        with traced(store) as statements, pytest.raises(AlreadyAccepted):
            await store.ledger.commit(accept("a"))
        assert not [statement for statement in statements if not statement.lstrip().startswith("SELECT")]

    async def test_backlog_of_one_tenant_is_not_read_to_find_the_row_of_another(self, store: SqliteStore) -> None:
        async def work() -> int:
            with work_counted(store) as ticks:
                for lanes in (None, frozenset({7})):
                    found = await store.outbox.pending(PendingQuery(limit=2, now=5_000, service="ocr", lanes=lanes))
                    assert {row.tenant_id for row in found} >= {"b"}
            return len(ticks)

        await store.ledger.commit(dispatch("b", asked=command("b", tenant_id="b"), tenant_id="b", lane=7))
        await together(store, *(dispatch(f"few-{n}") for n in range(10)))
        few = await work()
        for n in range(5):
            await together(store, *(dispatch(f"many-{n}-{k}") for k in range(500)))
            await together(store, *(dispatch(f"later-{n}-{k}", next_attempt_at=9_000) for k in range(500)))
        assert await work() <= few * 1.1 + 1

    async def test_backlog_age_does_not_read_the_waiting_rows(self, store: SqliteStore) -> None:
        async def work() -> int:
            with work_counted(store) as ticks:
                assert await store.jobs.backlog(5_000) == {"ocr": Oldest(300)}
            return len(ticks)

        await together(store, dispatch("first", created_at=300), dispatch("later", next_attempt_at=9_000))
        few = await work()
        for n in range(5):
            await together(store, *(dispatch(f"many-{n}-{k}") for k in range(200)))
            await together(store, *(dispatch(f"later-{n}-{k}", next_attempt_at=9_000) for k in range(200)))
        assert await work() <= few + 5

    async def test_rows_waiting_for_a_backoff_are_not_queried_again(self, store: SqliteStore) -> None:
        names = [f"t{n}" for n in range(100)]
        asked = {name: command(name, tenant_id=name) for name in names}
        await together(store, *(dispatch(n, asked=asked[n], tenant_id=n, next_attempt_at=9_000) for n in names))
        query = PendingQuery(limit=5, now=5_000, service="ocr")
        assert await store.outbox.pending(query) == []
        with traced(store) as statements:
            assert await store.outbox.pending(query) == []
        assert statements == []
        assert len(await store.outbox.pending(PendingQuery(limit=5, now=9_000, service="ocr"))) == 5

    async def test_service_without_pending_rows_is_not_queried_again(self, store: SqliteStore) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        await store.ledger.commit(then(first, outbox=(row(first.steps[0], status=OutboxStatus.SENT),)))
        query = PendingQuery(limit=5, now=5_000, service="ocr")
        assert await store.outbox.pending(query) == []
        with traced(store) as statements:
            assert await store.outbox.pending(query) == []
        assert statements == []

    async def test_work_of_a_commit_is_independent_of_finished_jobs(self, store: SqliteStore) -> None:
        async def work(name: str) -> tuple[int, int]:
            first = dispatch(name)
            with traced(store) as statements, work_counted(store) as ticks:
                await store.ledger.commit(first)
                sent = row(first.steps[0], status=OutboxStatus.SENT)
                working = step(name, status=StepStatus.PROCESSING)
                await store.ledger.commit(then(first, due_at=5, outbox=(sent,), steps=(working,)))
                await store.ledger.due(4, 10)
                await store.outbox.pending(PendingQuery(limit=10, now=5_000))
                await store.ledger.drifted(10)
            await store.ledger.commit(then(then(first, due_at=5), status=JobStatus.SUCCEEDED, active=()))
            return len(statements), len(ticks)

        await work("warm-up")
        few = await work("few")
        for n in range(4):
            await finish_jobs(store, [f"done-{n}-{k}" for k in range(500)])
        many = await work("many")
        assert many[0] == few[0]
        assert many[1] <= few[1] * 1.1

    @pytest.mark.parametrize(
        "where",
        [
            JobFilter(),
            JobFilter(created_after=500_000),
            JobFilter(tenants=frozenset({"rare", "acme"}), created_after=500_000),
            JobFilter(tenants=frozenset({"rare"})),
            JobFilter(tenants=frozenset({"acme"}), status=JobStatus.FAILED_FINAL),
            JobFilter(tenants=frozenset({"acme"}), request_type="SIS"),
            JobFilter(status=JobStatus.QUEUED),
            JobFilter(status=JobStatus.SUCCEEDED, request_type="SIS"),
            JobFilter(request_type="SIS"),
            JobFilter(blocked_on=BlockedReason.HANDOVER),
            JobFilter(blocked_services=frozenset({"ocr"}), tenants=frozenset({"rare"})),
            JobFilter(doc_id="rare"),
            JobFilter(correlation_id="c-rare"),
            JobFilter(correlation_id="rare"),
            JobFilter(target="rare/1", status=JobStatus.DISPATCHING),
            JobFilter(error_code="RARE"),
            JobFilter(completed_before=600),
            JobFilter(completed_after=9_500, tenants=frozenset({"acme"})),
        ],
    )
    async def test_work_of_a_list_is_independent_of_excluded_jobs(self, store: SqliteStore, where: JobFilter) -> None:
        async def work() -> int:
            with work_counted(store) as ticks:
                await store.jobs.jobs(where, 10, None)
            return len(ticks)

        terms = {"doc_id": "rare", "target": {"type": "rare", "id": "1"}}
        await store.ledger.commit(
            dispatch("rare", asked=command("rare", tenant_id="rare", request_type="SIS", **terms))
        )
        early = accept("early")
        await store.ledger.commit(early)
        error = ErrorInfo("RARE", "")
        await store.ledger.commit(then(early, status=JobStatus.FAILED_FINAL, completed_at=500, error=error))
        await finish_jobs(store, [f"few-{k}" for k in range(50)])
        few = await work()
        for n in range(4):
            await finish_jobs(store, [f"done-{n}-{k}" for k in range(500)])
        assert await work() <= few * 1.1 + 2

    async def test_changing_a_job_does_not_rewrite_its_command(self, store: SqliteStore) -> None:
        first = accept("j1", asked=command("j1", payload={"ocr": "a-very-long-payload"}))
        await store.ledger.commit(first)
        with traced(store) as statements:
            await store.ledger.commit(then(first, due_at=5))
        assert not [statement for statement in statements if "a-very-long-payload" in statement]

    async def test_unchanged_columns_are_not_updated(self, store: SqliteStore) -> None:
        first = accept("j1", due_at=5)
        await store.ledger.commit(first)
        with traced(store) as statements:
            await store.ledger.commit(then(first, updated_at=2_000))
        (update,) = [statement for statement in statements if statement.startswith("UPDATE jobs")]
        assert "status =" not in update
        assert "due_at =" not in update

    async def test_no_statement_scans_a_whole_table(self, store: SqliteStore, path: Path) -> None:
        first = dispatch("j1")
        with traced(store) as statements:
            await store.ledger.commit(first)
            await store.ledger.commit(then(first, due_at=5))
            await self.run_every_query(store)
        asked = {statement for statement in statements if statement.lstrip().startswith(("SELECT", "UPDATE"))}
        assert len(asked) > 30
        for statement in asked:
            plan = [str(line[3]) for line in raw(path, f"EXPLAIN QUERY PLAN {statement}")]
            # The one index that may be read whole holds only PENDING rows; `wanted` is a limited subquery.
            allowed = ("SCAN outbox USING COVERING INDEX outbox_pending", "SCAN wanted")
            scans = [line for line in plan if line.startswith("SCAN") and line not in allowed]
            sorts = [line for line in plan if "TEMP B-TREE" in line]
            assert not scans + sorts, (statement, plan)

    async def test_filters_of_a_search_read_only_the_jobs_that_it_walked(self, store: SqliteStore, path: Path) -> None:
        await store.ledger.commit(accept("j1"))
        where = JobFilter(
            completed_after=0,
            created_after=0,
            status=JobStatus.CANCELLED,
            request_type="OCR",
            tenants=frozenset({"acme"}),
            blocked_on=BlockedReason.ACK,
            blocked_services=frozenset({"ocr"}),
            error_code="E",
            doc_id="d1",
            correlation_id="c1",
            target="a/b",
        )
        filters = build_filters(where)
        statement = filters.fill("pick", marks=placeholders(range(250)))
        plan = store.file.fetch_rows(f"EXPLAIN QUERY PLAN {statement}", (*range(250), *filters.values))
        assert [line[3] for line in plan] == [
            "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH commands USING INTEGER PRIMARY KEY (rowid=?)",
        ]

    async def test_search_yields_to_other_tasks_between_its_walks(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lucius.adapters.ledger.search_page.MAX_WALK_ENTRIES", 1)
        for number in range(5):
            first = accept(f"j{number}")
            await store.ledger.commit(first)
            await store.ledger.commit(then(first, status=JobStatus.SUCCEEDED, completed_at=number + 1))
        search = asyncio.create_task(
            store.jobs.jobs(JobFilter(completed_after=0, status=JobStatus.CANCELLED), 10, None)
        )
        turns = 0
        while not search.done():
            await asyncio.sleep(0)
            turns += 1
        assert (await search).jobs == []
        assert turns >= 5

    async def run_every_query(self, store: SqliteStore) -> None:
        store.state.evict("j1")
        await store.ledger.load("j1", ["ocr"])
        await store.ledger.accepted("acme", "key:k")
        await store.ledger.due(5, 10)
        for claimed in (True, False):
            await store.outbox.pending(PendingQuery(limit=10, now=5, claimed=claimed, lanes=frozenset({1, 2})))
            await store.outbox.pending(PendingQuery(limit=10, now=5, claimed=claimed, service="ocr"))
        await store.ledger.drifted(10)
        tenants = frozenset({"acme", "globex"})
        for where in (
            JobFilter(),
            JobFilter(created_after=1),
            JobFilter(tenants=tenants),
            JobFilter(tenants=tenants, status=JobStatus.FAILED_FINAL),
            JobFilter(request_type="OCR", created_after=1),
            JobFilter(status=JobStatus.SUCCEEDED),
            JobFilter(blocked_on=BlockedReason.ACK, tenants=tenants, status=JobStatus.IN_PROGRESS),
            JobFilter(blocked_services=frozenset({"ocr"}), request_type="OCR", created_after=1),
            JobFilter(doc_id="d1", tenants=tenants, status=JobStatus.SUCCEEDED),
            JobFilter(correlation_id="c1", created_after=1),
            JobFilter(target="a/b", request_type="OCR"),
            JobFilter(error_code="E", completed_after=1),
            JobFilter(completed_after=1, completed_before=9),
            JobFilter(completed_after=1, tenants=frozenset({"acme"})),
        ):
            await store.jobs.jobs(where, 10, None)
        await store.history.attempts("j1")
        await store.history.quarantined("j1")
        await store.history.events("j1", 0, 10)
        await store.jobs.backlog(5_000)

    async def test_drift_behind_a_long_queue_is_found_by_later_calls(self, store: SqliteStore) -> None:
        await together(store, *(dispatch(f"j{n}") for n in range(DRIFT_BATCH_ROWS + 5)))
        lost = dispatch("lost")
        await store.ledger.commit(replace(lost, outbox=()))
        found = [await store.ledger.drifted(10) for _ in range(4)]
        assert found == [[], [Drift("lost", ("ocr",))]] * 2


class TestInboxPut:
    """Messages are stored together with the commits of the same turn of the event loop."""

    @staticmethod
    def message(name: str, size: int = 2) -> InboxMessage:
        return InboxMessage(name, "j1", "x" * size, 1)

    async def test_messages_and_commits_of_one_turn_share_a_transaction(self, store: SqliteStore) -> None:
        with traced(store) as statements:
            puts = (store.inbox.put([self.message(f"n{n}")]) for n in range(8))
            told = await asyncio.gather(store.ledger.commit(accept("j1")), *puts, store.ledger.commit(accept("j2")))
        assert told == [None, *[[True]] * 8, None]
        assert statements.count("COMMIT") == 1

    async def test_messages_of_one_turn_share_a_transaction(self, store: SqliteStore) -> None:
        with traced(store) as statements:
            await asyncio.gather(*(store.inbox.put([self.message(f"n{n}")]) for n in range(8)))
        assert statements.count("COMMIT") == 1

    async def test_repeated_put_returns_false_once_the_first_is_durable(self, store: SqliteStore, path: Path) -> None:
        first = asyncio.create_task(store.inbox.put([self.message("a")]))
        await asyncio.sleep(0)
        assert await store.inbox.put([self.message("a"), self.message("b")]) == [False, True]
        assert raw(path, "SELECT message_id FROM inbox ORDER BY 1") == [("a",), ("b",)]
        assert await first == [True]

    async def test_message_that_does_not_fit_fails_alone(self, path: Path) -> None:
        store = open_sqlite(path, max_page_count=100)
        too_large = self.message("b", 1_000_000)
        told = await asyncio.gather(
            store.inbox.put([self.message("a")]),
            store.inbox.put([too_large]),
            store.inbox.put([too_large]),
            store.ledger.commit(accept("j1")),
            store.inbox.put([self.message("c")]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in told] == [list, LedgerFull, LedgerFull, type(None), list]
        assert raw(path, "SELECT message_id FROM inbox ORDER BY 1") == [("a",), ("c",)]
        assert await store.inbox.put([self.message("b")]) == [True], "it may come again"
        await store.close()

    async def test_locked_file_is_waited_for_once_for_all_messages(self, store: SqliteStore, path: Path) -> None:
        store.file.connection.execute("PRAGMA busy_timeout = 10")
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            with traced(store) as statements:
                puts = (store.inbox.put([self.message(f"n{n}")]) for n in range(3))
                told = await asyncio.gather(store.ledger.commit(accept("j1")), *puts, return_exceptions=True)
            assert [type(outcome) for outcome in told] == [LedgerBusy] * 4
            assert statements.count("BEGIN IMMEDIATE") <= 1
            shell.execute("ROLLBACK")

    async def test_message_being_stored_can_be_deleted(self, store: SqliteStore, path: Path) -> None:
        coming = asyncio.create_task(store.inbox.put([self.message("a")]))
        await asyncio.sleep(0)
        await store.inbox.delete(["a"])
        assert await coming == [True]
        assert raw(path, "SELECT message_id FROM inbox") == []

    async def test_message_that_does_not_fit_does_not_block_a_delete(self, path: Path) -> None:
        store = open_sqlite(path, max_page_count=100)
        await store.inbox.put([self.message("a")])
        coming = asyncio.create_task(store.inbox.put([self.message("b", 1_000_000)]))
        await asyncio.sleep(0)
        await store.inbox.delete(["a"])
        assert raw(path, "SELECT message_id FROM inbox") == []
        with pytest.raises(LedgerFull):
            await coming
        await store.close()

    async def test_cancelled_put_does_not_cancel_another_put_of_the_same_message(
        self, store: SqliteStore, path: Path
    ) -> None:
        cut_off = asyncio.create_task(store.inbox.put([self.message("a")]))
        other = asyncio.create_task(store.inbox.put([self.message("a")]))
        await asyncio.sleep(0)
        cut_off.cancel()
        assert await other == [False]
        assert raw(path, "SELECT message_id FROM inbox") == [("a",)]

    async def test_messages_being_stored_when_the_store_closes_are_kept(self, path: Path) -> None:
        store = open_sqlite(path)
        coming = asyncio.create_task(store.inbox.put([self.message("a")]))
        await asyncio.sleep(0)
        await store.close()
        assert await coming == [True]
        assert raw(path, "SELECT message_id FROM inbox") == [("a",)]

    async def test_message_that_does_not_fit_when_the_store_closes_is_refused(self, path: Path) -> None:
        store = open_sqlite(path, max_page_count=100)
        coming = asyncio.create_task(store.inbox.put([self.message("a", 1_000_000)]))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(LedgerFull):
            await coming


class TestInboxDelete:
    """Messages in a job's history are deleted by the next write; a claim that was given back is deleted at once."""

    @staticmethod
    def on_disk(path: Path) -> list[str]:
        with closing(sqlite3.connect(path)) as other:
            return [name for (name,) in other.execute("SELECT message_id FROM inbox ORDER BY message_id")]

    async def put(self, store: SqliteStore, *names: str) -> list[bool]:
        return await store.inbox.put([InboxMessage(name, "j1", "[]", 1) for name in names])

    async def test_lazy_delete_is_written_by_the_next_write(self, store: SqliteStore, path: Path) -> None:
        await self.put(store, "a", "b")
        with traced(store) as statements:
            await store.inbox.delete(["a"], lazily=True)
        assert (statements, self.on_disk(path)) == ([], ["a", "b"])
        await store.ledger.commit(accept("j1"))
        assert self.on_disk(path) == ["b"]
        await store.inbox.delete(["b"], lazily=True)
        await self.put(store, "c")
        assert self.on_disk(path) == ["c"]

    async def test_delete_is_written_at_once_by_default(self, store: SqliteStore, path: Path) -> None:
        await self.put(store, "a")
        await store.inbox.delete(["a"])
        assert self.on_disk(path) == []

    async def test_lazy_deletes_are_written_on_close_and_beyond_their_limit(self, path: Path) -> None:
        store = open_sqlite(path)
        names = [f"n{n}" for n in range(MAX_LAZY_DELETES + 1)]
        await self.put(store, "a", *names)
        await store.inbox.delete(names, lazily=True)
        assert self.on_disk(path) == ["a"]
        await store.inbox.delete(["a"], lazily=True)
        await store.close()
        assert self.on_disk(path) == []

    async def test_lazy_delete_survives_a_failed_write(self, store: SqliteStore, path: Path) -> None:
        await self.put(store, "a")
        await store.inbox.delete(["a"], lazily=True)
        store.file.connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(LedgerFull):
            await store.inbox.put([InboxMessage("b", "j1", "x" * 1_000_000, 1)])
        store.file.connection.execute("PRAGMA max_page_count = 1000000")
        assert self.on_disk(path) == ["a"]
        assert await self.put(store, "a") == [True]
        assert self.on_disk(path) == ["a"]
        assert await self.put(store, "a", "b") == [False, True]
