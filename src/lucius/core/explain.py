"""Why a job waits, in one sentence a person can act on."""

from datetime import UTC, datetime

from lucius.core.decision import Env, JobView
from lucius.core.model import Attempt, BlockedReason, Instant, JobStatus, Step
from lucius.core.retry import max_attempts


def clock_time(at: Instant) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M:%S UTC")


def explain(view: JobView, reason: BlockedReason, env: Env) -> str:
    """The sentence for a live job that waits for `reason`."""
    blocked = view.job.blocked
    step = view.steps.get(blocked.step_id) if blocked and blocked.step_id else None
    sentence = _step_sentence(view, step, reason, env) if step else "accepted; waits for an engine to take it"
    if view.job.status is JobStatus.CANCELLING:
        return f"being cancelled once this ends: {sentence}"
    return sentence


def _step_sentence(view: JobView, step: Step, reason: BlockedReason, env: Env) -> str:
    attempt = step.attempt
    limit = max_attempts(view.protocol.steps[step.index], env)
    try_no = f"attempt {step.tries} of {limit}"
    match reason:
        case BlockedReason.DISPATCH_WINDOW:
            return (
                f"step {step.step_id} waits because service {step.service} has as many unacknowledged directives "
                "as it may; it goes out when one of them is picked up"
            )
        case BlockedReason.ACK:
            return (
                f"step {step.step_id} ({try_no}) was handed to service {step.service}, which has until "
                f"{_when(attempt.ack_deadline)} to acknowledge it"
            )
        case BlockedReason.RESULT:
            done = f", {attempt.progress:.0%} done" if attempt.progress is not None else ""
            return f"service {step.service} works on step {step.step_id} ({try_no}{done}); {_time_left(attempt)}"
        case BlockedReason.RETRY:
            cause = attempt.error.code if attempt.error else str(attempt.outcome)
            return (
                f"step {step.step_id} waits for its retry: {try_no} at service {step.service} ended with {cause}, "
                f"the next one starts at {_when(step.retry_at)}"
            )
        case _:
            waits = f"step {step.step_id} ({try_no}) waits in the outbox for service {step.service} to take it"
            deadline = view.job.deadline
            return f"{waits}, until {_when(deadline)} at the latest" if deadline else f"{waits}, however long it takes"


def _time_left(attempt: Attempt) -> str:
    lease, limit = attempt.lease_expires_at, attempt.hard_deadline
    if lease is not None and limit is not None and limit <= lease:
        return f"its time limit ends at {_when(limit)}"
    return f"its lease runs until {_when(lease)}"


def _when(at: Instant | None) -> str:
    return clock_time(at) if at is not None else "an unknown time"
