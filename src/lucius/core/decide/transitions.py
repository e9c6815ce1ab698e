"""All transitions that a job, a step and an outbox row may make, with their reasons.

`Changeset` refuses any other, and the state diagram in the docs is generated from these tables.
"""

from enum import StrEnum

from msgspec import Struct

from lucius.core.model.statuses import JobStatus, OutboxStatus, StepStatus


class Transition(Struct, frozen=True):
    before: StrEnum | None
    after: StrEnum
    why: str


def _rows(before: StrEnum | None, *arrows: tuple[StrEnum, str]) -> tuple[Transition, ...]:
    return tuple(Transition(before, after, why) for after, why in arrows)


J, S, O = JobStatus, StepStatus, OutboxStatus  # noqa: E741

JOB_TRANSITIONS = (
    *_rows(None, (J.QUEUED, "a command is accepted")),
    *_rows(
        J.QUEUED,
        (J.DISPATCHING, "the engine starts the job"),
        (J.PAUSED, "pause is requested"),
        (J.CANCELLING, "cancel is requested"),
        (J.FAILED_FINAL, "the job timed out"),
    ),
    *_rows(
        J.DISPATCHING,
        (J.IN_PROGRESS, "the first directive is handed over, or a step that needs none starts"),
        (J.PAUSED, "pause is requested, or an operator must decide about compensation"),
        (J.CANCELLING, "cancel is requested"),
        (J.FAILED_FINAL, "the first step could not be handed over, or the job timed out"),
    ),
    *_rows(
        J.IN_PROGRESS,
        (J.WAITING_APPROVAL, "an approval is pending and no other step runs"),
        (J.PAUSED, "pause is requested, or an operator must decide about compensation"),
        (J.SUCCEEDED, "the last step succeeded"),
        (J.FAILED_FINAL, "a step failed finally, or the job timed out"),
        (J.CANCELLING, "cancel is requested"),
    ),
    *_rows(
        J.WAITING_APPROVAL,
        (J.IN_PROGRESS, "the approval is decided, or another step is active again"),
        (J.PAUSED, "pause is requested"),
        (J.CANCELLING, "cancel is requested"),
    ),
    *_rows(
        J.PAUSED,
        (J.DISPATCHING, "resumed before the first hand-over"),
        (J.IN_PROGRESS, "resumed, or an operator resolved the review"),
        (J.CANCELLING, "cancel is requested"),
    ),
    *_rows(J.CANCELLING, (J.CANCELLED, "no step is active any more")),
    *_rows(J.FAILED_FINAL, (J.QUEUED, "an operator opens a new run")),
    *_rows(J.CANCELLED, (J.QUEUED, "an operator opens a new run")),
)

_STARTS = (
    (S.DISPATCHING, "started: attempt and outbox row are recorded"),
    (S.WAITING, "started: a timer runs, or a signal is awaited"),
    (S.AWAITING_APPROVAL, "started: approval is requested"),
    (S.PROCESSING, "started: branches or items are created"),
    (S.SUCCEEDED, "started: decided immediately, or nothing to wait for"),
    (S.FAILED_FINAL, "started: an expression or template can't be evaluated"),
)

STEP_TRANSITIONS = (
    *_rows(
        S.PENDING,
        *_STARTS,
        (S.SKIPPED, "not on the path that was taken, or skipped by an operator"),
        (S.CANCELLED, "the job was cancelled before the step started"),
    ),
    *_rows(
        S.DISPATCHING,
        (S.INITIATED, "handed over, or implied by a callback"),
        (S.FAILED_RETRY, "the hand-over failed"),
        (S.FAILED_FINAL, "the hand-over failed and no attempt is left, or the job timed out"),
        (S.CANCELLED, "cancelled before hand-over"),
        (S.SUCCEEDED, "a quarantined success is adopted"),
        (S.DISPATCHING, "its outbox row was missing: a new attempt is recorded"),
    ),
    *_rows(
        S.INITIATED,
        (S.PROCESSING, "picked up: ACK, heartbeat or RESULT"),
        (S.FAILED_RETRY, "no ACK in time"),
        (S.FAILED_FINAL, "no ACK in time and no attempt is left, or the job timed out"),
        (S.CANCELLED, "no ACK in time while the job is being cancelled, or a sibling failed fast"),
        (S.SUCCEEDED, "a quarantined success is adopted"),
    ),
    *_rows(
        S.PROCESSING,
        (S.SUCCEEDED, "RESULT success, or all branches and items are joined"),
        (S.FAILED_RETRY, "a retryable failure, a lost lease or the step's time limit"),
        (S.FAILED_FINAL, "failed finally: not retryable, no attempt left, or the job timed out"),
        (S.CANCELLED, "a retryable failure or a lost lease while the job is being cancelled, or a sibling failed fast"),
    ),
    *_rows(
        S.FAILED_RETRY,
        (S.DISPATCHING, "its backoff ended: a new attempt with a new lease"),
        (S.SUCCEEDED, "the timed-out attempt succeeded before the retry started, or a quarantined success is adopted"),
        (S.FAILED_FINAL, "the job timed out"),
        (S.CANCELLED, "the job was cancelled while the step waited, or a sibling failed fast"),
    ),
    *_rows(
        S.WAITING,
        (S.SUCCEEDED, "the timer ended, or the signal was received"),
        (S.FAILED_FINAL, "the signal was not received in time, or the job timed out"),
        (S.CANCELLED, "the job was cancelled while the step waited, or a sibling failed fast"),
    ),
    *_rows(
        S.AWAITING_APPROVAL,
        (S.SUCCEEDED, "the quorum approved"),
        (S.FAILED_FINAL, "rejected, not decided in time, or the job timed out"),
        (S.CANCELLED, "the job was cancelled while the step waited, or a sibling failed fast"),
    ),
    *(
        row
        for ended in (S.SUCCEEDED, S.FAILED_FINAL, S.CANCELLED, S.SKIPPED)
        for row in _rows(ended, *((after, f"visited again, or a new run: {why}") for after, why in _STARTS))
    ),
    *_rows(S.SUCCEEDED, (S.SKIPPED, "a new run: skipped by an operator")),
    *_rows(S.FAILED_FINAL, (S.SKIPPED, "a new run: skipped by an operator")),
    *_rows(S.CANCELLED, (S.SKIPPED, "a new run: skipped by an operator")),
    *_rows(S.SKIPPED, (S.SKIPPED, "a new run: skipped again by an operator")),
)

OUTBOX_TRANSITIONS = (
    *_rows(None, (O.PENDING, "an attempt is recorded")),
    *_rows(
        O.PENDING,
        (O.SENT, "handed over, or its outcome is unknown"),
        (O.FAILED_FINAL, "the hand-over failed and no attempt is left"),
        (O.WITHDRAWN, "cancelled or fenced before hand-over"),
    ),
)

# A step that has not started has no record. This is its status once its job has ended.
NOT_STARTED = {
    J.SUCCEEDED: S.SKIPPED,
    J.FAILED_FINAL: S.SKIPPED,
    J.CANCELLED: S.CANCELLED,
}

JOB_ARROWS = frozenset((t.before, t.after) for t in JOB_TRANSITIONS)
STEP_ARROWS = frozenset((t.before, t.after) for t in STEP_TRANSITIONS)
