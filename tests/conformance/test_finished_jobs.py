"""Guarantees of every ledger for finished jobs (`lucius.ports.archive.FinishedJobs`)."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lucius.adapters.ledger.postgres.archive import PostgresFinishedJobs
from lucius.adapters.ledger.postgres.store import PostgresStore
from lucius.adapters.ledger.sqlite.archive import SqliteFinishedJobs
from lucius.adapters.ledger.sqlite.store import SqliteStore
from lucius.core.model.decision import Decision
from lucius.core.model.records import Event, ReviewItem
from lucius.core.model.statuses import JobStatus, OutboxStatus, ReviewKind, ReviewStatus, StepStatus
from lucius.core.protocol.definition import digest
from lucius.ports.archive import ArchivedJob, FinishedFilter, FinishedJobs, FinishedPage
from lucius.ports.errors import VersionConflict
from lucius.ports.readers import ReviewFilter
from lucius.ports.store import Store
from tests.conformance.builders import PROTOCOL, accept, command, dispatch, ended, protocol, stale_success, step, then
from tests.conformance.conftest import STORES

ENDED_AT = 5_000
EVERY = FinishedFilter(before=1_000_000)
PLENTY = 1_000_000

# The memory ledger ends with its process and has nothing to archive.
pytestmark = pytest.mark.parametrize("ledger_url", [name for name in STORES if name != "memory"], indirect=True)


@pytest.fixture
async def jobs(store: Store, ledger_url: str) -> AsyncIterator[FinishedJobs]:
    if isinstance(store, SqliteStore):
        yield SqliteFinishedJobs(store.file)
    else:
        async with PostgresFinishedJobs.open(ledger_url) as opened:
            yield opened


def ending(before: Decision, at: int = ENDED_AT, status: JobStatus = JobStatus.SUCCEEDED, **fields: Any) -> Decision:
    given = {"active": (), "blocked": None, "due_at": None, "updated_at": at, "completed_at": at, **fields}
    return then(before, status=status, **given)


async def finish(store: Store, job_id: str, at: int = ENDED_AT, **fields: Any) -> Decision:
    """Commit a finished job without steps; return its last decision."""
    status = fields.pop("status", JobStatus.SUCCEEDED)
    new = accept(job_id, **fields)
    await store.ledger.commit(new)
    last = ending(new, at, status)
    await store.ledger.commit(last)
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


async def eventful(store: Store, job_id: str) -> ArchivedJob:
    """Commit a job with rows of every kind; return the expected archive record."""
    first = dispatch(job_id)
    await store.ledger.commit(first)
    done = step(job_id, status=StepStatus.SUCCEEDED, result={"pages": [1, 2]}, completed_at=ENDED_AT)
    events = (Event(job_id, 3, "STEP_SUCCEEDED", ENDED_AT, "ocr", 1), Event(job_id, 4, "JOB_SUCCEEDED", ENDED_AT))
    attempts, late = (ended(job_id, 1),), (stale_success(job_id, 9),)
    sent = tuple(replace(row, status=OutboxStatus.SENT) for row in first.outbox)
    item = review(job_id, ReviewStatus.RESOLVED)
    last = ending(first, steps=(done,), events=events, attempts=attempts, quarantined=late, outbox=sent, event_seq=4)
    await store.ledger.commit(replace(last, reviews=(item,)))
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


async def test_finished_job_is_returned_with_all_its_records(store: Store, jobs: FinishedJobs) -> None:
    whole = await eventful(store, "a")
    other = await eventful(store, "b")
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert read(page) == [whole, other]
    assert page.cursor is None


async def test_each_protocol_of_a_page_is_returned_once(store: Store, jobs: FinishedJobs) -> None:
    newer = protocol(version=2)
    await finish(store, "a")
    await finish(store, "b", pinned=newer)
    await finish(store, "c")
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert {name: msgspec.json.decode(body, type=type(newer)) for name, body in page.protocols.items()} == {
        digest(PROTOCOL): PROTOCOL,
        digest(newer): newer,
    }


async def test_jobs_that_are_live_or_ended_later_are_left_alone(store: Store, jobs: FinishedJobs) -> None:
    await finish(store, "old", at=2_000)
    await finish(store, "young", at=3_000)
    await store.ledger.commit(accept("live"))
    assert await found(jobs, FinishedFilter(before=3_000)) == ["old"]
    assert await found(jobs, FinishedFilter(before=3_001)) == ["old", "young"]
    assert await found(jobs, FinishedFilter(before=900)) == []


async def test_finished_jobs_are_found_by_tenant_and_status(store: Store, jobs: FinishedJobs) -> None:
    await finish(store, "a")
    await finish(store, "b", asked=command("b", tenant_id="bolt"))
    await finish(store, "c", status=JobStatus.CANCELLED)
    assert await found(jobs, FinishedFilter(before=9_000, tenant_id="bolt")) == ["b"]
    assert await found(jobs, FinishedFilter(before=9_000, status=JobStatus.CANCELLED)) == ["c"]
    assert await found(jobs, FinishedFilter(before=9_000, tenant_id="bolt", status=JobStatus.CANCELLED)) == []


async def test_pages_of_finished_jobs_join_without_gap_or_overlap(store: Store, jobs: FinishedJobs) -> None:
    wanted = [f"job-{n}" for n in range(7)]
    for n, name in enumerate(wanted):
        await finish(store, name, created_at=1_000 + n)
    seen: list[str] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await jobs.page(EVERY, cursor, 3, PLENTY)
        assert len(page.records) <= 3
        seen, cursor = seen + names(page), page.cursor
    assert seen == wanted


async def test_page_is_limited_by_size_but_holds_at_least_one_job(store: Store, jobs: FinishedJobs) -> None:
    for n, name in enumerate(("a", "b", "c")):
        long = command(name, payload={"ocr": {"text": "x" * 10_000}})
        await finish(store, name, asked=long, created_at=1_000 + n)
    first = await jobs.page(EVERY, 0, 100, 5_000)
    assert names(first) == ["a"]
    assert first.cursor is not None
    assert names(await jobs.page(EVERY, first.cursor, 100, 15_000)) == ["b", "c"]


async def test_job_with_an_open_review_item_is_not_listed(store: Store, jobs: FinishedJobs) -> None:
    for name, status in (("open", ReviewStatus.OPEN), ("closed", ReviewStatus.RESOLVED)):
        new = accept(name)
        await store.ledger.commit(replace(new, reviews=(review(name, status),)))
        await store.ledger.commit(ending(new, status=JobStatus.FAILED_FINAL))
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert (names(page), page.open_reviews, page.pending_webhooks) == (["closed"], 1, 0)


async def test_job_with_a_pending_webhook_is_not_listed(store: Store, jobs: FinishedJobs) -> None:
    first = dispatch("a", service="~webhook")
    await store.ledger.commit(first)
    waiting = ending(first)
    await store.ledger.commit(waiting)
    page = await jobs.page(EVERY, 0, 100, PLENTY)
    assert (names(page), page.open_reviews, page.pending_webhooks) == ([], 0, 1)
    await store.ledger.commit(
        then(waiting, outbox=tuple(replace(row, status=OutboxStatus.SENT) for row in first.outbox))
    )
    assert await found(jobs) == ["a"]


async def test_page_of_unlisted_jobs_is_empty_with_a_cursor(store: Store, jobs: FinishedJobs) -> None:
    for n in range(5):
        new = accept(f"open-{n}", created_at=1_000 + n)
        await store.ledger.commit(replace(new, reviews=(review(f"open-{n}"),)))
        await store.ledger.commit(ending(new))
    await finish(store, "last", created_at=2_000)
    first = await jobs.page(EVERY, 0, 5, PLENTY)
    assert (names(first), first.open_reviews) == ([], 5)
    assert first.cursor is not None
    assert names(await jobs.page(EVERY, first.cursor, 5, PLENTY)) == ["last"]


async def test_dropped_job_is_deleted_completely_and_other_jobs_stay(store: Store, jobs: FinishedJobs) -> None:
    gone, kept = await eventful(store, "gone"), await eventful(store, "kept")
    assert await jobs.drop({"gone": gone.job.version}) == frozenset()
    assert await store.jobs.job("gone") is None
    assert await store.ledger.load("gone", fresh=True) is None
    assert await store.history.events("gone", 0, 100) == []
    assert await store.history.attempts("gone") == []
    assert await store.history.quarantined("gone") == []
    assert [item.job_id for item in (await store.reviews.reviews(ReviewFilter(status=None), 10, None)).items] == [
        "kept"
    ]
    assert await store.ledger.accepted("acme", "sha256:hash-of-gone") is None
    assert await store.ledger.accepted("acme", "sha256:hash-of-kept") is not None
    assert read(await jobs.page(EVERY, 0, 100, PLENTY)) == [kept]


async def test_drop_leaves_no_row_in_any_table(store: Store, jobs: FinishedJobs) -> None:
    for name in ("a", "b"):
        record = await eventful(store, name)
        assert await tables_with_rows(store) > NOT_OF_JOBS
        assert await jobs.drop({name: record.job.version}) == frozenset()
        assert await tables_with_rows(store) <= NOT_OF_JOBS


NOT_OF_JOBS = {"protocols", "protocol_revision", "ledger_versions", "engine", "callback_availability"}


async def tables_with_rows(store: Store) -> set[str]:
    found = NOT_OF_JOBS & {"ledger_versions", "engine", "callback_availability"}
    if isinstance(store, SqliteStore):
        names = [name for (name,) in store.file.fetch_rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return found | {name for name in names if store.file.fetch_row(f"SELECT 1 FROM {name} LIMIT 1")}
    assert isinstance(store, PostgresStore)
    of_schema = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    names = [row["tablename"] for row in await store.database.fetch_rows(of_schema)]
    return found | {name for name in names if await store.database.fetch_row(f"SELECT 1 FROM {name} LIMIT 1")}


async def test_command_of_a_dropped_job_can_be_accepted_again(store: Store, jobs: FinishedJobs) -> None:
    last = await finish(store, "a")
    await jobs.drop({"a": last.job.version})
    await store.ledger.commit(accept("b", asked=command("a")))
    holder = await store.ledger.accepted("acme", "sha256:hash-of-a")
    assert holder is not None
    assert holder.job_id == "b"
    with pytest.raises(VersionConflict):
        await store.ledger.commit(then(last))


async def test_job_changed_since_it_was_listed_is_not_dropped(store: Store, jobs: FinishedJobs) -> None:
    retried, changed, same = [await finish(store, name) for name in ("retried", "changed", "same")]
    await store.ledger.commit(then(retried, status=JobStatus.DISPATCHING, completed_at=None))
    await store.ledger.commit(then(changed))
    versions = {last.job.job_id: last.job.version for last in (retried, changed, same)}
    assert await jobs.drop(versions) == {"retried", "changed"}
    assert await store.jobs.job("retried") is not None
    assert await store.jobs.job("changed") is not None
    assert await store.jobs.job("same") is None


async def test_repeated_drop_has_no_effect(store: Store, jobs: FinishedJobs) -> None:
    last = await finish(store, "a")
    assert await jobs.drop({"a": last.job.version}) == frozenset()
    assert await jobs.drop({"a": last.job.version, "never-there": 1}) == frozenset()
