"""What a service says, and whether it counts.

A callback counts only if it names the step's current attempt and lease. Everything else is recorded and changes
nothing: DUPLICATE says what was applied already, LATE speaks after the end, STALE comes from a fenced attempt.
"""

import hashlib

import msgspec
from msgspec.structs import replace

from lucius.core import reviews, tasks
from lucius.core.decision import CallbackReply, Refused, Reply
from lucius.core.draft import Draft
from lucius.core.inputs import Ack, Failed, Heartbeat, Succeeded
from lucius.core.model import TIMED_OUT, Disposition, Instant, JobStatus, Quarantined, Step, StepStatus
from lucius.core.protocol import spec_id
from lucius.core.steps import DISPATCHED

ServiceSaid = Ack | Heartbeat | Succeeded | Failed
RUNNING = frozenset({StepStatus.DISPATCHING, StepStatus.INITIATED, StepStatus.PROCESSING})


def receive(draft: Draft, said: ServiceSaid) -> Reply:
    step = draft.find(said.step_id) if spec_id(said.step_id) in draft.protocol.plan.places else None
    if step is None or step.kind not in DISPATCHED:
        return Refused("STEP_NOT_FOUND", f"no service was ever asked for step {said.step_id} of job {draft.job.job_id}")
    if (said.attempt_no, said.lease_id) != (step.attempt.attempt_no, step.attempt.lease_id):
        return _stale(draft, step, said)
    digest = _digest(said)
    disposition = _judge(step, said, digest)
    if disposition is not Disposition.APPLIED:
        _record(draft, step, said, disposition)
        return _reply(draft, disposition, said.step_id)
    _apply(draft, step, said, digest)
    return _reply(draft, disposition, said.step_id)


def _judge(step: Step, said: ServiceSaid, digest: str | None) -> Disposition:
    attempt = step.attempt
    if step.status in RUNNING:
        repeated = isinstance(said, Ack) and attempt.acked_at is not None
        return Disposition.DUPLICATE if repeated else Disposition.APPLIED
    if _can_be_rescued(step) and isinstance(said, Succeeded):
        return Disposition.APPLIED
    if isinstance(said, Ack):
        return Disposition.DUPLICATE if attempt.acked_at is not None else Disposition.LATE
    if digest is not None and digest == attempt.digest:
        return Disposition.DUPLICATE
    return Disposition.LATE


def _apply(draft: Draft, step: Step, said: ServiceSaid, digest: str | None) -> None:
    match said:
        case Ack():
            _ack(draft, step, said)
        case Heartbeat():
            _heartbeat(draft, step, said)
        case Succeeded():
            _record(draft, step, said, Disposition.APPLIED)
            tasks.succeed(draft, tasks.imply_pick_up(draft, step), said, digest or "")
        case Failed():
            _record(draft, step, said, Disposition.APPLIED)
            tasks.fail_as_reported(draft, tasks.imply_pick_up(draft, step), said, digest or "")


def _ack(draft: Draft, step: Step, said: Ack) -> None:
    step = tasks.imply_pick_up(draft, step)
    draft.change_step(step, attempt=replace(step.attempt, acked_at=draft.now))
    _record(draft, step, said, Disposition.APPLIED)


def _heartbeat(draft: Draft, step: Step, said: Heartbeat) -> None:
    step = tasks.imply_pick_up(draft, step)
    lease = draft.now + tasks.lease_ms(draft, draft.spec(step))
    progress = said.progress if said.progress is not None else step.attempt.progress
    extended = max(lease, step.attempt.lease_expires_at or 0)
    extra = said.extra or step.attempt.extra  # an applied heartbeat leaves no event to keep them in
    attempt = replace(step.attempt, lease_expires_at=extended, progress=progress, extra=extra)
    draft.change_step(step, attempt=attempt)


def _stale(draft: Draft, step: Step, said: ServiceSaid) -> Reply:
    kept = isinstance(said, Succeeded)
    if isinstance(said, Succeeded):
        item = Quarantined(
            job_id=draft.job.job_id,
            step_id=said.step_id,
            attempt_no=said.attempt_no,
            lease_id=said.lease_id,
            received_at=draft.now,
            result=said.result,
            artifact_refs=said.artifact_refs,
        )
        draft.quarantine(item)
        reviews.ask_about_stale(draft, step, item)
    _record(draft, step, said, Disposition.STALE, quarantined=kept)
    return _reply(draft, Disposition.STALE)


def _record(
    draft: Draft, step: Step, said: ServiceSaid, disposition: Disposition, *, quarantined: bool = False
) -> None:
    data: dict[str, object] = {"disposition": str(disposition)}
    if isinstance(said, Failed):
        data["failure_class"] = str(said.failure_class)
        data["error_code"] = said.error.code
    if quarantined:
        data["quarantined"] = True
    if said.extra:
        data["extra"] = said.extra
    draft.emit(_EVENT_NAMES[type(said)], step, said.attempt_no, lease_id=said.lease_id, **data)


_EVENT_NAMES: dict[type[ServiceSaid], str] = {
    Ack: "CALLBACK_ACK",
    Heartbeat: "CALLBACK_HEARTBEAT",
    Succeeded: "CALLBACK_RESULT",
    Failed: "CALLBACK_RESULT",
}


def _reply(draft: Draft, disposition: Disposition, step_id: str | None = None) -> CallbackReply:
    step = draft.steps[step_id] if step_id else None
    return CallbackReply(
        disposition,
        lease_expires_at=_worth_working_until(step) if step else None,
        cancel_requested=draft.cancelling or draft.job.status is JobStatus.CANCELLED,  # who undoes is not to stop
    )


def _worth_working_until(step: Step) -> Instant | None:
    """The lease's end; for an attempt that timed out, the instant until which its success still counts."""
    if step.status is StepStatus.PROCESSING:
        return step.attempt.lease_expires_at
    return step.retry_at if _can_be_rescued(step) else None


def _can_be_rescued(step: Step) -> bool:
    return step.status is StepStatus.FAILED_RETRY and step.attempt.outcome in TIMED_OUT


def _digest(said: ServiceSaid) -> str | None:
    """Tells whether two results of one attempt say the same."""
    match said:
        case Succeeded():
            body: list[object] = ["SUCCEEDED", said.result, said.artifact_refs]
        case Failed():
            body = ["FAILED", said.failure_class, said.error]
        case _:
            return None
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
