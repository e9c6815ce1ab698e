"""Handling of service callbacks and their dispositions.

A callback that names another attempt or lease than the step's current ones is STALE. One that names the current ones is
APPLIED, DUPLICATE (repeats an applied one) or LATE (comes after the attempt's end). Only APPLIED changes the step; a
STALE success is kept for review.
"""

import hashlib

import msgspec
from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.model.decision import CallbackReply, Refused, Reply
from lucius.core.model.inputs import Ack, Failed, Heartbeat, Succeeded
from lucius.core.model.progress import progress_after
from lucius.core.model.records import Instant, Quarantined, Step
from lucius.core.model.statuses import TIMED_OUT, Disposition, JobStatus, StepStatus
from lucius.core.policies import reviews
from lucius.core.protocol.definition import spec_id
from lucius.core.steps import task
from lucius.core.steps.new_step import DISPATCHED

ServiceCallback = Ack | Heartbeat | Succeeded | Failed
RUNNING = frozenset({StepStatus.DISPATCHING, StepStatus.INITIATED, StepStatus.PROCESSING})


def receive(changes: Changeset, callback: ServiceCallback) -> Reply:
    step = changes.find(callback.step_id) if spec_id(callback.step_id) in changes.protocol.plan.places else None
    if step is None or step.kind not in DISPATCHED:
        return Refused(
            "STEP_NOT_FOUND", f"no service was ever asked for step {callback.step_id} of job {changes.job.job_id}"
        )
    digest = _digest(callback)
    match disposition := _find_disposition(step, callback, digest):
        case Disposition.STALE:
            return _receive_stale(changes, step, callback)
        case Disposition.APPLIED:
            _apply(changes, step, callback, digest)
        case Disposition.DUPLICATE | Disposition.LATE:
            _record(changes, step, callback, disposition)
    return _reply(changes, disposition, callback.step_id)


def _find_disposition(step: Step, callback: ServiceCallback, digest: str | None) -> Disposition:
    attempt = step.attempt
    if (callback.attempt_no, callback.lease_id) != (attempt.attempt_no, attempt.lease_id):
        return Disposition.STALE
    if step.status in RUNNING:
        repeated = isinstance(callback, Ack) and attempt.acked_at is not None
        return Disposition.DUPLICATE if repeated else Disposition.APPLIED
    if _can_still_succeed(step) and isinstance(callback, Succeeded):
        return Disposition.APPLIED
    if isinstance(callback, Ack):
        return Disposition.DUPLICATE if attempt.acked_at is not None else Disposition.LATE
    if digest is not None and digest == attempt.digest:
        return Disposition.DUPLICATE
    return Disposition.LATE


def _apply(changes: Changeset, step: Step, callback: ServiceCallback, digest: str | None) -> None:
    match callback:
        case Ack():
            _ack(changes, step, callback)
        case Heartbeat():
            _heartbeat(changes, step, callback)
        case Succeeded():
            _record(changes, step, callback, Disposition.APPLIED)
            task.succeed(changes, task.ensure_picked_up(changes, step), callback, digest or "")
        case Failed():
            _record(changes, step, callback, Disposition.APPLIED)
            task.fail_as_reported(changes, task.ensure_picked_up(changes, step), callback, digest or "")


def _ack(changes: Changeset, step: Step, callback: Ack) -> None:
    step = task.ensure_picked_up(changes, step)
    extra = task.keep_logs_ref(step.attempt, {k: v for k, v in callback.extra.items() if k == "logs_ref"})
    changes.change_step(step, attempt=replace(step.attempt, acked_at=changes.now, extra=extra))
    _record(changes, step, callback, Disposition.APPLIED)


def _heartbeat(changes: Changeset, step: Step, callback: Heartbeat) -> None:
    step = task.ensure_picked_up(changes, step)
    lease = changes.now + task.lease_ms(changes, changes.spec(step))
    progress, counts = progress_after(step.attempt, callback)
    extended = max(lease, step.attempt.lease_expires_at or 0)
    extra = task.keep_logs_ref(step.attempt, callback.extra)  # a heartbeat emits no event that could keep them
    attempt = replace(step.attempt, lease_expires_at=extended, progress=progress, counts=counts, extra=extra)
    changes.change_step(step, attempt=attempt)


def _receive_stale(changes: Changeset, step: Step, callback: ServiceCallback) -> Reply:
    kept = isinstance(callback, Succeeded)
    if isinstance(callback, Succeeded):
        item = Quarantined(
            job_id=changes.job.job_id,
            step_id=callback.step_id,
            attempt_no=callback.attempt_no,
            lease_id=callback.lease_id,
            received_at=changes.now,
            result=callback.result,
            artifact_refs=callback.artifact_refs,
        )
        changes.quarantine(item)
        reviews.open_for_stale_result(changes, step, item)
    _record(changes, step, callback, Disposition.STALE, quarantined=kept)
    return _reply(changes, Disposition.STALE)


def _record(
    changes: Changeset, step: Step, callback: ServiceCallback, disposition: Disposition, *, quarantined: bool = False
) -> None:
    data: dict[str, object] = {"disposition": str(disposition)}
    if isinstance(callback, Failed):
        data["failure_class"] = str(callback.failure_class)
        data["error_code"] = callback.error.code
    if quarantined:
        data["quarantined"] = True
    if callback.extra:
        data["extra"] = callback.extra
    changes.emit(_EVENT_NAMES[type(callback)], step, callback.attempt_no, lease_id=callback.lease_id, **data)


_EVENT_NAMES: dict[type[ServiceCallback], str] = {
    Ack: "CALLBACK_ACK",
    Heartbeat: "CALLBACK_HEARTBEAT",
    Succeeded: "CALLBACK_RESULT",
    Failed: "CALLBACK_RESULT",
}


def _reply(changes: Changeset, disposition: Disposition, step_id: str | None = None) -> CallbackReply:
    step = changes.steps[step_id] if step_id else None
    return CallbackReply(
        disposition,
        lease_expires_at=_working_deadline(step) if step else None,
        cancel_requested=changes.cancelling
        or changes.job.status is JobStatus.CANCELLED,  # a cancelled job's handlers must not stop
    )


def _working_deadline(step: Step) -> Instant | None:
    """Return the lease's end; for an attempt that timed out, the instant until which its success still counts."""
    if step.status is StepStatus.PROCESSING:
        return step.attempt.lease_expires_at
    return step.retry_at if _can_still_succeed(step) else None


def _can_still_succeed(step: Step) -> bool:
    return step.status is StepStatus.FAILED_RETRY and step.attempt.outcome in TIMED_OUT


def _digest(callback: ServiceCallback) -> str | None:
    """Return a digest to compare two results of one attempt; None for an ACK or a heartbeat."""
    match callback:
        case Succeeded():
            body: list[object] = ["SUCCEEDED", callback.result, callback.artifact_refs]
        case Failed():
            body = ["FAILED", callback.failure_class, callback.error]
        case _:
            return None
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
