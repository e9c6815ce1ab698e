"""`decide`: all rules about states, as one pure function with a clause for each input."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

from lucius.core.decide import callbacks, control, job_webhook, scheduler
from lucius.core.decide.changeset import Changeset
from lucius.core.model.counters import counted, unacked_counter
from lucius.core.model.decision import Applied, Decision, Env, Ignored, JobSnapshot, Refused, Reply
from lucius.core.model.inputs import (
    Ack,
    Adopt,
    Cancel,
    Capacity,
    CastVote,
    Compensate,
    DeadlinePassed,
    Discard,
    Failed,
    GiveSignal,
    HandedOver,
    HandOverFailed,
    HandOverReleased,
    HandOverStarted,
    Heartbeat,
    Input,
    Pause,
    Poisoned,
    Repair,
    Resume,
    Retry,
    RetryHandOver,
    Skip,
    Start,
    Submit,
    Succeeded,
    WebhookAttempted,
)
from lucius.core.model.records import Instant, Job, Step, Token
from lucius.core.model.statuses import AttemptOutcome, JobStatus, StepStatus
from lucius.core.policies import deadlines
from lucius.core.steps import container, human_approval, task, wait
from lucius.core.steps.new_step import DISPATCHED

__all__ = ["answer_all", "counted", "decide", "decide_all", "unacked_counter"]

NO_CAPACITY: Mapping[str, Capacity] = MappingProxyType({})


def decide(view: JobSnapshot | None, input_: Input, now: Instant, env: Env) -> Decision:
    """Decide the consequences of one input for a job. `view` is None only for a Submit."""
    return decide_all(view, (input_,), now, env)


def decide_all(
    view: JobSnapshot | None,
    inputs: Sequence[Input],
    now: Instant,
    env: Env,
    capacity: Mapping[str, Capacity] = NO_CAPACITY,
) -> Decision:
    """Fold several inputs at one instant into one decision, hence one commit.

    `capacity` is the reserved capacity of waiting pulls, by service. Attempts that the inputs make ready are handed
    over in the same decision up to that capacity; `Decision.handed_over` lists them.
    Raises MissingSteps, and ValueError for inputs without a job other than a Submit.
    """
    changes = Changeset(view, now, env)
    replies = tuple([_decide_and_advance(changes, input_) for input_ in inputs])
    if not changes.exists:
        raise ValueError("a job that does not exist can only be submitted")
    if capacity:
        _hand_over_at_once(changes, capacity)
    return changes.finish(replies)


def answer_all(view: JobSnapshot, inputs: Sequence[Input], now: Instant, env: Env) -> Decision:
    """Return the replies to the inputs, and whether they would change anything, without the resulting changes.

    `steps` has the changed steps as far as they are known without following up on the last input.
    """
    changes = Changeset(view, now, env)
    replies: list[Reply] = []
    for input_ in inputs:
        if replies:
            scheduler.advance(changes)
        replies.append(_decide(changes, input_))
    return Decision(
        job=view.job,
        replies=tuple(replies),
        protocol=view.protocol,
        steps=changes.changed_steps,
        changes=changes.has_changes,
    )


def _hand_over_at_once(changes: Changeset, capacity: Mapping[str, Capacity]) -> None:
    handed_over: Counter[str] = Counter()
    for row in changes.new_rows():
        reserved = capacity.get(row.service)
        if reserved is None or handed_over[row.service] >= reserved.max_rows or not changes.has_room():
            continue
        report = HandedOver(row.step_id, row.attempt_no, row.lease_id, reserved.caps)
        if isinstance(_decide_and_advance(changes, report), Applied):
            handed_over[row.service] += 1
            changes.handed_over.append(row)


def _decide_and_advance(changes: Changeset, input_: Input) -> Reply:
    reply = _decide(changes, input_)
    if changes.exists:
        scheduler.advance(changes)
    return reply


def _decide(changes: Changeset, input_: Input) -> Reply:
    if not changes.exists and not isinstance(input_, Submit):
        return Refused("JOB_NOT_FOUND", "there is no such job")
    match input_:
        case Submit():
            return _submit(changes, input_)
        case Start():
            return _start(changes)
        case HandOverStarted():
            return _hand_over_started(changes, input_)
        case HandOverReleased():
            return _hand_over_released(changes, input_)
        case HandedOver():
            return _handed_over(changes, input_)
        case HandOverFailed():
            return _hand_over_failed(changes, input_)
        case Poisoned():
            return _poisoned(changes, input_)
        case Ack() | Heartbeat() | Succeeded() | Failed():
            return callbacks.receive(changes, input_)
        case DeadlinePassed():
            return _deadline_passed(changes, input_)
        case Cancel():
            return control.cancel(changes, input_)
        case Pause():
            return control.pause(changes, input_)
        case Resume():
            return control.resume(changes, input_)
        case GiveSignal():
            return wait.receive(changes, input_)
        case CastVote():
            return human_approval.receive(changes, input_)
        case Retry():
            return control.retry(changes, input_)
        case Skip():
            return control.skip(changes, input_)
        case Compensate():
            return control.compensate(changes, input_)
        case Adopt():
            return control.adopt(changes, input_)
        case Discard():
            return control.discard(changes, input_)
        case WebhookAttempted():
            return job_webhook.record_outcome(changes, input_)
        case RetryHandOver():
            return _retry_hand_over(changes, input_)
        case Repair():
            return _repair(changes, input_)
        case _:
            assert_never(input_)


def _submit(changes: Changeset, request: Submit) -> Reply:
    if changes.exists:
        return Ignored("the job exists already")
    own_timeout_ms = request.protocol.policies.timeout_ms
    pinned_timeout_ms = request.default_timeout_ms if own_timeout_ms is None else None
    timeout = own_timeout_ms or pinned_timeout_ms
    job = Job(
        job_id=request.job_id,
        command=request.command,
        protocol_id=request.protocol.protocol_id,
        protocol_version=request.protocol.version,
        protocol_digest=request.protocol_digest,
        routing=request.routing,
        status=JobStatus.QUEUED,
        created_at=changes.now,
        updated_at=changes.now,
        deadline=changes.now + timeout if timeout else None,
        timeout_ms=pinned_timeout_ms,
        engine=request.engine,
    )
    changes.create(job, request.protocol)
    changes.caps = request.caps
    changes.ready.append(Token(request.protocol.steps[0].step_id))
    changes.emit("JOB_ACCEPTED", by=request.command.submitted_by, protocol_version=request.protocol.version)
    return Applied()


def _start(changes: Changeset) -> Reply:
    if changes.job.status is not JobStatus.QUEUED:
        return Ignored("the job has started already")
    changes.change_job(status=JobStatus.DISPATCHING)
    if not changes.ready:
        changes.ready.append(Token(changes.protocol.steps[0].step_id))
    return Applied()


def _step_awaiting_handover(
    changes: Changeset, about: HandOverStarted | HandOverReleased | HandedOver | HandOverFailed
) -> Step | None:
    """Return the step if it is still waiting for this attempt to be handed over."""
    step = changes.steps.get(about.step_id)
    if step is None or step.status is not StepStatus.DISPATCHING:
        return None
    current = (step.attempt.attempt_no, step.attempt.lease_id) == (about.attempt_no, about.lease_id)
    return step if current else None


def _hand_over_started(changes: Changeset, report: HandOverStarted) -> Reply:
    step = _step_awaiting_handover(changes, report)
    if step is None or step.attempt.claimed_at is not None or container.must_not_be_handed_over(changes, step):
        return Ignored("this attempt does not wait to be handed over")
    changes.caps = (*changes.caps, *report.caps)
    task.claim(changes, step, report.by)
    return Applied()


def _hand_over_released(changes: Changeset, report: HandOverReleased) -> Reply:
    step = _step_awaiting_handover(changes, report)
    if step is None or step.attempt.claimed_at is None:
        return Ignored("this attempt is not being handed over")
    task.release(changes, step)
    return Applied()


def _handed_over(changes: Changeset, report: HandedOver) -> Reply:
    step = _step_awaiting_handover(changes, report)
    if step is None or (step.attempt.claimed_at is None and container.must_not_be_handed_over(changes, step)):
        return Ignored("this attempt does not wait to be handed over")
    changes.caps = (*changes.caps, *report.caps)
    handed_over = task.hand_over(changes, step, tenant_bound=bool(report.tenant_bound))
    if report.picked_up:
        task.pick_up(changes, handed_over)
    return Applied()


def _hand_over_failed(changes: Changeset, report: HandOverFailed) -> Reply:
    step = _step_awaiting_handover(changes, report)
    if step is None:
        return Ignored("this attempt does not wait to be handed over")
    changes.emit("HANDOVER_FAILED", step, error_code=report.error.code)
    task.fail_hand_over(changes, step, report.error)
    return Applied()


def _poisoned(changes: Changeset, report: Poisoned) -> Reply:
    step = changes.steps.get(report.step_id)
    if step is None or step.kind not in DISPATCHED or step.status not in callbacks.RUNNING:
        return Ignored("this attempt is not under way")
    if (step.attempt.attempt_no, step.attempt.lease_id) != (report.attempt_no, report.lease_id):
        return Ignored("another attempt is current")
    changes.emit("DIRECTIVE_POISONED", step, error_code=report.error.code)
    task.poison(changes, step, report.error)
    return Applied()


def _deadline_passed(changes: Changeset, tick: DeadlinePassed) -> Reply:
    if not changes.job.live:
        return Ignored("the job has ended")
    if changes.job.status is JobStatus.QUEUED and (changes.job.deadline is None or changes.job.deadline > changes.now):
        return _start(changes)
    return Applied() if deadlines.apply_deadlines(changes, tick) else Ignored("nothing is due")


def _retry_hand_over(changes: Changeset, request: RetryHandOver) -> Reply:
    waiting = [
        step
        for step in changes.active_steps()
        if step.status is StepStatus.FAILED_RETRY and step.attempt.outcome is AttemptOutcome.HANDOVER_FAILED
    ]
    if not waiting or changes.cancelling or changes.job.paused is not None:
        return Ignored("no step waits after a failed hand-over")
    steps = [step.step_id for step in waiting]
    changes.emit("HANDOVER_RETRY_REQUESTED", by=request.by, reason=request.reason, steps=steps)
    for step in waiting:
        if changes.has_room():
            task.dispatch_again(changes, step)
    return Applied()


def _repair(changes: Changeset, drift: Repair) -> Reply:
    if not changes.job.live:
        return Ignored("the job has ended")
    if changes.job.status is JobStatus.QUEUED:
        return _start(changes)
    for step in changes.active_steps():
        stopped = changes.cancelling and step.attempt.claimed_at is None
        if step.step_id not in drift.missing_rows or step.status is not StepStatus.DISPATCHING or stopped:
            continue
        if changes.has_room():
            changes.emit("DRIFT_REPAIRED", step, what="a DISPATCHING step had no outbox row")
            task.repair(changes, step)
    changes.change_job(blocked=None)  # derived again, with `due_at`, when the decision is finished
    return Applied()
