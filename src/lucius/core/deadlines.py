"""What the passing of time does to a job."""

from msgspec.structs import replace

from lucius.core import tasks
from lucius.core.draft import Draft
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    FailureClass,
    Instant,
    JobStatus,
    Millis,
    Step,
    StepStatus,
)


def pass_deadlines(draft: Draft, resumed_at: Instant) -> None:
    job, now = draft.job, draft.now
    if job.deadline is not None and job.deadline <= now:
        end_overdue_job(draft)
        return
    for step in draft.active_steps():
        if not draft.job.live:
            return
        _look_at(draft, step, resumed_at)


def _look_at(draft: Draft, step: Step, resumed_at: Instant) -> None:
    attempt, now = step.attempt, draft.now
    spec = tasks.spec_of(draft, step)
    match step.status:
        case StepStatus.INITIATED if attempt.ack_deadline is not None and attempt.ack_deadline <= now:
            period = spec.ack_timeout_ms or draft.env.defaults.ack_timeout_ms
            if fresh := _fresh_period(attempt.handed_over_at, now, period, resumed_at):
                _extend(draft, step, ack_deadline=fresh)
            else:
                tasks.time_out(draft, step, AttemptOutcome.ACK_TIMEOUT)
        case StepStatus.PROCESSING if attempt.hard_deadline is not None and attempt.hard_deadline <= now:
            tasks.time_out(draft, step, AttemptOutcome.STEP_TIMEOUT)
        case StepStatus.PROCESSING if attempt.lease_expires_at is not None and attempt.lease_expires_at <= now:
            period = tasks.lease_ms(draft, spec)
            if fresh := _fresh_period(attempt.picked_up_at, now, period, resumed_at):
                _extend(draft, step, lease_expires_at=fresh)
            else:
                tasks.time_out(draft, step, AttemptOutcome.LEASE_EXPIRED)
        case StepStatus.FAILED_RETRY if step.retry_at is not None and step.retry_at <= now:
            tasks.dispatch_again(draft, step)
        case _:
            pass


def _fresh_period(started: Instant | None, now: Instant, period: Millis, resumed_at: Instant) -> Instant | None:
    """One more period for an attempt that is overdue and was out there while we were not looking.

    A service may have spoken to a closed door until `resumed_at`, so its silence counts only from then on. The
    new deadline is a full period after that, hence never given twice for the same absence.
    """
    fresh = resumed_at + period
    was_out = started is not None and started < resumed_at
    return fresh if was_out and now < fresh else None


def _extend(draft: Draft, step: Step, **deadline: Instant) -> None:
    changed = draft.change_step(step, attempt=replace(step.attempt, **deadline))
    draft.emit("DEADLINE_EXTENDED", changed, **deadline)


def end_overdue_job(draft: Draft) -> None:
    """The job's time is up: fence what runs and end it."""
    error = ErrorInfo("JOB_TIMEOUT", "the job did not finish within its protocol's timeout")
    cancelling = draft.cancelling
    status = StepStatus.CANCELLED if cancelling else StepStatus.FAILED_FINAL
    for step in draft.active_steps():
        tasks.fence(draft, step, status, AttemptOutcome.JOB_TIMEOUT, error, FailureClass.NON_RETRYABLE)
    tasks.end_job(draft, JobStatus.CANCELLED if cancelling else JobStatus.FAILED_FINAL, error)
