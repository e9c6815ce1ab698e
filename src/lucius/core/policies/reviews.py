"""Review items: opened by the rules, closed by the actions of operators."""

from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.model.records import ErrorInfo, Failure, Quarantined, ReviewItem, Step
from lucius.core.model.statuses import AttemptOutcome, ReviewKind, ReviewStatus
from lucius.core.protocol.definition import spec_id

NO_REASON = "no reason given"


def signature(protocol_id: str, kind: ReviewKind, failure: Failure) -> str:
    """Return a key that is equal for failures with the same cause, in any job, map item or attempt."""
    step = spec_id(failure.step_id) if failure.step_id else "-"
    return f"{protocol_id}/{step}/{kind}/{failure.failure_class or '-'}/{failure.error.code}"


def new_item(
    changes: Changeset, review_id: str, kind: ReviewKind, failure: Failure, attempt_no: int | None = None
) -> ReviewItem:
    item = _item(changes, review_id, kind, failure, attempt_no)
    changes.put_review(item)
    changes.emit("REVIEW_OPENED", review_id=review_id, kind=str(kind))
    return item


def _item(changes: Changeset, review_id: str, kind: ReviewKind, failure: Failure, attempt_no: int | None) -> ReviewItem:
    job = changes.job
    return ReviewItem(
        review_id=review_id,
        job_id=job.job_id,
        tenant_id=job.tenant_id,
        request_type=job.command.request_type,
        kind=kind,
        status=ReviewStatus.OPEN,
        signature=signature(job.protocol_id, kind, failure),
        created_at=changes.now,
        updated_at=changes.now,
        run_no=job.run_no,
        step_id=failure.step_id,
        attempt_no=attempt_no,
        failure_class=failure.failure_class,
        error=failure.error,
    )


def open_for_job(changes: Changeset, kind: ReviewKind, failure: Failure, attempt_no: int | None = None) -> None:
    """Open the job's own item, of which there is one at a time; later failures of the job update it."""
    held = changes.job.review
    if held is not None:
        now = _item(changes, held.review_id, kind, failure, attempt_no)  # grouped by its latest cause
        item = replace(now, created_at=held.created_at, run_no=held.run_no)
        changes.put_review(item)
    else:
        item = new_item(changes, _job_review_id(changes), kind, failure, attempt_no)
    changes.change_job(review=item, review_run=changes.job.run_no)


def open_or_append(changes: Changeset, kind: ReviewKind, failure: Failure) -> None:
    """Open the job's own item, or append the failure's message to the one that is open."""
    held = changes.job.review
    if held is None:
        open_for_job(changes, kind, failure)
        return
    told = held.error or ErrorInfo(failure.error.code, "")
    message = "; ".join(part for part in (told.message, failure.error.message) if part)
    item = replace(held, updated_at=changes.now, error=ErrorInfo(told.code, message))
    changes.put_review(item)
    changes.change_job(review=item)


def _job_review_id(changes: Changeset) -> str:
    """Return an id made from the run number; a second item in the same run gets another id."""
    job = changes.job
    first = job.review_run != job.run_no
    return f"{job.job_id}~run{job.run_no}" if first else f"{job.job_id}~run{job.run_no}~{job.event_seq}"


def open_for_step(changes: Changeset, step: Step, failure: Failure) -> None:
    """Open an item in addition to the job's own."""
    review_id = f"{step.job_id}~{step.step_id}~{step.attempt.attempt_no}"
    new_item(changes, review_id, ReviewKind.COMPENSATION, failure, step.attempt.attempt_no)


def open_immediately(changes: Changeset, step: Step, failure: Failure) -> bool:
    """Open an item for a possible side effect now, so that an operator of a paused job can act before resume."""
    if changes.job.review is None:
        open_for_job(changes, ReviewKind.COMPENSATION, failure, failure.attempt_no)
    else:
        open_for_step(changes, step, failure)
    return True


def open_for_failed_job(changes: Changeset, failure: Failure) -> None:
    if changes.job.review is None and not changes.job.dismissed:
        poison = failure.outcome in (AttemptOutcome.HANDOVER_FAILED, AttemptOutcome.POISONED)
        open_for_job(changes, ReviewKind.POISON if poison else ReviewKind.JOB_FAILED, failure)


def open_for_stale_result(changes: Changeset, step: Step, kept: Quarantined) -> None:
    """Open an item to adopt the result of a fenced attempt; a repeated callback opens no second one."""
    error = ErrorInfo("STALE_RESULT", f"attempt {kept.attempt_no} of step {step.step_id} succeeded after it was fenced")
    failure = Failure(step.step_id, error, None, None, kept.attempt_no)
    review_id = f"{kept.job_id}~{kept.step_id}~{kept.attempt_no}~{kept.lease_id}"
    item = _item(changes, review_id, ReviewKind.STALE_RESULT, failure, kept.attempt_no)
    changes.put_review(replace(item, lease_id=kept.lease_id))


def close(changes: Changeset, item: ReviewItem, status: ReviewStatus, by: str, reason: str, act: str) -> None:
    """Close a review item. Without a reason, as after an action on the job itself, NO_REASON is recorded."""
    reason = reason if reason.strip() else NO_REASON
    changed = replace(item, status=status, updated_at=changes.now, resolved_by=by, reason=reason, act=act)
    changes.put_review(changed)
    changes.emit("REVIEW_CLOSED", review_id=item.review_id, status=str(status), act=act, by=by, reason=reason)
    if changes.job.review is not None and changes.job.review.review_id == item.review_id:
        changes.change_job(review=None)


def close_for_job(changes: Changeset, status: ReviewStatus, by: str, reason: str, act: str) -> None:
    if changes.job.review is not None:
        close(changes, changes.job.review, status, by, reason, act)
