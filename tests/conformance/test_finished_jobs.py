"""What every ledger's other door promises (`lucius.ports.archive.FinishedJobs`)."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.adapters.postgres.archive import PostgresFinishedJobs
from lucius.adapters.sqlite.archive import SqliteFinishedJobs
from lucius.core.decision import Decision
from lucius.core.model import Event, JobStatus, OutboxStatus, ReviewItem, ReviewKind, ReviewStatus, StepStatus
from lucius.core.protocol import digest
from lucius.ports.archive import ArchivedJob, FinishedFilter, FinishedJobs, FinishedPage
from lucius.ports.errors import VersionConflict
from lucius.ports.ledger import ReviewFilter
from tests.conformance.builders import PROTOCOL, accept, command, dispatch, ended, protocol, stale_success, step, then
from tests.conformance.conftest import LEDGERS, FullLedger

ENDED_AT = 5_000
EVERY = FinishedFilter(before=1_000_000)
PLENTY = 1_000_000

# One that is gone with its process has nothing to archive.
pytestmark = pytest.mark.parametrize("ledger_url", [name for name in LEDGERS if name != "memory"], indirect=True)


@pytest.fixture
async def jobs(ledger: FullLedger, ledger_url: str) -> AsyncIterator[FinishedJobs]:
    if isinstance(ledger, SqliteLedger):
        yield SqliteFinishedJobs(ledger._store)
    else:
        async with PostgresFinishedJobs.open(ledger_url) as opened:
            yield opened


def ending(before: Decision, at: int = ENDED_AT, status: JobStatus = JobStatus.SUCCEEDED, **fields: Any) -> Decision:
    given = {"active": (), "blocked": None, "due_at": None, "updated_at": at, "completed_at": at, **fields}
    return then(before, status=status, **given)


async def finish(ledger: FullLedger, job_id: str, at: int = ENDED_AT, **fields: Any) -> Decision:
    """A job without steps that has ended."""
    status = fields.pop("status", JobStatus.SUCCEEDED)
    new = accept(job_id, **fields)
    await ledger.commit(new)
    last = ending(new, at, status)
    await ledger.commit(last)
    return last


def review(job_id: str, status: ReviewStatus = ReviewStatus.OPEN) -> ReviewItem:
    return ReviewItem(
        review_id=f"{job_id}~run1",
        job_id=job_id,
        tenant_id="acme",
        request_type="OCR",
        kind=ReviewKind.JOB_FAILED,
        status=status,
        signature="ocr/BROKEN",
        created_at=1_000,
        updated_at=1_000,
    )


async def eventful(ledger: FullLedger, job_id: str) -> ArchivedJob:
    """A job with rows of every kind, as its record should be."""
    first = dispatch(job_id)
    await ledger.commit(first)
    done = step(job_id, status=StepStatus.SUCCEEDED, result={"pages": [1, 2]}, completed_at=ENDED_AT)
    events = (Event(job_id, 3, "STEP_SUCCEEDED", ENDED_AT, "ocr", 1), Event(job_id, 4, "JOB_SUCCEEDED", ENDED_AT))
    attempts, late = (ended(job_id, 1),), (stale_success(job_id, 9),)
    sent = tuple(replace(row, status=OutboxStatus.SENT) for row in first.outbox)
    item = review(job_id, ReviewStatus.RESOLVED)
    last = ending(first, steps=(done,), events=events, attempts=attempts, quarantined=late, outbox=sent, event_seq=4)
    await ledger.commit(replace(last, reviews=(item,)))
    return ArchivedJob(
        format="lucius-job/1",
        jobId=job_id,
        job=last.job,
        steps=[done],
        attempts=list(attempts),
        events=[*first.events, *events],
        quarantined=list(late),
        reviews=[item],
    )


def read(page: FinishedPage) -> list[ArchivedJob]:
    return [msgspec.json.decode(msgspec.json.encode(record), type=ArchivedJob) for record in page.records]


def names(page: FinishedPage) -> list[str]:
    return [record.jobId for record in page.records]


async def found(jobs: FinishedJobs, where: FinishedFilter = EVERY) -> list[str]:
    return names(await jobs.page(where, 0, 100, PLENTY))


async def test_a_finished_job_is_handed_out_whole(ledger: FullLedger, jobs: FinishedJobs) -> None:
    whole = await eventful(ledger, "a")
    other = await eventful(ledger, "b")
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert read(page) == [whole, other]
    assert page.cursor is None


async def test_the_protocols_come_with_the_jobs_each_once(ledger: FullLedger, jobs: FinishedJobs) -> None:
    newer = protocol(version=2)
    await finish(ledger, "a")
    await finish(ledger, "b", pinned=newer)
    await finish(ledger, "c")
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert {name: msgspec.json.decode(body, type=type(newer)) for name, body in page.protocols.items()} == {
        digest(PROTOCOL): PROTOCOL,
        digest(newer): newer,
    }


async def test_jobs_that_are_live_or_ended_later_are_left_alone(ledger: FullLedger, jobs: FinishedJobs) -> None:
    await finish(ledger, "old", at=2_000)
    await finish(ledger, "young", at=3_000)
    await ledger.commit(accept("live"))
    assert await found(jobs, FinishedFilter(before=3_000)) == ["old"]
    assert await found(jobs, FinishedFilter(before=3_001)) == ["old", "young"]
    assert await found(jobs, FinishedFilter(before=900)) == []


async def test_they_are_found_by_tenant_and_by_how_they_ended(ledger: FullLedger, jobs: FinishedJobs) -> None:
    await finish(ledger, "a")
    await finish(ledger, "b", asked=command("b", tenant_id="bolt"))
    await finish(ledger, "c", status=JobStatus.CANCELLED)
    assert await found(jobs, FinishedFilter(before=9_000, tenant_id="bolt")) == ["b"]
    assert await found(jobs, FinishedFilter(before=9_000, status=JobStatus.CANCELLED)) == ["c"]
    assert await found(jobs, FinishedFilter(before=9_000, tenant_id="bolt", status=JobStatus.CANCELLED)) == []


async def test_pages_follow_each_other_without_gap_or_overlap(ledger: FullLedger, jobs: FinishedJobs) -> None:
    wanted = [f"job-{n}" for n in range(7)]
    for n, name in enumerate(wanted):
        await finish(ledger, name, created_at=1_000 + n)
    seen: list[str] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await jobs.page(EVERY, cursor, 3, PLENTY)
        assert len(page.records) <= 3
        seen, cursor = seen + names(page), page.cursor
    assert seen == wanted


async def test_a_page_ends_when_it_is_long_enough_but_holds_one_job(ledger: FullLedger, jobs: FinishedJobs) -> None:
    for n, name in enumerate(("a", "b", "c")):
        long = command(name, payload={"ocr": {"text": "x" * 10_000}})
        await finish(ledger, name, asked=long, created_at=1_000 + n)
    first = await jobs.page(EVERY, 0, 100, 5_000)
    assert names(first) == ["a"]
    assert first.cursor is not None
    assert names(await jobs.page(EVERY, first.cursor, 100, 15_000)) == ["b", "c"]


async def test_a_job_that_somebody_must_look_at_stays(ledger: FullLedger, jobs: FinishedJobs) -> None:
    for name, status in (("open", ReviewStatus.OPEN), ("closed", ReviewStatus.RESOLVED)):
        new = accept(name)
        await ledger.commit(replace(new, reviews=(review(name, status),)))
        await ledger.commit(ending(new, status=JobStatus.FAILED_FINAL))
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert (names(page), page.open_reviews, page.pending_notices) == (["closed"], 1, 0)


async def test_a_job_whose_client_is_still_to_be_told_stays(ledger: FullLedger, jobs: FinishedJobs) -> None:
    first = dispatch("a", service="~webhook")
    await ledger.commit(first)
    waiting = ending(first)
    await ledger.commit(waiting)
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert (names(page), page.open_reviews, page.pending_notices) == ([], 0, 1)
    await ledger.commit(then(waiting, outbox=tuple(replace(row, status=OutboxStatus.SENT) for row in first.outbox)))
    assert await found(jobs) == ["a"]


async def test_pages_of_jobs_that_stay_are_passed_over(ledger: FullLedger, jobs: FinishedJobs) -> None:
    for n in range(5):
        new = accept(f"open-{n}", created_at=1_000 + n)
        await ledger.commit(replace(new, reviews=(review(f"open-{n}"),)))
        await ledger.commit(ending(new))
    await finish(ledger, "last", created_at=2_000)
    first = await jobs.page(EVERY, 0, 5, PLENTY)
    assert (names(first), first.open_reviews) == ([], 5)
    assert first.cursor is not None
    assert names(await jobs.page(EVERY, first.cursor, 5, PLENTY)) == ["last"]


async def test_nothing_is_left_of_a_dropped_job_and_all_of_the_others(ledger: FullLedger, jobs: FinishedJobs) -> None:
    gone, kept = await eventful(ledger, "gone"), await eventful(ledger, "kept")
    assert await jobs.drop({"gone": gone.job.version}) == frozenset()
    assert await ledger.job("gone") is None
    assert await ledger.load("gone", fresh=True) is None
    assert await ledger.events("gone", 0, 100) == []
    assert await ledger.attempts("gone") == []
    assert await ledger.quarantined("gone") == []
    assert [item.job_id for item in (await ledger.reviews(ReviewFilter(status=None), 10, None)).items] == ["kept"]
    assert await ledger.accepted("acme", "sha256:hash-of-gone") is None
    assert await ledger.accepted("acme", "sha256:hash-of-kept") is not None
    assert read(await jobs.page(EVERY, 0, 100, PLENTY)) == [kept]


async def test_no_row_of_any_table_is_left_behind(ledger: FullLedger, jobs: FinishedJobs) -> None:
    for name in ("a", "b"):
        record = await eventful(ledger, name)
        assert await tables_with_rows(ledger) > NOT_OF_JOBS
        assert await jobs.drop({name: record.job.version}) == frozenset()
        assert await tables_with_rows(ledger) <= NOT_OF_JOBS


NOT_OF_JOBS = {"protocols", "protocol_revision", "schema_version", "engine", "door"}


async def tables_with_rows(ledger: FullLedger) -> set[str]:
    found = NOT_OF_JOBS & {"schema_version", "engine", "door"}
    if isinstance(ledger, SqliteLedger):
        names = [name for (name,) in ledger._store.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return found | {name for name in names if ledger._store.row(f"SELECT 1 FROM {name} LIMIT 1")}
    assert isinstance(ledger, PostgresLedger)
    of_schema = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    names = [row["tablename"] for row in await ledger._database.rows(of_schema)]
    return found | {name for name in names if await ledger._database.row(f"SELECT 1 FROM {name} LIMIT 1")}


async def test_what_was_dropped_may_be_asked_for_anew(ledger: FullLedger, jobs: FinishedJobs) -> None:
    last = await finish(ledger, "a")
    await jobs.drop({"a": last.job.version})
    await ledger.commit(accept("b", asked=command("a")))
    holder = await ledger.accepted("acme", "sha256:hash-of-a")
    assert holder is not None
    assert holder.job_id == "b"
    with pytest.raises(VersionConflict):
        await ledger.commit(then(last))


async def test_a_job_that_moved_on_is_not_dropped(ledger: FullLedger, jobs: FinishedJobs) -> None:
    retried, told, same = [await finish(ledger, name) for name in ("retried", "told", "same")]
    await ledger.commit(then(retried, status=JobStatus.DISPATCHING, completed_at=None))
    await ledger.commit(then(told))
    versions = {last.job.job_id: last.job.version for last in (retried, told, same)}
    assert await jobs.drop(versions) == {"retried", "told"}
    assert await ledger.job("retried") is not None
    assert await ledger.job("told") is not None
    assert await ledger.job("same") is None


async def test_dropping_again_comes_to_the_same(ledger: FullLedger, jobs: FinishedJobs) -> None:
    last = await finish(ledger, "a")
    assert await jobs.drop({"a": last.job.version}) == frozenset()
    assert await jobs.drop({"a": last.job.version, "never-there": 1}) == frozenset()
