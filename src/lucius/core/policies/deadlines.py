"""Deadlines of a job and of its steps."""

from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.decide.derived_state import current_step_id, has_leftover_work, next_step_deadline
from lucius.core.model.inputs import DeadlinePassed
from lucius.core.model.records import ErrorInfo, Failure, Instant, Millis, Step
from lucius.core.model.statuses import AttemptOutcome, FailureClass, JobStatus, StepStatus
from lucius.core.policies import compensation
from lucius.core.steps import container, human_approval, task, wait


def apply_deadlines(changes: Changeset, tick: DeadlinePassed) -> bool:
    """Act on every deadline of the job that has passed; return False if there is none."""
    acted = has_leftover_work(changes.job, changes.steps)  # left over by an earlier decision
    if changes.job.stopping is not None:
        return acted
    if changes.job.paused is None and changes.job.deadline is not None and changes.job.deadline <= changes.now:
        stop_overdue_job(changes)
        return True
    if changes.job.catching_up and changes.job.paused is None and not _catch_up(changes):
        return True
    for step in changes.active_steps():
        if changes.job.live and changes.has_room():
            acted |= _apply_step_deadline(changes, step, tick)
    return acted


def _catch_up(changes: Changeset) -> bool:
    """Apply votes and signals received during a pause, before any timeout counts; return True once all are applied."""
    for step in changes.active_steps():
        if not changes.has_room():
            return False
        if step.status is StepStatus.AWAITING_APPROVAL:
            human_approval.count_votes(changes, step)
        elif step.status is StepStatus.WAITING:
            wait.take_stored_signal(changes, step)
    changes.change_job(catching_up=False)
    return True


def _apply_step_deadline(changes: Changeset, step: Step, tick: DeadlinePassed) -> bool:
    due, resumed_at = next_step_deadline(step, changes.is_halted()), tick.resumed_at
    checked_at = changes.now if tick.as_of is None else tick.as_of
    if due is None or due > checked_at:
        return False
    attempt, spec = step.attempt, changes.spec(step)
    match step.status:
        case StepStatus.INITIATED:
            period = spec.ack_timeout_ms or changes.env.defaults.ack_timeout_ms
            if fresh := _extended_deadline(attempt.handed_over_at, checked_at, period, resumed_at):
                _extend(changes, step, ack_deadline=fresh)
            else:
                task.time_out(changes, step, AttemptOutcome.ACK_TIMEOUT)
        case StepStatus.PROCESSING if attempt.hard_deadline is not None and attempt.hard_deadline <= changes.now:
            task.time_out(changes, step, AttemptOutcome.STEP_TIMEOUT)
        case StepStatus.PROCESSING:
            period = task.lease_ms(changes, spec)
            if fresh := _extended_deadline(attempt.picked_up_at, checked_at, period, resumed_at):
                _extend(changes, step, lease_expires_at=fresh)
            else:
                task.time_out(changes, step, AttemptOutcome.LEASE_EXPIRED)
        case StepStatus.WAITING:
            wait.handle_deadline(changes, step)
        case StepStatus.AWAITING_APPROVAL:
            human_approval.time_out(changes, step)
        case _:
            task.dispatch_again(changes, step)
    return True


def _extended_deadline(
    started: Instant | None, checked_at: Instant, period: Millis, resumed_at: Instant
) -> Instant | None:
    """Return a new deadline for an overdue attempt that was handed over before a gap of the engine, else None.

    The service may have been unable to call back before `resumed_at`. The new deadline is a full period after it, so a
    gap extends a deadline only once.
    """
    fresh = resumed_at + period
    was_out = started is not None and started < resumed_at
    return fresh if was_out and checked_at < fresh else None


def _extend(changes: Changeset, step: Step, **deadline: Instant) -> None:
    changed = changes.change_step(step, attempt=replace(step.attempt, **deadline))
    changes.emit("DEADLINE_EXTENDED", changed, **deadline)


def stop_overdue_job(changes: Changeset) -> None:
    """Begin to end a job whose timeout has passed: active steps are fenced, then the job ends."""
    error = ErrorInfo("JOB_TIMEOUT", "the job did not finish within its timeout")
    at = current_step_id(changes.job, changes.steps)
    failure = Failure(at, error, FailureClass.NON_RETRYABLE, AttemptOutcome.JOB_TIMEOUT)
    changes.change_job(failure=None)  # earlier failures were handled
    compensation.drop_ready_tokens(changes)
    changes.change_job(stopping=failure)


def continue_stopping(changes: Changeset) -> None:
    """Fence the steps of a job that timed out or was dismissed, and end the job once none is active."""
    failure, cancelling = changes.job.stopping, changes.job.status is JobStatus.CANCELLING
    dismissed = changes.job.dismissed
    status = StepStatus.CANCELLED if cancelling or dismissed else StepStatus.FAILED_FINAL
    outcome = AttemptOutcome.FENCED if dismissed else AttemptOutcome.JOB_TIMEOUT
    if not container.fence_up_to_limit(changes, None, status, outcome, None if dismissed else failure):
        return
    compensation.drop_ready_tokens(changes)
    if cancelling:
        compensation.end_cancelled(changes, failure)
    else:
        compensation.end_stopped(changes, failure)
