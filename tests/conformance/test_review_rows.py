"""Guarantees of every ledger for review items: readers find what a commit wrote."""

from typing import Any

from msgspec.structs import replace

from lucius.core.model.decision import Applied, Decision
from lucius.core.model.records import Job, ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.store import Store
from tests.conformance.builders import PROTOCOL, accept


def item(kind: ReviewKind = ReviewKind.COMPENSATION, **fields: Any) -> ReviewItem:
    given = {"review_id": "a~run1", "job_id": "a", "tenant_id": "acme", "request_type": "OCR", "signature": "s"}
    times = {"created_at": 1_000, "updated_at": 1_000}
    return ReviewItem(**{"kind": kind, "status": ReviewStatus.OPEN, **given, **times, **fields})


async def put(store: Store, *items: ReviewItem) -> Job:
    """Commit each item separately, all at the same instant; return the job."""
    decision = accept("a")
    await store.ledger.commit(decision)
    job = decision.job
    for each in items:
        job = replace(job, version=job.version + 1)
        await store.ledger.commit(Decision(job=job, replies=(Applied(),), protocol=PROTOCOL, reviews=(each,)))
    return job


async def found(store: Store) -> ReviewItem | None:
    return await store.reviews.review("a~run1")


async def test_change_in_the_instant_an_item_was_opened_is_kept(store: Store) -> None:
    changed = item(step_id="embedding")
    await put(store, item(step_id="ocr"), changed)
    assert await found(store) == changed


async def test_repeated_late_success_does_not_reopen_a_closed_item(store: Store) -> None:
    late = item(ReviewKind.STALE_RESULT, lease_id="l")
    closed = replace(late, status=ReviewStatus.RESOLVED, resolved_by="ada", act="adopt")
    await put(store, late, closed, replace(late, created_at=2_000, updated_at=2_000))
    assert await found(store) == closed
