"""How the PostgreSQL ledger reads: what it must cope with that other stores never see, and at what cost."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.adapters import rows
from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.postgres import queries
from lucius.adapters.postgres.batch import first_id_after
from lucius.adapters.postgres.database import Database
from lucius.core.model import (
    BlockedReason,
    Event,
    JobStatus,
    OutboxStatus,
    ReviewItem,
    ReviewKind,
    ReviewStatus,
    StepStatus,
)
from lucius.ports.errors import LedgerCorrupt, VersionConflict
from lucius.ports.ledger import MOST_TENANTS, Drift, JobFilter, Oldest, PendingQuery, ReviewFilter, StoredEvent
from lucius.service.audit import verify
from tests.conformance.builders import PROTOCOL, accept, dispatch, ended, row, step, then
from tests.conformance.test_ledger import together
from tests.support.postgres import PostgresServer

FINISHED = 100_000
BIG = {"jobs", "done", "steps", "attempts", "events", "reviews", "counters"}
MANY = 400  # rows that any part of a statement may touch
TIMES = 8
INSTANT_IN_2200 = 7_258_118_400_000


@pytest.fixture
async def ledger(emptied_postgres_url: str) -> AsyncIterator[PostgresLedger]:
    opened = await PostgresLedger.open(emptied_postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def database(ledger: PostgresLedger, emptied_postgres_url: str) -> AsyncIterator[Database]:
    """As somebody with a shell."""
    opened = Database(emptied_postgres_url, 1)
    await opened.open()
    yield opened
    await opened.close()


def heartbeats(*numbers: int) -> tuple[Event, ...]:
    return tuple(Event("j1", seq, "HEARTBEAT", seq) for seq in numbers)


class TestEvents:
    @pytest.fixture(autouse=True)
    async def three_rows(self, ledger: PostgresLedger) -> None:
        """Of events 1 and 2, then 3 to 5, then 6."""
        first = dispatch("j1")
        second = then(first, event_seq=5, events=heartbeats(3, 4, 5))
        for decision in (first, second, then(second, event_seq=6, events=heartbeats(6))):
            await ledger.commit(decision)

    @pytest.mark.parametrize("after", range(8))
    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    async def test_a_page_begins_and_ends_anywhere_in_a_row(
        self, ledger: PostgresLedger, after: int, limit: int
    ) -> None:
        wanted = [*range(1, 7)][after : after + limit]
        assert [event.seq for event in await ledger.events("j1", after, limit)] == wanted
        place = StoredEvent(after, None) if after else None
        assert [event.place for event in await ledger.stored_events("j1", place, limit)] == wanted

    async def test_a_number_beyond_all_is_no_error(self, ledger: PostgresLedger) -> None:
        assert await ledger.events("j1", 2**80, 10) == []
        assert len(await ledger.events("j1", -(2**80), 10)) == 6

    @pytest.mark.parametrize("body", ["", "{", "[]", "[1]", "null", '[{"seq": 3}]'])
    async def test_a_row_that_cannot_be_read_stands_for_itself(
        self, ledger: PostgresLedger, database: Database, body: str
    ) -> None:
        await database.rows("UPDATE events SET body = $1 WHERE seq = 3", body)
        for limit in (1, 2, 3, 10):
            assert await self.places(ledger, limit) == [(1, True), (2, True), (3, False), (6, True)]

    async def test_nor_can_one_that_reaches_into_the_next(self, ledger: PostgresLedger, database: Database) -> None:
        """Or an event put in its place would hide it."""
        await database.rows("UPDATE events SET body = $1 WHERE seq = 3", rows.events(heartbeats(3, 4, 5, 6)))
        for limit in (1, 2, 3, 4, 10):
            assert await self.places(ledger, limit) == [(1, True), (2, True), (3, False), (6, True)]

    async def test_whoever_follows_a_job_is_told_that_its_events_are_damaged(
        self, ledger: PostgresLedger, database: Database
    ) -> None:
        await database.rows("UPDATE events SET body = '[' WHERE seq = 3")
        with pytest.raises(LedgerCorrupt):
            await ledger.events("j1", 0, 10)

    async def test_an_audit_finds_each_kind_of_damage(self, ledger: PostgresLedger, database: Database) -> None:
        for change, told in (
            ("DELETE FROM events WHERE seq = 3", "is missing, and so are those up to 5"),
            ("UPDATE events SET seq = -7 WHERE seq = 6", "where no event belongs"),
            ("UPDATE events SET body = '[' WHERE seq = 1", "can't be read"),
        ):
            await database.rows(change)
            found = await verify(ledger, "j1")
            assert found is not None
            assert any(told in broken.what for broken in found.breaks), (change, found.breaks)

    async def places(self, ledger: PostgresLedger, limit: int) -> list[tuple[Any, bool]]:
        """All of them in pages, and whether they can be read."""
        found: list[StoredEvent] = []
        while page := await ledger.stored_events("j1", found[-1] if found else None, limit):
            found += page
        return [(each.place, each.event is not None) for each in found]


class TestWhatCannotBeKept:
    @pytest.mark.parametrize("name", ["nul\x00", "\x00"])
    async def test_it_is_not_found(self, ledger: PostgresLedger, name: str) -> None:
        await ledger.commit(dispatch("j1"))
        assert await ledger.job(name) is None
        assert await ledger.load(name) is None
        assert await ledger.accepted("acme", name) is None
        assert not await ledger.attempts(name)
        assert not await ledger.quarantined(name)
        assert not await ledger.events(name, 0, 10)
        assert not await ledger.stored_events(name, None, 10)
        assert not await ledger.stored_attempts(name, None, 10)
        assert await ledger.review(name) is None
        for where in (
            JobFilter(tenants=frozenset({name})),
            JobFilter(request_type=name),
            JobFilter(blocked_services=frozenset({name})),
        ):
            assert (await ledger.jobs(where, 10, None)).jobs == []
        for asked in (
            ReviewFilter(tenants=frozenset({name})),
            ReviewFilter(signature=name),
            ReviewFilter(job_id=name),
        ):
            assert not (await ledger.reviews(asked, 10, None)).items
            assert not await ledger.review_groups(asked, 10)
        assert await ledger.delete_protocol(name, 1, expected=0) == 1

    async def test_it_excludes_nothing(self, ledger: PostgresLedger) -> None:
        await ledger.commit(dispatch("j1"))
        where = JobFilter(blocked_on=BlockedReason.HANDOVER, except_services=frozenset({"nul\x00"}))
        assert len((await ledger.jobs(where, 10, None)).jobs) == 1

    @pytest.mark.parametrize("instant", [-(10**18), -1, 253_402_300_799_999, 10**30])
    async def test_nor_is_an_instant_outside_of_all_calendars(self, ledger: PostgresLedger, instant: int) -> None:
        first = accept("j1")
        await ledger.commit(first)
        await ledger.commit(then(first, status=JobStatus.SUCCEEDED))
        found = await ledger.jobs(JobFilter(created_after=instant), 10, None)
        assert len(found.jobs) == (instant < 0)


def test_there_are_numbers_for_the_jobs_of_two_centuries() -> None:
    assert first_id_after(INSTANT_IN_2200) < 2**63


class TestDrift:
    async def test_drift_behind_a_long_queue_is_found_by_and_by(
        self, ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queries, "_DRIFTED", queries._DRIFTED.replace(str(queries.DRIFT_WINDOW), "20"))
        await together(ledger, *(dispatch(f"j{n}") for n in range(25)))
        await ledger.commit(replace(dispatch("lost"), outbox=()))
        assert [await ledger.drifted(10) for _ in range(4)] == [[], [Drift("lost", ("ocr",))]] * 2

    async def test_what_did_not_fit_comes_next(self, ledger: PostgresLedger) -> None:
        for n in range(5):
            await ledger.commit(accept(f"j{n}"))
        found = [await ledger.drifted(2) for _ in range(4)]
        assert [[each.job_id for each in page] for page in found] == [["j0", "j1"], ["j2", "j3"], ["j4"], ["j0", "j1"]]


@contextmanager
def explained(server: PostgresServer) -> Iterator[list[dict[str, Any]]]:
    """The plan of every statement that sessions run which begin within, those inside of functions too, with counts."""
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
    plans += [plan for plan in found if "pg_catalog" not in plan["Query Text"]]  # the driver's own questions


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def buffers(plan: dict[str, Any]) -> int:
    """Pages that were looked at: also those with entries of an index that were passed over, which no row counts."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def touched(node: dict[str, Any]) -> int:
    each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int(each * node["Actual Loops"])


async def crowd(url: str, service: str, tenant: str, n: int, later: str = "NULL") -> None:
    """So many rows. What says of which service and tenant each is, and when it comes, may depend on `n`, its number."""
    statement = f"""
        INSERT INTO outbox (job, outbox_id, seq, job_id, tenant_id, step_id, attempt_no, lease_id, service, topic,
                            lane, created_at, next_attempt_at)
        SELECT n, n, n, n, {tenant}, 's', 1, 'l', {service}, 't', 0, n, {later} FROM generate_series(1, $1::int) AS n
    """
    database = Database(url, 1)
    await database.open()
    await database.rows(statement, n)
    await database.close()


async def backlogs(
    server: PostgresServer, url: str, service: str | None
) -> tuple[list[dict[str, Oldest]], list[dict[str, Any]]]:
    """As asked often enough to be planned both for its values and for any, and how each was found."""
    with explained(server) as plans:
        ledger = await PostgresLedger.open(url)
        asked = [await ledger.backlog(5_000, service) for _ in range(TIMES)]
        await ledger.close()
    found = [plan["Plan"] for plan in plans if "older_possible" in plan["Query Text"]]
    assert len(found) == TIMES
    return asked, found


def past() -> list[tuple[Any, ...]]:
    """Statements that make a long one: finished jobs that are all alike, with all that is kept of them."""
    first = dispatch("x")
    last = then(first, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000)
    jobs = """
        INSERT INTO jobs
        SELECT (1000 + n) << 20, 'past-' || n, 'acme', 'OCR', 1000 + n, 'key:' || n, 'hash-' || n, $2
        FROM generate_series(1::bigint, $1) AS n
    """
    done = "INSERT INTO done SELECT id, 3, 'SUCCEEDED', tenant_id, request_type, created_at + 100, $1 FROM jobs"
    reviews = """
        INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body)
        SELECT id::text, job_id, tenant_id, 'JOB_FAILED', 'RESOLVED', 'same/cause', $1 FROM jobs LIMIT 20000
    """
    return [
        (jobs, FINISHED, rows.body(first.job.command)),
        (done, rows.head(last.job)),
        ("INSERT INTO steps SELECT id, 'ocr', 'SUCCEEDED', 'x', $1 FROM done", rows.body(first.steps[0])),
        ("INSERT INTO attempts SELECT id, 'ocr', 1, $1 FROM done", rows.body(ended("x", 1))),
        ("INSERT INTO events SELECT id, 1, $1 FROM done", rows.events(first.events)),
        ("INSERT INTO protocols VALUES ($1, $2)", first.job.protocol_digest, rows.body(PROTOCOL)),
        (reviews, rows.body(review_of("x"))),
        ("INSERT INTO counters SELECT 'jobs/tenant/past-' || n, n % 2 FROM generate_series(1, $1::int) AS n", FINISHED),
    ]


RARE = """
    UPDATE done SET tenant_id = 'tenant-' || (id >> 20) % 10,
        status = CASE (id >> 20) % 2 WHEN 0 THEN 'FAILED_FINAL' ELSE 'SUCCEEDED' END,
        request_type = CASE (id >> 20) % 3 WHEN 0 THEN 'SIS' ELSE 'OCR' END
    WHERE id < 1200::bigint << 20
"""


async def fill(url: str) -> None:
    """With a few jobs that differ, at the far end of which the planner knows nothing."""
    database = Database(url, 1)
    await database.open()
    async with database.transaction() as connection:
        for statement in past():
            await connection.execute(*statement)
    await database.rows("ANALYZE")
    await database.rows(RARE)
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


async def live_a_job(ledger: PostgresLedger, job_id: str) -> None:
    """All that a job of one step costs, and what the engine asks meanwhile."""
    first = replace(dispatch(job_id), reviews=(review_of(job_id),))
    await ledger.commit(first)
    await ledger.pending(PendingQuery(limit=10, now=5_000, service="ocr", hold_ms=10))
    await ledger.pending(PendingQuery(limit=10, now=5_000, hold_ms=10))
    await ledger.pending(PendingQuery(limit=10, now=5_000, claimed=True))
    working = step(job_id, status=StepStatus.PROCESSING)
    second = then(first, due_at=5, outbox=(row(first.steps[0], status=OutboxStatus.SENT),), steps=(working,))
    await ledger.commit(second)
    await ledger.due(5, 10, hold_ms=10)
    await ledger.drifted(10)
    await ledger.load(job_id, ["ocr"], fresh=True)
    await ledger.accepted("acme", f"sha256:hash-of-{job_id}")
    last = then(second, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000, events=heartbeats(3), event_seq=3)
    await ledger.commit(last)
    with pytest.raises(VersionConflict):
        await ledger.commit(last)


async def ask_everything(ledger: PostgresLedger) -> None:
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
    ):
        await ledger.jobs(where, 10, None)
    for asked in (
        ReviewFilter(),
        ReviewFilter(status=None, kind=ReviewKind.JOB_FAILED),
        ReviewFilter(tenants=tenants),
        ReviewFilter(tenants=frozenset({"nobody"}), status=None),
        ReviewFilter(job_id="past-7", status=None),
    ):
        await ledger.reviews(asked, 10, None)
    await ledger.review_groups(ReviewFilter(), 10)
    await ledger.review("past-7~run1")
    await ledger.open_reviews()
    await ledger.job("past-7")
    await ledger.events("past-7", 1, 10)
    await ledger.stored_events("past-7", None, 10)
    await ledger.stored_attempts("past-7", None, 10)
    await ledger.attempts("past-7")
    await ledger.quarantined("past-7")
    await ledger.counters("jobs", "unacked/", "pending/")
    await ledger.counters("jobs/tenant/past-7", "unacked/ocr", "pending/ocr/")
    await ledger.backlog(5_000)
    await ledger.backlog(5_000, "ocr")


class TestCosts:
    async def test_nothing_is_answered_by_reading_what_is_finished(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        """Each statement often enough to be planned both for its values and for any."""
        await fill(postgres_url)
        with explained(postgres) as plans:
            ledger = await PostgresLedger.open(postgres_url)
            for n in range(TIMES):
                await live_a_job(ledger, f"new-{n}")
                await ask_everything(ledger)
            await ledger.close()
        assert len({plan["Query Text"] for plan in plans}) > 50
        for plan in plans:
            for node in nodes(plan["Plan"]):
                scanned = node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG
                assert not scanned, (node, plan["Query Text"])
                assert touched(node) <= MANY, (node, plan["Query Text"])

    async def test_a_services_backlog_is_told_without_a_look_at_the_others(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        services, later = "CASE n % 2 WHEN 0 THEN 'a' ELSE 'z' || n END", "CASE n % 4 WHEN 1 THEN 1 END"
        await crowd(postgres_url, services, "'tenant-' || n", 4 * MANY, later)
        ledger = await PostgresLedger.open(postgres_url)
        await ledger.commit(dispatch("j1", created_at=7))
        await ledger.close()
        asked, found = await backlogs(postgres, postgres_url, "ocr")
        assert asked == [{"ocr": Oldest(7)}] * TIMES
        assert max(touched(node) for plan in found for node in nodes(plan)) <= 2

    @pytest.mark.parametrize("service", ["ocr", None])
    async def test_nor_at_more_than_so_many_tenants_of_its_own(
        self, postgres: PostgresServer, postgres_url: str, service: str | None
    ) -> None:
        """And it says so. A hop is a way down one index, and a row."""
        await crowd(postgres_url, "'ocr'", "'tenant-' || 9999 - n", 4 * MOST_TENANTS)
        asked, found = await backlogs(postgres, postgres_url, service)
        assert max(map(buffers, found)) < 5 * MOST_TENANTS
        assert max(touched(node) for plan in found for node in nodes(plan)) <= MOST_TENANTS
        newest_first = 3 * MOST_TENANTS + 1
        assert asked == [{"ocr": Oldest(newest_first, older_possible=True)}] * TIMES

    @pytest.mark.parametrize("service", ["ocr", None])
    async def test_nor_at_the_rows_behind_each_tenants_first(
        self, postgres: PostgresServer, postgres_url: str, service: str | None
    ) -> None:
        await crowd(postgres_url, "'ocr'", "'tenant-' || n % 3", FINISHED // 2)
        asked, found = await backlogs(postgres, postgres_url, service)
        assert asked == [{"ocr": Oldest(1)}] * TIMES
        assert max(map(buffers, found)) < 50

    @pytest.mark.parametrize(
        "where", [JobFilter(), JobFilter(tenants=frozenset({"acme"})), JobFilter(request_type="OCR")]
    )
    async def test_a_page_is_one_statement(
        self, ledger: PostgresLedger, where: JobFilter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(5):
            await ledger.commit(accept(f"j{n}"))
        asked: list[str] = []
        ask = ledger._database.rows

        async def rows(sql: str, *values: Any) -> Any:
            asked.append(sql)
            return await ask(sql, *values)

        monkeypatch.setattr(ledger._database, "rows", rows)
        monkeypatch.setattr(ledger._database, "row", None)
        assert len((await ledger.jobs(where, 3, None)).jobs) == 3
        assert len(asked) == 1
