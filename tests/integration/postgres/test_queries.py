"""Reads of the PostgreSQL ledger: cases that other stores never see, and their cost."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres import ledger
from lucius.adapters.ledger.postgres.batch import first_id_after
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.store import PostgresStore, open_postgres
from lucius.core.model.records import Event, ReviewItem
from lucius.core.model.statuses import BlockedReason, JobStatus, OutboxStatus, ReviewKind, ReviewStatus, StepStatus
from lucius.ports.errors import LedgerCorrupt, VersionConflict
from lucius.ports.ledger import Drift
from lucius.ports.outbox import PendingQuery
from lucius.ports.readers import MAX_TENANTS, JobFilter, Oldest, ReviewFilter, StoredEvent
from lucius.usecases.queries.audit import verify
from tests.conformance.builders import PROTOCOL, accept, dispatch, ended, row, step, then
from tests.conformance.test_ledger import together
from tests.support.postgres import PostgresServer

FINISHED = 100_000
BIG = {"jobs", "done", "steps", "attempts", "events", "reviews", "counters"}
MANY = 400  # rows that any part of a statement may touch
TIMES = 8
INSTANT_IN_2200 = 7_258_118_400_000


@pytest.fixture
async def store(emptied_postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(emptied_postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def database(store: PostgresStore, emptied_postgres_url: str) -> AsyncIterator[Database]:
    """Yield a separate connection, as from a shell."""
    opened = Database(emptied_postgres_url, 1)
    await opened.open()
    yield opened
    await opened.close()


def heartbeats(*numbers: int) -> tuple[Event, ...]:
    return tuple(Event("j1", seq, "HEARTBEAT", seq) for seq in numbers)


class TestEvents:
    @pytest.fixture(autouse=True)
    async def three_rows(self, store: PostgresStore) -> None:
        """Store three rows of events: 1 and 2, then 3 to 5, then 6."""
        first = dispatch("j1")
        second = then(first, event_seq=5, events=heartbeats(3, 4, 5))
        for decision in (first, second, then(second, event_seq=6, events=heartbeats(6))):
            await store.ledger.commit(decision)

    @pytest.mark.parametrize("after", range(8))
    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    async def test_page_can_begin_and_end_anywhere_in_a_row(self, store: PostgresStore, after: int, limit: int) -> None:
        wanted = [*range(1, 7)][after : after + limit]
        assert [event.seq for event in await store.history.events("j1", after, limit)] == wanted
        place = StoredEvent(after, None) if after else None
        assert [event.place for event in await store.history.stored_events("j1", place, limit)] == wanted

    async def test_event_number_out_of_range_is_no_error(self, store: PostgresStore) -> None:
        assert await store.history.events("j1", 2**80, 10) == []
        assert len(await store.history.events("j1", -(2**80), 10)) == 6

    @pytest.mark.parametrize("body", ["", "{", "[]", "[1]", "null", '[{"seq": 3}]'])
    async def test_unreadable_row_is_returned_as_one_unreadable_event(
        self, store: PostgresStore, database: Database, body: str
    ) -> None:
        await database.fetch_rows("UPDATE events SET body = $1 WHERE seq = 3", body)
        for limit in (1, 2, 3, 10):
            assert await self.places(store, limit) == [(1, True), (2, True), (3, False), (6, True)]

    async def test_row_that_overlaps_the_next_is_returned_as_unreadable(
        self, store: PostgresStore, database: Database
    ) -> None:
        """Otherwise an event put in its place would hide it."""
        await database.fetch_rows(
            "UPDATE events SET body = $1 WHERE seq = 3", record_codec.events(heartbeats(3, 4, 5, 6))
        )
        for limit in (1, 2, 3, 4, 10):
            assert await self.places(store, limit) == [(1, True), (2, True), (3, False), (6, True)]

    async def test_reading_damaged_events_raises_ledger_corrupt(self, store: PostgresStore, database: Database) -> None:
        await database.fetch_rows("UPDATE events SET body = '[' WHERE seq = 3")
        with pytest.raises(LedgerCorrupt):
            await store.history.events("j1", 0, 10)

    async def test_audit_finds_each_kind_of_damage(self, store: PostgresStore, database: Database) -> None:
        for change, told in (
            ("DELETE FROM events WHERE seq = 3", "is missing, and so are those up to 5"),
            ("UPDATE events SET seq = -7 WHERE seq = 6", "where no event belongs"),
            ("UPDATE events SET body = '[' WHERE seq = 1", "can't be read"),
        ):
            await database.fetch_rows(change)
            found = await verify(store.jobs, store.history, "j1")
            assert found is not None
            assert any(told in broken.what for broken in found.breaks), (change, found.breaks)

    async def places(self, store: PostgresStore, limit: int) -> list[tuple[Any, bool]]:
        """Return all events page by page: their places, and whether they can be read."""
        found: list[StoredEvent] = []
        while page := await store.history.stored_events("j1", found[-1] if found else None, limit):
            found += page
        return [(each.place, each.event is not None) for each in found]


class TestImpossibleValues:
    @pytest.mark.parametrize("name", ["nul\x00", "\x00"])
    async def test_name_with_a_nul_byte_is_not_found(self, store: PostgresStore, name: str) -> None:
        await store.ledger.commit(dispatch("j1"))
        assert await store.jobs.job(name) is None
        assert await store.ledger.load(name) is None
        assert await store.ledger.accepted("acme", name) is None
        found = await store.ledger.load("j1", [name], fresh=True)
        assert found is not None
        assert name not in found.steps
        assert not await store.history.attempts(name)
        assert not await store.history.quarantined(name)
        assert not await store.history.events(name, 0, 10)
        assert not await store.history.stored_events(name, None, 10)
        assert not await store.history.stored_attempts(name, None, 10)
        assert await store.reviews.review(name) is None
        for where in (
            JobFilter(tenants=frozenset({name})),
            JobFilter(request_type=name),
            JobFilter(blocked_services=frozenset({name})),
        ):
            assert (await store.jobs.jobs(where, 10, None)).jobs == []
        for asked in (
            ReviewFilter(tenants=frozenset({name})),
            ReviewFilter(signature=name),
            ReviewFilter(job_id=name),
        ):
            assert not (await store.reviews.reviews(asked, 10, None)).items
            assert not await store.reviews.review_groups(asked, 10)
        assert await store.protocols.delete_protocol(name, 1, expected=0) == 1

    async def test_excluded_service_with_a_nul_byte_excludes_nothing(self, store: PostgresStore) -> None:
        await store.ledger.commit(dispatch("j1"))
        where = JobFilter(blocked_on=BlockedReason.HANDOVER, except_services=frozenset({"nul\x00"}))
        assert len((await store.jobs.jobs(where, 10, None)).jobs) == 1

    @pytest.mark.parametrize("instant", [-(10**18), -1, 253_402_300_799_999, 10**30])
    async def test_instant_outside_the_calendar_is_a_valid_filter(self, store: PostgresStore, instant: int) -> None:
        first = accept("j1")
        await store.ledger.commit(first)
        await store.ledger.commit(then(first, status=JobStatus.SUCCEEDED))
        found = await store.jobs.jobs(JobFilter(created_after=instant), 10, None)
        assert len(found.jobs) == (instant < 0)


def test_job_numbers_suffice_until_2200() -> None:
    assert first_id_after(INSTANT_IN_2200) < 2**63


class TestDrift:
    async def test_drift_behind_a_long_queue_is_found_by_later_calls(
        self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger, "_DRIFTED", ledger._DRIFTED.replace(str(ledger.DRIFT_BATCH_JOBS), "20"))
        await together(store, *(dispatch(f"j{n}") for n in range(25)))
        await store.ledger.commit(replace(dispatch("lost"), outbox=()))
        assert [await store.ledger.drifted(10) for _ in range(4)] == [[], [Drift("lost", ("ocr",))]] * 2

    async def test_drift_beyond_the_limit_is_found_by_the_next_call(self, store: PostgresStore) -> None:
        for n in range(5):
            await store.ledger.commit(accept(f"j{n}"))
        found = [await store.ledger.drifted(2) for _ in range(4)]
        assert [[each.job_id for each in page] for page in found] == [["j0", "j1"], ["j2", "j3"], ["j4"], ["j0", "j1"]]


@contextmanager
def explained(server: PostgresServer) -> Iterator[list[dict[str, Any]]]:
    """Yield the plans, with counts, of all statements (also inside functions) of sessions that start meanwhile."""
    wanted = {
        "session_preload_libraries": "auto_explain",
        "auto_explain.log_min_duration": "0",
        "auto_explain.log_nested_statements": "on",
        "auto_explain.log_analyze": "on",
        "auto_explain.log_timing": "off",
        "auto_explain.log_buffers": "on",
        "auto_explain.log_format": "json",
    }
    start = server.log.stat().st_size
    plans: list[dict[str, Any]] = []
    server.execute("; ".join(f"ALTER ROLE lucius SET {name} = '{value}'" for name, value in wanted.items()))
    try:
        yield plans
    finally:
        server.execute("ALTER ROLE lucius RESET ALL")
    written = server.log.read_bytes()[start:].decode()
    found = [json.loads(text) for text in re.findall(r"plan:\n((?:\t.*\n)+)", written)]
    plans += [plan for plan in found if "pg_catalog" not in plan["Query Text"]]  # the driver's own queries


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def buffers(plan: dict[str, Any]) -> int:
    """Return the pages read, including those with skipped index entries, which no row count shows."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def touched(node: dict[str, Any]) -> int:
    each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int(each * node["Actual Loops"])


async def insert_outbox_rows(url: str, service: str, tenant: str, n: int, later: str = "NULL") -> None:
    """Insert `n` rows. The expressions for service, tenant and due time may use `n`, the number of the row."""
    statement = f"""
        INSERT INTO outbox (job, outbox_id, seq, job_id, tenant_id, step_id, attempt_no, lease_id, service, topic,
                            lane, created_at, next_attempt_at)
        SELECT n, n, n, n, {tenant}, 's', 1, 'l', {service}, 't', 0, n, {later} FROM generate_series(1, $1::int) AS n
    """
    database = Database(url, 1)
    await database.open()
    await database.fetch_rows(statement, n)
    await database.close()


async def backlogs(
    server: PostgresServer, url: str, service: str | None
) -> tuple[list[dict[str, Oldest]], list[dict[str, Any]]]:
    """Query often enough for both custom and generic plans; return the answers and the plan of each."""
    with explained(server) as plans:
        store = await open_postgres(url)
        asked = [await store.jobs.backlog(5_000, service) for _ in range(TIMES)]
        await store.close()
    found = [plan["Plan"] for plan in plans if "older_possible" in plan["Query Text"]]
    assert len(found) == TIMES
    return asked, found


def history_statements() -> list[tuple[Any, ...]]:
    """Return statements that create a long history: identical finished jobs with all their records."""
    first = dispatch("x")
    last = then(first, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000)
    jobs = """
        INSERT INTO jobs
        SELECT (1000 + n) << 20, 'past-' || n, 'acme', 'OCR', 1000 + n, 'key:' || n, 'hash-' || n, $2,
               'doc-' || n % 10, 'same', 'contract/' || n % 3
        FROM generate_series(1::bigint, $1) AS n
    """
    done = """
        INSERT INTO done SELECT id, 3, 'SUCCEEDED', tenant_id, request_type, created_at + 100, $1, 'E' || (id >> 20) % 2
        FROM jobs
    """
    reviews = """
        INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body)
        SELECT id::text, job_id, tenant_id, 'JOB_FAILED', 'RESOLVED', 'same/cause', $1 FROM jobs LIMIT 20000
    """
    return [
        (jobs, FINISHED, record_codec.body(first.job.command)),
        (done, record_codec.head(last.job)),
        ("INSERT INTO steps SELECT id, 'ocr', 'SUCCEEDED', 'x', $1 FROM done", record_codec.body(first.steps[0])),
        ("INSERT INTO attempts SELECT id, 'ocr', 1, $1 FROM done", record_codec.body(ended("x", 1))),
        ("INSERT INTO events SELECT id, 1, $1 FROM done", record_codec.events(first.events)),
        ("INSERT INTO protocols VALUES ($1, $2)", first.job.protocol_digest, record_codec.body(PROTOCOL)),
        (reviews, record_codec.body(review_of("x"))),
        ("INSERT INTO counters SELECT 'jobs/tenant/past-' || n, n % 2 FROM generate_series(1, $1::int) AS n", FINISHED),
    ]


RARE = """
    UPDATE done SET tenant_id = 'tenant-' || (id >> 20) % 10,
        status = CASE (id >> 20) % 2 WHEN 0 THEN 'FAILED_FINAL' ELSE 'SUCCEEDED' END,
        request_type = CASE (id >> 20) % 3 WHEN 0 THEN 'SIS' ELSE 'OCR' END
    WHERE id < 1200::bigint << 20
"""


async def insert_history(url: str) -> None:
    """Add a long history and a few different jobs at its far end, where the planner has no statistics."""
    database = Database(url, 1)
    await database.open()
    async with database.transaction() as connection:
        for statement in history_statements():
            await connection.execute(*statement)
    await database.fetch_rows("ANALYZE")
    await database.fetch_rows(RARE)
    await database.close()


def review_of(job_id: str) -> ReviewItem:
    return ReviewItem(
        review_id=f"{job_id}~run1",
        job_id=job_id,
        tenant_id="acme",
        request_type="OCR",
        kind=ReviewKind.JOB_FAILED,
        status=ReviewStatus.OPEN,
        signature="other/cause",
        created_at=1_000,
        updated_at=1_000,
    )


async def run_one_job(store: PostgresStore, job_id: str) -> None:
    """Run a job of one step through all its statements, with the engine's queries meanwhile."""
    first = replace(dispatch(job_id), reviews=(review_of(job_id),))
    await store.ledger.commit(first)
    await store.outbox.pending(PendingQuery(limit=10, now=5_000, service="ocr", hold_ms=10))
    await store.outbox.pending(PendingQuery(limit=10, now=5_000, hold_ms=10))
    await store.outbox.pending(PendingQuery(limit=10, now=5_000, claimed=True))
    working = step(job_id, status=StepStatus.PROCESSING)
    second = then(first, due_at=5, outbox=(row(first.steps[0], status=OutboxStatus.SENT),), steps=(working,))
    await store.ledger.commit(second)
    await store.ledger.due(5, 10, hold_ms=10)
    await store.ledger.drifted(10)
    await store.ledger.load(job_id, ["ocr"], fresh=True)
    await store.ledger.accepted("acme", f"sha256:hash-of-{job_id}")
    last = then(second, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000, events=heartbeats(3), event_seq=3)
    await store.ledger.commit(last)
    with pytest.raises(VersionConflict):
        await store.ledger.commit(last)


async def run_every_query(store: PostgresStore) -> None:
    tenants = frozenset({"tenant-3", "tenant-7"})
    for where in (
        JobFilter(),
        JobFilter(created_after=50_000),
        JobFilter(tenants=tenants),
        JobFilter(tenants=frozenset({"nobody"})),
        JobFilter(tenants=tenants, status=JobStatus.FAILED_FINAL),
        JobFilter(tenants=tenants, request_type="SIS", created_after=50_000),
        JobFilter(status=JobStatus.SUCCEEDED),
        JobFilter(status=JobStatus.CANCELLED),
        JobFilter(status=JobStatus.QUEUED),
        JobFilter(request_type="RARE"),
        JobFilter(request_type="SIS", status=JobStatus.FAILED_FINAL, created_after=1),
        JobFilter(blocked_on=BlockedReason.HANDOVER),
        JobFilter(blocked_services=frozenset({"ocr"}), tenants=tenants),
        JobFilter(doc_id="doc-7"),
        JobFilter(doc_id="doc-7", status=JobStatus.SUCCEEDED, tenants=frozenset({"acme"})),
        JobFilter(doc_id="unknown"),
        JobFilter(correlation_id="same"),
        JobFilter(correlation_id="past-7"),
        JobFilter(target="contract/2", created_after=50_000),
        JobFilter(error_code="E1"),
        JobFilter(error_code="E1", completed_before=3_000),
        JobFilter(error_code="E9"),
        JobFilter(completed_after=50_000),
        JobFilter(completed_before=50_000),
        JobFilter(completed_after=50_000, completed_before=60_000, tenants=frozenset({"acme"})),
        JobFilter(completed_before=3_000, status=JobStatus.SUCCEEDED, request_type="OCR"),
    ):
        await store.jobs.jobs(where, 10, None)
    for asked in (
        ReviewFilter(),
        ReviewFilter(status=None, kind=ReviewKind.JOB_FAILED),
        ReviewFilter(tenants=tenants),
        ReviewFilter(tenants=frozenset({"nobody"}), status=None),
        ReviewFilter(job_id="past-7", status=None),
    ):
        await store.reviews.reviews(asked, 10, None)
    await store.reviews.review_groups(ReviewFilter(), 10)
    await store.reviews.review("past-7~run1")
    await store.reviews.open_reviews()
    await store.jobs.job("past-7")
    await store.history.events("past-7", 1, 10)
    await store.history.stored_events("past-7", None, 10)
    await store.history.stored_attempts("past-7", None, 10)
    await store.history.attempts("past-7")
    await store.history.quarantined("past-7")
    await store.jobs.counters("jobs", "unacked/", "pending/")
    await store.jobs.counters("jobs/tenant/past-7", "unacked/ocr", "pending/ocr/")
    await store.jobs.backlog(5_000)
    await store.jobs.backlog(5_000, "ocr")


class TestCosts:
    async def test_no_statement_reads_the_finished_jobs(self, postgres: PostgresServer, postgres_url: str) -> None:
        """Each statement runs often enough for both custom and generic plans."""
        await insert_history(postgres_url)
        with explained(postgres) as plans:
            store = await open_postgres(postgres_url)
            for n in range(TIMES):
                await run_one_job(store, f"new-{n}")
                await run_every_query(store)
            await store.close()
        assert len({plan["Query Text"] for plan in plans}) > 50
        for plan in plans:
            for node in nodes(plan["Plan"]):
                scanned = node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG
                assert not scanned, (node, plan["Query Text"])
                assert touched(node) <= MANY, (node, plan["Query Text"])

    async def test_backlog_of_a_service_does_not_read_rows_of_other_services(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        services, later = "CASE n % 2 WHEN 0 THEN 'a' ELSE 'z' || n END", "CASE n % 4 WHEN 1 THEN 1 END"
        await insert_outbox_rows(postgres_url, services, "'tenant-' || n", 4 * MANY, later)
        store = await open_postgres(postgres_url)
        await store.ledger.commit(dispatch("j1", created_at=7))
        await store.close()
        asked, found = await backlogs(postgres, postgres_url, "ocr")
        assert asked == [{"ocr": Oldest(7)}] * TIMES
        assert max(touched(node) for plan in found for node in nodes(plan)) <= 2

    @pytest.mark.parametrize("service", ["ocr", None])
    async def test_backlog_reads_a_bounded_number_of_tenants(
        self, postgres: PostgresServer, postgres_url: str, service: str | None
    ) -> None:
        """The answer says so by `older_possible`. A hop is one index descent and a row."""
        await insert_outbox_rows(postgres_url, "'ocr'", "'tenant-' || 9999 - n", 4 * MAX_TENANTS)
        asked, found = await backlogs(postgres, postgres_url, service)
        assert max(map(buffers, found)) < 5 * MAX_TENANTS
        assert max(touched(node) for plan in found for node in nodes(plan)) <= MAX_TENANTS
        newest_first = 3 * MAX_TENANTS + 1
        assert asked == [{"ocr": Oldest(newest_first, older_possible=True)}] * TIMES

    @pytest.mark.parametrize("service", ["ocr", None])
    async def test_backlog_reads_only_the_first_row_of_each_tenant(
        self, postgres: PostgresServer, postgres_url: str, service: str | None
    ) -> None:
        await insert_outbox_rows(postgres_url, "'ocr'", "'tenant-' || n % 3", FINISHED // 2)
        asked, found = await backlogs(postgres, postgres_url, service)
        assert asked == [{"ocr": Oldest(1)}] * TIMES
        assert max(map(buffers, found)) < 50

    @pytest.mark.parametrize(
        "where", [JobFilter(), JobFilter(tenants=frozenset({"acme"})), JobFilter(request_type="OCR")]
    )
    async def test_page_of_jobs_is_one_statement(
        self, store: PostgresStore, where: JobFilter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(5):
            await store.ledger.commit(accept(f"j{n}"))
        asked: list[str] = []
        ask = store.database.fetch_rows

        async def rows(sql: str, *values: Any) -> Any:
            asked.append(sql)
            return await ask(sql, *values)

        monkeypatch.setattr(store.database, "fetch_rows", rows)
        monkeypatch.setattr(store.database, "fetch_row", None)
        assert len((await store.jobs.jobs(where, 3, None)).jobs) == 3
        assert len(asked) == 1
