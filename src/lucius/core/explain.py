"""Why a job waits, in one sentence a person can act on."""

from datetime import UTC, datetime

from lucius.core.decision import Env, JobView
from lucius.core.model import Attempt, BlockedReason, Instant, Job, JobStatus, Step
from lucius.core.protocol import HTTP_SERVICE, Approval, StepSpec, spec_id
from lucius.core.retry import max_attempts


def clock_time(at: Instant, now: Instant | None = None) -> str:
    """The time of day; with the date where it is not that of `now`."""
    moment = datetime.fromtimestamp(at / 1000, UTC)
    same_day = now is None or datetime.fromtimestamp(now / 1000, UTC).date() == moment.date()
    return moment.strftime("%H:%M:%S UTC" if same_day else "%Y-%m-%d %H:%M:%S UTC")


def explain(view: JobView, reason: BlockedReason, env: Env) -> str:
    """The sentence for a live job that waits for `reason`."""
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
    return "waits for nothing outside: the engine goes on with it at once"


def _paused(job: Job) -> str:
    pause = job.paused
    assert pause is not None, "it is paused"
    since = clock_time(pause.at, job.updated_at)
    if pause.on_review:
        item = job.review  # what it is about now: a handler that failed, rather than what it was to undo
        name = item.review_id if item else "-"
        what = f"after {item.error.code} in step {item.step_id}" if item and item.error else ""
        return f"waits since {since} for a person to act on review item {name} {what}".rstrip()
    why = f": {pause.reason}" if pause.reason else ""
    return f"paused by {pause.by} since {since}{why}"


def _step_sentence(view: JobView, step: Step, reason: BlockedReason, env: Env) -> str:
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


def _approval(view: JobView, step: Step, spec: StepSpec) -> str:
    asked = spec.human_approval or Approval(approvers=("somebody",))
    since = _when(view, step.attempt.created_at)
    votes = f", {len(step.votes)} of {asked.quorum} given" if asked.quorum > 1 else ""
    return f"waiting for approval by {' or '.join(asked.approvers)} since {since}{votes}{_until(view, step)}"


def _until(view: JobView, step: Step) -> str:
    return f", times out at {_when(view, step.wake_at)}" if step.wake_at is not None else ""


def _dispatched(view: JobView, step: Step, reason: BlockedReason, try_no: str) -> str:
    attempt, service = step.attempt, _service(step)
    match reason:
        case BlockedReason.DISPATCH_WINDOW:
            return (
                f"step {step.step_id} waits because {service} has as many unacknowledged directives "
                "as it may; it goes out when one of them is picked up"
            )
        case BlockedReason.ACK:
            until = _when(view, attempt.ack_deadline)
            return f"step {step.step_id} ({try_no}) was handed to {service}, which has until {until} to acknowledge it"
        case BlockedReason.RESULT:
            done = f", {attempt.progress:.0%} done" if attempt.progress is not None else ""
            return f"{service} works on step {step.step_id} ({try_no}{done}); {_time_left(view, attempt)}"
        case BlockedReason.RETRY:
            return _retry(view, step, try_no, service)
        case _:
            waits = f"step {step.step_id} ({try_no}) waits in the outbox for {service} to take it"
            deadline = view.job.deadline
            return (
                f"{waits}, until {_when(view, deadline)} at the latest"
                if deadline
                else f"{waits}, however long it takes"
            )


def _service(step: Step) -> str:
    return "the engine's caller" if step.service == HTTP_SERVICE else f"service {step.service}"


def _retry(view: JobView, step: Step, try_no: str, service: str) -> str:
    attempt = step.attempt
    cause = attempt.error.code if attempt.error else str(attempt.outcome)
    named = f"{attempt.failure_class} ({cause})" if attempt.failure_class and attempt.failure_class != cause else cause
    return (
        f"step {step.step_id} waits for its retry: {try_no} at {service} ended with {named}, "
        f"the next one starts at {_when(view, step.retry_at)}"
    )


def _time_left(view: JobView, attempt: Attempt) -> str:
    lease, limit = attempt.lease_expires_at, attempt.hard_deadline
    if lease is not None and limit is not None and limit <= lease:
        return f"its time limit ends at {_when(view, limit)}"
    return f"its lease runs until {_when(view, lease)}"


def _when(view: JobView, at: Instant | None) -> str:
    return clock_time(at, view.job.updated_at) if at is not None else "an unknown time"
