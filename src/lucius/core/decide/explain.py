"""Explains why a job waits, in one sentence that an operator can act on."""

from datetime import UTC, datetime

from lucius.core.model.decision import Env, JobSnapshot
from lucius.core.model.progress import describe_progress
from lucius.core.model.records import Attempt, Instant, Job, Step
from lucius.core.model.statuses import BlockedReason, JobStatus
from lucius.core.policies.retry import max_attempts
from lucius.core.protocol.definition import HTTP_SERVICE, Approval, StepSpec, spec_id


def clock_time(at: Instant, now: Instant | None = None) -> str:
    """Format an instant as time of day, with the date if it differs from that of `now`."""
    moment = datetime.fromtimestamp(at / 1000, UTC)
    same_day = now is None or datetime.fromtimestamp(now / 1000, UTC).date() == moment.date()
    return moment.strftime("%H:%M:%S UTC" if same_day else "%Y-%m-%d %H:%M:%S UTC")


def date_time(at: Instant) -> str:
    """Format an instant with its date, for texts that may be read days later."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def explain(view: JobSnapshot, reason: BlockedReason, env: Env) -> str:
    """Return the sentence for a live job that waits for `reason`."""
    job = view.job
    if job.paused is not None:
        return _paused(job)
    blocked = job.blocked
    step = view.steps.get(blocked.step_id) if blocked and blocked.step_id else None
    sentence = _step_sentence(view, step, reason, env) if step else _engine(job)
    if job.compensation is not None:
        sentence = f"undoing what was done, {len(job.compensation.todo)} to go: {sentence}"
    if job.status is JobStatus.CANCELLING:
        return f"being cancelled once this ends: {sentence}"
    others = len(job.active) - 1
    return f"{sentence} (and {others} more {'step' if others == 1 else 'steps'})" if others > 0 else sentence


def _engine(job: Job) -> str:
    if job.status is JobStatus.QUEUED:
        return "accepted; waits for an engine to take it"
    return "ready; the engine continues it"


def _paused(job: Job) -> str:
    pause = job.paused
    assert pause is not None, "it is paused"
    since = clock_time(pause.at, job.updated_at)
    if pause.on_review:
        item = job.review  # names the failed handler, not the step that it undoes
        name = item.review_id if item else "-"
        what = f"after {item.error.code} in step {item.step_id}" if item and item.error else ""
        return f"waits since {since} for an operator to act on review item {name} {what}".rstrip()
    why = f": {pause.reason}" if pause.reason else ""
    return f"paused by {pause.by} since {since}{why}"


def _step_sentence(view: JobSnapshot, step: Step, reason: BlockedReason, env: Env) -> str:
    spec = view.protocol.plan.places[spec_id(step.step_id)].spec
    match reason:
        case BlockedReason.TIMER:
            return f"step {step.step_id} waits until {_when(view, step.wake_at)}"
        case BlockedReason.SIGNAL:
            return f"step {step.step_id} waits for signal {step.awaits}{_until(view, step)}"
        case BlockedReason.APPROVAL:
            return _approval(view, step, spec)
        case _:
            return _dispatched(view, step, reason, f"attempt {step.tries} of {max_attempts(spec, env)}")


def _approval(view: JobSnapshot, step: Step, spec: StepSpec) -> str:
    asked = spec.human_approval or Approval(approvers=("any approver",))
    since = _when(view, step.attempt.created_at)
    votes = f", {len(step.votes)} of {asked.quorum} given" if asked.quorum > 1 else ""
    return f"waiting for approval by {' or '.join(asked.approvers)} since {since}{votes}{_until(view, step)}"


def _until(view: JobSnapshot, step: Step) -> str:
    return f", times out at {_when(view, step.wake_at)}" if step.wake_at is not None else ""


def _dispatched(view: JobSnapshot, step: Step, reason: BlockedReason, try_no: str) -> str:
    attempt, service = step.attempt, _service(step)
    match reason:
        case BlockedReason.DISPATCH_WINDOW:
            return (
                f"step {step.step_id} has waited since {_since(view.job)} because {service} has as many unacknowledged "
                "directives as it may; it goes out when one of them is picked up"
            )
        case BlockedReason.ACK:
            until = _when(view, attempt.ack_deadline)
            return f"step {step.step_id} ({try_no}) was handed to {service}, which has until {until} to acknowledge it"
        case BlockedReason.RESULT:
            shown = describe_progress(attempt.progress, attempt.counts)
            done = f", {shown}" if shown else ""
            return f"{service} works on step {step.step_id} ({try_no}{done}); {_time_left(view, attempt)}"
        case BlockedReason.RETRY:
            return _retry(view, step, try_no, service)
        case _:
            taken = f"{service} {'takes' if step.service == HTTP_SERVICE else 'pulls'} it"
            limit = f"job deadline {date_time(view.job.deadline)}" if view.job.deadline else "no deadline"
            return f"step {step.step_id} ({try_no}) is queued until {taken} (since {_since(view.job)}, {limit})"


def _since(job: Job) -> str:
    assert job.blocked is not None, "it waits"
    return date_time(job.blocked.since)


def _service(step: Step) -> str:
    return "the engine's caller" if step.service == HTTP_SERVICE else f"service {step.service}"


def _retry(view: JobSnapshot, step: Step, try_no: str, service: str) -> str:
    attempt = step.attempt
    cause = attempt.error.code if attempt.error else str(attempt.outcome)
    named = f"{attempt.failure_class} ({cause})" if attempt.failure_class and attempt.failure_class != cause else cause
    return (
        f"step {step.step_id} waits for its retry: {try_no} at {service} ended with {named}, "
        f"the next attempt starts at {_when(view, step.retry_at)}"
    )


def _time_left(view: JobSnapshot, attempt: Attempt) -> str:
    lease, limit = attempt.lease_expires_at, attempt.hard_deadline
    if lease is not None and limit is not None and limit <= lease:
        return f"its time limit ends at {_when(view, limit)}"
    return f"its lease runs until {_when(view, lease)}"


def _when(view: JobSnapshot, at: Instant | None) -> str:
    return clock_time(at, view.job.updated_at) if at is not None else "an unknown time"
