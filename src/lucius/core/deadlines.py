"""What the passing of time does to a job."""

from msgspec.structs import replace

from lucius.core import approvals, compensation, containers, flow, tasks, waits
from lucius.core.derived import current_step_id, is_unfinished, step_clock
from lucius.core.draft import Draft
from lucius.core.inputs import DeadlinePassed
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    Failure,
    FailureClass,
    Instant,
    JobStatus,
    Millis,
    Step,
    StepStatus,
)


def pass_deadlines(draft: Draft, tick: DeadlinePassed) -> bool:
    """Act on every clock of the job that has run out. False if none has."""
    acted = is_unfinished(draft.job, draft.steps)  # what a decision before this one had to leave over
    if draft.job.stopping is not None:
        return acted
    if draft.job.paused is None and draft.job.deadline is not None and draft.job.deadline <= draft.now:
        stop_overdue(draft)
        return True
    if draft.job.catching_up and draft.job.paused is None and not _catch_up(draft):
        return True
    for step in draft.active_steps():
        if draft.job.live and draft.has_room():
            acted |= _look_at(draft, step, tick)
    return acted


def _catch_up(draft: Draft) -> bool:
    """Votes and signals that came during a pause count before any timeout does. True once all have."""
    for step in draft.active_steps():
        if not draft.has_room():
            return False
        if step.status is StepStatus.AWAITING_APPROVAL:
            approvals.count(draft, step)
        elif step.status is StepStatus.WAITING:
            waits.take_kept(draft, step)
    draft.change_job(catching_up=False)
    return True


def _look_at(draft: Draft, step: Step, tick: DeadlinePassed) -> bool:
    due, resumed_at = step_clock(step, draft.stands_still()), tick.resumed_at
    looked_at = draft.now if tick.as_of is None else tick.as_of
    if due is None or due > looked_at:
        return False
    attempt, spec = step.attempt, draft.spec(step)
    match step.status:
        case StepStatus.INITIATED:
            period = spec.ack_timeout_ms or draft.env.defaults.ack_timeout_ms
            if fresh := _fresh_period(attempt.handed_over_at, looked_at, period, resumed_at):
                _extend(draft, step, ack_deadline=fresh)
            else:
                tasks.time_out(draft, step, AttemptOutcome.ACK_TIMEOUT)
        case StepStatus.PROCESSING if attempt.hard_deadline is not None and attempt.hard_deadline <= draft.now:
            tasks.time_out(draft, step, AttemptOutcome.STEP_TIMEOUT)
        case StepStatus.PROCESSING:
            period = tasks.lease_ms(draft, spec)
            if fresh := _fresh_period(attempt.picked_up_at, looked_at, period, resumed_at):
                _extend(draft, step, lease_expires_at=fresh)
            else:
                tasks.time_out(draft, step, AttemptOutcome.LEASE_EXPIRED)
        case StepStatus.WAITING:
            waits.time_passed(draft, step)
        case StepStatus.AWAITING_APPROVAL:
            approvals.time_out(draft, step)
        case _:
            tasks.dispatch_again(draft, step)
    return True


def _fresh_period(started: Instant | None, looked_at: Instant, period: Millis, resumed_at: Instant) -> Instant | None:
    """One more period for an attempt that is overdue and was out there while we were not looking.

    A service may have spoken to a closed door until `resumed_at`, so its silence counts only from then on. The
    new deadline is a full period after that, hence never given twice for the same absence.
    """
    fresh = resumed_at + period
    was_out = started is not None and started < resumed_at
    return fresh if was_out and looked_at < fresh else None


def _extend(draft: Draft, step: Step, **deadline: Instant) -> None:
    changed = draft.change_step(step, attempt=replace(step.attempt, **deadline))
    draft.emit("DEADLINE_EXTENDED", changed, **deadline)


def stop_overdue(draft: Draft) -> None:
    """The job's time is up: what runs is fenced, and then it ends."""
    error = ErrorInfo("JOB_TIMEOUT", "the job did not finish within its protocol's timeout")
    at = current_step_id(draft.job, draft.steps)
    failure = Failure(at, error, FailureClass.NON_RETRYABLE, AttemptOutcome.JOB_TIMEOUT)
    compensation.drop_what_is_ready(draft)
    draft.change_job(stopping=failure)


def go_on_stopping(draft: Draft) -> None:
    """Its time is up, or a person dismissed it."""
    failure, cancelling = draft.job.stopping, draft.job.status is JobStatus.CANCELLING
    dismissed = draft.job.dismissed
    status = StepStatus.CANCELLED if cancelling or dismissed else StepStatus.FAILED_FINAL
    outcome = AttemptOutcome.FENCED if dismissed else AttemptOutcome.JOB_TIMEOUT
    if not containers.fence_some(draft, None, status, outcome, None if dismissed else failure):
        return
    compensation.drop_what_is_ready(draft)
    if cancelling:
        compensation.end_cancelled(draft, failure)
    else:
        flow.end_job(draft, JobStatus.FAILED_FINAL, failure)
