"""Derives a job's status, its next deadline and the reason why it waits from the job and its steps."""

from lucius.core.model.records import NEVER, Blocked, Instant, Job, Step
from lucius.core.model.statuses import WITH_SERVICE, BlockedReason, JobStatus, StepStatus
from lucius.core.protocol.definition import items_of


def is_result_valid(job: Job, step: Step) -> bool:
    """Return whether a step's record belongs to this run, or to an earlier one whose work this run keeps.

    A run that continues where the previous one failed keeps everything; one that starts from an earlier step keeps
    what comes before that step. Results that were undone are invalid in later runs.
    """
    if step.run_no == job.run_no:
        return True
    return not is_voided(job, step) and not (step.undone and job.compensation is None)


def is_voided(job: Job, step: Step) -> bool:
    """Return whether a later run repeats this step."""
    return any(step.run_no < void.run_no and step.index >= void.index for void in job.voids)


def next_step_deadline(step: Step, paused: bool = False) -> Instant | None:
    """Return the step's next deadline; None if it has none."""
    attempt = step.attempt
    match step.status:
        case StepStatus.INITIATED:
            return attempt.ack_deadline
        case StepStatus.PROCESSING:
            return min(t for t in (attempt.lease_expires_at, attempt.hard_deadline) if t is not None)
        case StepStatus.FAILED_RETRY if not paused:
            return step.retry_at
        case StepStatus.WAITING | StepStatus.AWAITING_APPROVAL if not paused:
            return step.wake_at
        case _:
            return None


def live_status(job: Job, steps: dict[str, Step], ready: bool) -> JobStatus:
    """Derive the job's status from its steps; QUEUED, CANCELLING and terminal statuses are set explicitly and kept."""
    if not job.live or job.status in (JobStatus.CANCELLING, JobStatus.QUEUED):
        return job.status
    if job.paused is not None:
        return JobStatus.PAUSED
    if not job.under_way and job.status is not JobStatus.IN_PROGRESS:
        return JobStatus.DISPATCHING
    if not ready and job.active:
        states = {steps[step_id].status for step_id in job.active}
        if StepStatus.AWAITING_APPROVAL in states and states <= _IDLE:
            return JobStatus.WAITING_APPROVAL
    return JobStatus.IN_PROGRESS


_IDLE = frozenset({StepStatus.AWAITING_APPROVAL, StepStatus.WAITING})


def due_at(job: Job, steps: dict[str, Step], now: Instant) -> Instant | None:
    if not job.live:
        return None
    paused = job.paused is not None
    if job.status is JobStatus.QUEUED:
        return job.created_at
    if has_leftover_work(job, steps):
        return now
    deadlines = [
        None if paused else job.deadline,
        *(next_step_deadline(steps[step_id], paused) for step_id in job.active),
    ]
    first = min((deadline for deadline in deadlines if deadline is not None), default=None)
    if first is None and any(steps[step_id].status is StepStatus.DISPATCHING for step_id in job.active):
        return None  # the hand-over of its outbox row is the next event
    return NEVER if first is None else first


def has_leftover_work(job: Job, steps: dict[str, Step]) -> bool:
    """Return whether work is left over because a decision reached MAX_DECISION_ROWS."""
    active = [steps[step_id] for step_id in job.active]
    if job.stopping is not None:
        return True
    if job.status is JobStatus.CANCELLING and job.compensation is None:
        return not active or any(is_idle(step) for step in active)
    if job.paused is not None:
        return any(awaits_handover(step) and not step.attempt.held for step in active)
    uncleared = job.compensation is not None and not job.compensation.cleared
    held = any(awaits_handover(step) and step.attempt.held for step in active)
    return bool(job.ready) or job.catching_up or uncleared or held or any(s.failing is not None for s in job.scopes)


def is_idle(step: Step) -> bool:
    """Return whether the step is neither with a service nor being handed over."""
    return step.status not in WITH_SERVICE and step.attempt.claimed_at is None


def awaits_handover(step: Step) -> bool:
    """Return whether the step is in the outbox and its hand-over has not begun."""
    return step.status is StepStatus.DISPATCHING and step.attempt.claimed_at is None


def by_index(step: Step) -> tuple[int, tuple[int, ...]]:
    return step.index, items_of(step.step_id)


def current_step_id(job: Job, steps: dict[str, Step]) -> str | None:
    """Return the first of the active steps in the protocol's order; with none, the one that was current last."""
    match job.active:
        case ():
            return job.current_step_id
        case (only,):
            return only
        case several:
            return min((steps[step_id] for step_id in several), key=by_index).step_id


_REASONS = {
    StepStatus.INITIATED: BlockedReason.ACK,
    StepStatus.PROCESSING: BlockedReason.RESULT,
    StepStatus.FAILED_RETRY: BlockedReason.RETRY,
    StepStatus.AWAITING_APPROVAL: BlockedReason.APPROVAL,
}


def blocked(job: Job, steps: dict[str, Step]) -> Blocked | None:
    if not job.live:
        return None
    if job.paused is not None:
        reason = BlockedReason.REVIEW if job.paused.on_review else BlockedReason.PAUSED
        return Blocked(reason, job.paused.at, None, job.current_step_id)
    if not job.active:
        return Blocked(BlockedReason.ENGINE, job.run_started_at or job.created_at)
    step = _blocking_step(job, steps)
    return Blocked(_reason(step), _waiting_since(step), next_step_deadline(step), step.step_id, step.service or None)


def _blocking_step(job: Job, steps: dict[str, Step]) -> Step:
    """Return the step that explains why the job waits: the first in order, but an approval before automatic steps."""
    if len(job.active) == 1:
        return steps[job.active[0]]
    active = [steps[step_id] for step_id in job.active]
    awaiting = [step for step in active if step.status is StepStatus.AWAITING_APPROVAL]
    return min(awaiting if job.status is JobStatus.WAITING_APPROVAL else active, key=by_index)


def _reason(step: Step) -> BlockedReason:
    if step.status is StepStatus.WAITING:
        return BlockedReason.SIGNAL if step.awaits is not None else BlockedReason.TIMER
    return _REASONS.get(step.status, BlockedReason.HANDOVER)


def _waiting_since(step: Step) -> Instant:
    attempt = step.attempt
    match step.status:
        case StepStatus.INITIATED:
            since = attempt.handed_over_at
        case StepStatus.PROCESSING:
            since = attempt.picked_up_at
        case StepStatus.FAILED_RETRY:
            since = attempt.ended_at
        case _:
            since = attempt.created_at
    return since or step.updated_at
