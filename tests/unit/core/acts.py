"""Acts of operators and of the engine's housekeeping on a job, as methods of a story."""

from typing import Any

from lucius.core.model.decision import Refused, Reply
from lucius.core.model.inputs import (
    Adopt,
    Cancel,
    CastVote,
    Compensate,
    Discard,
    GiveSignal,
    Input,
    Pause,
    Repair,
    Resume,
    Retry,
    RetryHandOver,
    Skip,
)
from lucius.core.model.records import Quarantined, ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from tests.unit.core.invariants import CheckedRecords

WHY = "because"


class Acts:
    records: CheckedRecords

    def feed(self, *inputs: Input) -> Reply:
        raise NotImplementedError

    def cancel(self, by: str = "ada") -> Reply:
        return self.feed(Cancel(by, "no longer wanted"))

    def pause(self, by: str = "ada") -> Reply:
        return self.feed(Pause(by, WHY))

    def resume(self, by: str = "ada") -> Reply:
        return self.feed(Resume(by, WHY))

    def signal(self, name: str, payload: Any = None, by: str = "erp") -> Reply:
        return self.feed(GiveSignal(name, by, payload, WHY))

    def approve(self, step_id: str, by: str = "ada", comment: str = "", groups: tuple[str, ...] = ()) -> Reply:
        return self.feed(CastVote(step_id=step_id, approves=True, by=by, groups=groups, comment=comment))

    def reject(self, step_id: str, by: str = "ada", comment: str = "") -> Reply:
        return self.feed(CastVote(step_id=step_id, approves=False, by=by, comment=comment))

    def retry(self, from_step: str | None = None) -> Reply:
        return self.feed(Retry(by="ada", reason=WHY, from_step=from_step))

    def skip(self, result: Any = None) -> Reply:
        return self.feed(Skip(by="ada", reason=WHY, result=result))

    def compensate(self) -> Reply:
        return self.feed(Compensate(by="ada", reason=WHY))

    def adopt(self, kept: Quarantined | None = None) -> Reply:
        """Adopt the last quarantined result, or `kept`."""
        kept = kept or self.records.quarantined[-1]
        review_id = f"{kept.job_id}~{kept.step_id}~{kept.attempt_no}~{kept.lease_id}"
        held = (a for (step_id, _), a in self.records.history.items() if step_id == kept.step_id)
        key = next((attempt.idempotency_key for attempt in held if attempt.lease_id == kept.lease_id), "")
        item = self.records.reviews.get(review_id)
        return self.feed(Adopt(kept=kept, by="ada", reason=WHY, idempotency_key=key, item=item))

    def discard(self, item: ReviewItem | None = None) -> Reply:
        """Discard the job's own review item, or `item`."""
        return self.feed(Discard(item=item or self.own_review, by="ada", reason=WHY))

    def retry_hand_over(self) -> Reply:
        return self.feed(RetryHandOver("ada"))

    def repair(self, *missing_rows: str) -> Reply:
        return self.feed(Repair(missing_rows))

    @property
    def own_review(self) -> ReviewItem:
        assert self.records.job is not None
        assert self.records.job.review is not None, "nothing of this job is under review"
        return self.records.job.review

    def open_reviews(self) -> list[tuple[ReviewKind, str | None]]:
        """Return kind and step of every open review item."""
        items = self.records.reviews.values()
        return [(item.kind, item.step_id) for item in items if item.status is ReviewStatus.OPEN]


def code_of(reply: Reply) -> str:
    """Return the code of the refusal."""
    assert isinstance(reply, Refused), reply
    return reply.code
