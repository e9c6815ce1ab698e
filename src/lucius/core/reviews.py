"""What a person must look at: opened by the rules, closed by what a person does."""

from msgspec.structs import replace

from lucius.core.draft import Draft
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    Failure,
    Quarantined,
    ReviewItem,
    ReviewKind,
    ReviewStatus,
    Step,
)
from lucius.core.protocol import spec_id

NO_REASON = "no reason given"


def signature(protocol_id: str, kind: ReviewKind, failure: Failure) -> str:
    """The same for failures with the same cause, whichever job, item or attempt they hit."""
    step = spec_id(failure.step_id) if failure.step_id else "-"
    return f"{protocol_id}/{step}/{kind}/{failure.failure_class or '-'}/{failure.error.code}"


def new_item(
    draft: Draft, review_id: str, kind: ReviewKind, failure: Failure, attempt_no: int | None = None
) -> ReviewItem:
    item = _item(draft, review_id, kind, failure, attempt_no)
    draft.put_review(item)
    draft.emit("REVIEW_OPENED", review_id=review_id, kind=str(kind))
    return item


def _item(draft: Draft, review_id: str, kind: ReviewKind, failure: Failure, attempt_no: int | None) -> ReviewItem:
    job = draft.job
    return ReviewItem(
        review_id=review_id,
        job_id=job.job_id,
        tenant_id=job.tenant_id,
        request_type=job.command.request_type,
        kind=kind,
        status=ReviewStatus.OPEN,
        signature=signature(job.protocol_id, kind, failure),
        created_at=draft.now,
        updated_at=draft.now,
        run_no=job.run_no,
        step_id=failure.step_id,
        attempt_no=attempt_no,
        failure_class=failure.failure_class,
        error=failure.error,
    )


def open_for_job(draft: Draft, kind: ReviewKind, failure: Failure, attempt_no: int | None = None) -> None:
    """The job's own item. There is one at a time: what happens later to the same job is added to it."""
    held = draft.job.review
    if held is not None:
        now = _item(draft, held.review_id, kind, failure, attempt_no)  # it is grouped with what has that cause
        item = replace(now, created_at=held.created_at, run_no=held.run_no)
        draft.put_review(item)
    else:
        item = new_item(draft, _own_id(draft), kind, failure, attempt_no)
    draft.change_job(review=item, review_run=draft.job.run_no)


def _own_id(draft: Draft) -> str:
    """By its run. A second one in the same run, after the first was closed, must not be taken for it."""
    job = draft.job
    first = job.review_run != job.run_no
    return f"{job.job_id}~run{job.run_no}" if first else f"{job.job_id}~run{job.run_no}~{job.event_seq}"


def open_for_step(draft: Draft, step: Step, failure: Failure) -> None:
    """An item beside the job's own."""
    review_id = f"{step.job_id}~{step.step_id}~{step.attempt.attempt_no}"
    new_item(draft, review_id, ReviewKind.COMPENSATION, failure, step.attempt.attempt_no)


def ask_at_once(draft: Draft, step: Step, failure: Failure) -> bool:
    """A paused job goes nowhere, yet what may have left a side effect is shown now: someone may act before resume."""
    if draft.job.review is None:
        open_for_job(draft, ReviewKind.COMPENSATION, failure, failure.attempt_no)
    else:
        open_for_step(draft, step, failure)
    return True


def open_for_failed_job(draft: Draft, failure: Failure) -> None:
    if draft.job.review is None and not draft.job.dismissed:
        poison = failure.outcome in (AttemptOutcome.HANDOVER_FAILED, AttemptOutcome.POISONED)
        open_for_job(draft, ReviewKind.POISON if poison else ReviewKind.JOB_FAILED, failure)


def ask_about_stale(draft: Draft, step: Step, kept: Quarantined) -> None:
    """A fenced attempt succeeded: a person may adopt its result. The same late success, told twice, asks once."""
    error = ErrorInfo("STALE_RESULT", f"attempt {kept.attempt_no} of step {step.step_id} succeeded after it was fenced")
    failure = Failure(step.step_id, error, None, None, kept.attempt_no)
    review_id = f"{kept.job_id}~{kept.step_id}~{kept.attempt_no}~{kept.lease_id}"
    item = _item(draft, review_id, ReviewKind.STALE_RESULT, failure, kept.attempt_no)
    draft.put_review(replace(item, lease_id=kept.lease_id))


def close(draft: Draft, item: ReviewItem, status: ReviewStatus, by: str, reason: str, act: str) -> None:
    """An act on the job itself closes it too, and need not say why."""
    reason = reason if reason.strip() else NO_REASON
    changed = replace(item, status=status, updated_at=draft.now, resolved_by=by, reason=reason, act=act)
    draft.put_review(changed)
    draft.emit("REVIEW_CLOSED", review_id=item.review_id, status=str(status), act=act, by=by, reason=reason)
    if draft.job.review is not None and draft.job.review.review_id == item.review_id:
        draft.change_job(review=None)


def close_held(draft: Draft, status: ReviewStatus, by: str, reason: str, act: str) -> None:
    if draft.job.review is not None:
        close(draft, draft.job.review, status, by, reason, act)
