"""`decide`: every rule about states, as one pure function with a clause for each input."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import assert_never

from lucius.core import approvals, callbacks, containers, control, deadlines, notices, tasks, turns, waits
from lucius.core.counters import counted, unacked_counter
from lucius.core.decision import Applied, Decision, Env, Ignored, JobView, Refused, Reply
from lucius.core.draft import Draft
from lucius.core.inputs import (
    Ack,
    Adopt,
    Cancel,
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
    NoticeTold,
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
    Taker,
)
from lucius.core.model import AttemptOutcome, Instant, Job, JobStatus, Step, StepStatus, Token
from lucius.core.steps import DISPATCHED

__all__ = ["answer_all", "counted", "decide", "decide_all", "unacked_counter"]

Takers = Callable[[str, str], Taker | None]
"""Who of a service waits at this moment for directives of a tenant."""


def decide(view: JobView | None, happened: Input, now: Instant, env: Env) -> Decision:
    """What becomes of a job when this happens. `view` is None only for a Submit."""
    return decide_all(view, (happened,), now, env)


def decide_all(
    view: JobView | None, inputs: Sequence[Input], now: Instant, env: Env, takers: Takers | None = None
) -> Decision:
    """Several inputs at one instant, folded into one decision and hence one commit.

    With `takers`, what the inputs make ready for a service that waits is handed over to it in the same decision.
    """
    draft = Draft(view, now, env)
    replies = tuple([_decide_and_settle(draft, happened) for happened in inputs])
    if not draft.exists:
        raise ValueError("a job that does not exist can only be submitted")
    if takers is not None:
        _hand_over_at_once(draft, takers)
    return draft.finish(replies)


def answer_all(view: JobView, inputs: Sequence[Input], now: Instant, env: Env) -> Decision:
    """How each of them would be answered, and whether anything would come of it. What, is not worked out."""
    draft = Draft(view, now, env)
    replies: list[Reply] = []
    for happened in inputs:
        if replies:
            turns.settle(draft)
        replies.append(_decide(draft, happened))
    return Decision(job=view.job, replies=tuple(replies), protocol=view.protocol, changes=draft.has_changes)


def _hand_over_at_once(draft: Draft, takers: Takers) -> None:
    taken: Counter[str] = Counter()
    for row in draft.new_rows():
        taker = takers(row.service, row.tenant_id)
        if taker is None or taken[row.service] >= taker.room or not draft.has_room():
            continue
        handed_over = HandedOver(row.step_id, row.attempt_no, row.lease_id, taker.caps)
        if isinstance(_decide_and_settle(draft, handed_over), Applied):
            taken[row.service] += 1
            draft.given.append(row)


def _decide_and_settle(draft: Draft, happened: Input) -> Reply:
    reply = _decide(draft, happened)
    if draft.exists:
        turns.settle(draft)
    return reply


def _decide(draft: Draft, happened: Input) -> Reply:
    if not draft.exists and not isinstance(happened, Submit):
        return Refused("JOB_NOT_FOUND", "there is no such job")
    match happened:
        case Submit():
            return _submit(draft, happened)
        case Start():
            return _start(draft)
        case HandOverStarted():
            return _hand_over_started(draft, happened)
        case HandOverReleased():
            return _hand_over_released(draft, happened)
        case HandedOver():
            return _handed_over(draft, happened)
        case HandOverFailed():
            return _hand_over_failed(draft, happened)
        case Poisoned():
            return _poisoned(draft, happened)
        case Ack() | Heartbeat() | Succeeded() | Failed():
            return callbacks.receive(draft, happened)
        case DeadlinePassed():
            return _deadline_passed(draft, happened)
        case Cancel():
            return control.cancel(draft, happened)
        case Pause():
            return control.pause(draft, happened)
        case Resume():
            return control.resume(draft, happened)
        case GiveSignal():
            return waits.receive(draft, happened)
        case CastVote():
            return approvals.receive(draft, happened)
        case Retry():
            return control.retry(draft, happened)
        case Skip():
            return control.skip(draft, happened)
        case Compensate():
            return control.compensate(draft, happened)
        case Adopt():
            return control.adopt(draft, happened)
        case Discard():
            return control.discard(draft, happened)
        case NoticeTold():
            return notices.told(draft, happened)
        case RetryHandOver():
            return _retry_hand_over(draft, happened)
        case Repair():
            return _repair(draft, happened)
        case _:
            assert_never(happened)


def _submit(draft: Draft, asked: Submit) -> Reply:
    if draft.exists:
        return Ignored("the job exists already")
    timeout = asked.protocol.policies.timeout_ms
    job = Job(
        job_id=asked.job_id,
        command=asked.command,
        protocol_id=asked.protocol.protocol_id,
        protocol_version=asked.protocol.version,
        protocol_digest=asked.protocol_digest,
        routing=asked.routing,
        status=JobStatus.QUEUED,
        created_at=draft.now,
        updated_at=draft.now,
        deadline=draft.now + timeout if timeout else None,
        engine=asked.engine,
    )
    draft.create(job, asked.protocol)
    draft.caps = asked.caps
    draft.ready.append(Token(asked.protocol.steps[0].step_id))
    draft.emit("JOB_ACCEPTED", by=asked.command.submitted_by, protocol_version=asked.protocol.version)
    return Applied()


def _start(draft: Draft) -> Reply:
    if draft.job.status is not JobStatus.QUEUED:
        return Ignored("the job has started already")
    draft.change_job(status=JobStatus.DISPATCHING)
    if not draft.ready:
        draft.ready.append(Token(draft.protocol.steps[0].step_id))
    return Applied()


def _current(draft: Draft, about: HandOverStarted | HandOverReleased | HandedOver | HandOverFailed) -> Step | None:
    """The step, if it still waits for this attempt to be handed over."""
    step = draft.steps.get(about.step_id)
    if step is None or step.status is not StepStatus.DISPATCHING:
        return None
    current = (step.attempt.attempt_no, step.attempt.lease_id) == (about.attempt_no, about.lease_id)
    return step if current else None


def _hand_over_started(draft: Draft, report: HandOverStarted) -> Reply:
    step = _current(draft, report)
    if step is None or step.attempt.claimed_at is not None or containers.is_doomed(draft, step):
        return Ignored("this attempt does not wait to be handed over")
    draft.caps = (*draft.caps, *report.caps)
    tasks.claim(draft, step, report.by)
    return Applied()


def _hand_over_released(draft: Draft, report: HandOverReleased) -> Reply:
    step = _current(draft, report)
    if step is None or step.attempt.claimed_at is None:
        return Ignored("this attempt is not being handed over")
    tasks.release(draft, step)
    return Applied()


def _handed_over(draft: Draft, report: HandedOver) -> Reply:
    step = _current(draft, report)
    if step is None or (step.attempt.claimed_at is None and containers.is_doomed(draft, step)):
        return Ignored("this attempt does not wait to be handed over")
    draft.caps = (*draft.caps, *report.caps)
    handed_over = tasks.hand_over(draft, step)
    if report.picked_up:
        tasks.pick_up(draft, handed_over)
    return Applied()


def _hand_over_failed(draft: Draft, report: HandOverFailed) -> Reply:
    step = _current(draft, report)
    if step is None:
        return Ignored("this attempt does not wait to be handed over")
    draft.emit("HANDOVER_FAILED", step, error_code=report.error.code)
    tasks.fail_hand_over(draft, step, report.error)
    return Applied()


def _poisoned(draft: Draft, report: Poisoned) -> Reply:
    step = draft.steps.get(report.step_id)
    if step is None or step.kind not in DISPATCHED or step.status not in callbacks.RUNNING:
        return Ignored("this attempt is not under way")
    if (step.attempt.attempt_no, step.attempt.lease_id) != (report.attempt_no, report.lease_id):
        return Ignored("another attempt is current")
    draft.emit("DIRECTIVE_POISONED", step, error_code=report.error.code)
    tasks.poison(draft, step, report.error)
    return Applied()


def _deadline_passed(draft: Draft, tick: DeadlinePassed) -> Reply:
    if not draft.job.live:
        return Ignored("the job has ended")
    if draft.job.status is JobStatus.QUEUED and (draft.job.deadline is None or draft.job.deadline > draft.now):
        return _start(draft)
    return Applied() if deadlines.pass_deadlines(draft, tick) else Ignored("nothing is due")


def _retry_hand_over(draft: Draft, asked: RetryHandOver) -> Reply:
    waiting = [
        step
        for step in draft.active_steps()
        if step.status is StepStatus.FAILED_RETRY and step.attempt.outcome is AttemptOutcome.HANDOVER_FAILED
    ]
    if not waiting or draft.cancelling or draft.job.paused is not None:
        return Ignored("no step waits after a failed hand-over")
    steps = [step.step_id for step in waiting]
    draft.emit("HANDOVER_RETRY_REQUESTED", by=asked.by, reason=asked.reason, steps=steps)
    for step in waiting:
        if draft.has_room():
            tasks.dispatch_again(draft, step)
    return Applied()


def _repair(draft: Draft, drift: Repair) -> Reply:
    if not draft.job.live:
        return Ignored("the job has ended")
    if draft.job.status is JobStatus.QUEUED:
        return _start(draft)
    for step in draft.active_steps():
        stopped = draft.cancelling and step.attempt.claimed_at is None
        if step.step_id not in drift.missing_rows or step.status is not StepStatus.DISPATCHING or stopped:
            continue
        if draft.has_room():
            draft.emit("DRIFT_REPAIRED", step, what="a DISPATCHING step had no outbox row")
            tasks.repair(draft, step)
    draft.change_job(blocked=None)  # derived anew, with `due_at`, when the decision is finished
    return Applied()
