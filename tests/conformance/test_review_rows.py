"""What every ledger promises of review items: what a commit says of one is what a reader finds."""

from typing import Any, cast

from msgspec.structs import replace

from lucius.core.decision import Applied, Decision
from lucius.core.model import Job, ReviewItem, ReviewKind, ReviewStatus
from lucius.ports.ledger import Ledger, ReviewReader
from tests.conformance.builders import PROTOCOL, accept


def item(kind: ReviewKind = ReviewKind.COMPENSATION, **fields: Any) -> ReviewItem:
    given = {"review_id": "a~run1", "job_id": "a", "tenant_id": "acme", "request_type": "OCR", "signature": "s"}
    times = {"created_at": 1_000, "updated_at": 1_000}
    return ReviewItem(**{"kind": kind, "status": ReviewStatus.OPEN, **given, **times, **fields})


async def put(ledger: Ledger, *items: ReviewItem) -> Job:
    """Each in a commit of its own, all at the same instant."""
    decision = accept("a")
    await ledger.commit(decision)
    job = decision.job
    for each in items:
        job = replace(job, version=job.version + 1)
        await ledger.commit(Decision(job=job, replies=(Applied(),), protocol=PROTOCOL, reviews=(each,)))
    return job


async def found(ledger: Ledger) -> ReviewItem | None:
    return await cast(ReviewReader, ledger).review("a~run1")


async def test_an_item_that_changes_in_the_instant_it_was_opened_has_changed(ledger: Ledger) -> None:
    changed = item(step_id="embedding")
    await put(ledger, item(step_id="ocr"), changed)
    assert await found(ledger) == changed


async def test_the_same_late_success_told_twice_does_not_open_what_was_closed(ledger: Ledger) -> None:
    late = item(ReviewKind.STALE_RESULT, lease_id="l")
    closed = replace(late, status=ReviewStatus.RESOLVED, resolved_by="ada", act="adopt")
    await put(ledger, late, closed, replace(late, created_at=2_000, updated_at=2_000))
    assert await found(ledger) == closed
