"""Every transition a job, a step and an outbox row may make, with its reason.

The draft that `decide` works on refuses any other, and the state diagram in the docs is made from these tables.
"""

from enum import StrEnum

from msgspec import Struct

from lucius.core.model import JobStatus, OutboxStatus, StepStatus


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
        (J.DISPATCHING, "an engine takes the job"),
        (J.PAUSED, "pause is asked"),
        (J.CANCELLING, "cancel is asked"),
        (J.FAILED_FINAL, "the job's time is up"),
    ),
    *_rows(
        J.DISPATCHING,
        (J.IN_PROGRESS, "the first directive is handed over, or a step that needs none starts"),
        (J.PAUSED, "pause is asked, or a person must decide about compensation"),
        (J.CANCELLING, "cancel is asked"),
        (J.FAILED_FINAL, "the first step could not be handed over, or the job's time is up"),
    ),
    *_rows(
        J.IN_PROGRESS,
        (J.WAITING_APPROVAL, "nothing runs and someone must approve"),
        (J.PAUSED, "pause is asked, or a person must decide about compensation"),
        (J.SUCCEEDED, "the last step succeeded"),
        (J.FAILED_FINAL, "a step failed for good, or the job's time is up"),
        (J.CANCELLING, "cancel is asked"),
    ),
    *_rows(
        J.WAITING_APPROVAL,
        (J.IN_PROGRESS, "the approval is decided, or something runs beside it again"),
        (J.PAUSED, "pause is asked"),
        (J.CANCELLING, "cancel is asked"),
    ),
    *_rows(
        J.PAUSED,
        (J.DISPATCHING, "resumed before the first hand-over"),
        (J.IN_PROGRESS, "resumed, or a person resolved the review"),
        (J.CANCELLING, "cancel is asked"),
    ),
    *_rows(J.CANCELLING, (J.CANCELLED, "nothing is with a service any more")),
    *_rows(J.FAILED_FINAL, (J.QUEUED, "a person opens a new run")),
    *_rows(J.CANCELLED, (J.QUEUED, "a person opens a new run")),
)

_STARTS = (
    (S.DISPATCHING, "its turn has come: attempt and outbox row are recorded"),
    (S.WAITING, "its turn has come: a timer runs, or a signal is awaited"),
    (S.AWAITING_APPROVAL, "its turn has come: people are asked"),
    (S.PROCESSING, "its turn has come: branches or items are made"),
    (S.SUCCEEDED, "its turn has come: decided at once, or nothing to wait for"),
    (S.FAILED_FINAL, "its turn has come, and an expression or template of it can't be evaluated"),
)

STEP_TRANSITIONS = (
    *_rows(
        S.PENDING,
        *_STARTS,
        (S.SKIPPED, "not on the path that was taken, or a person skipped it"),
        (S.CANCELLED, "the job was cancelled before its turn"),
    ),
    *_rows(
        S.DISPATCHING,
        (S.INITIATED, "handed over, as reported or as a callback proves"),
        (S.FAILED_RETRY, "the hand-over failed"),
        (S.FAILED_FINAL, "the hand-over failed and no attempt is left, or the job's time is up"),
        (S.CANCELLED, "cancelled before hand-over"),
        (S.SUCCEEDED, "a quarantined success is adopted"),
        (S.DISPATCHING, "its outbox row was missing: recorded again as a new attempt"),
    ),
    *_rows(
        S.INITIATED,
        (S.PROCESSING, "picked up: ACK, heartbeat or RESULT"),
        (S.FAILED_RETRY, "no ACK in time"),
        (S.FAILED_FINAL, "no ACK in time and no attempt is left, or the job's time is up"),
        (S.CANCELLED, "no ACK in time while the job is being cancelled, or a sibling failed fast"),
        (S.SUCCEEDED, "a quarantined success is adopted"),
    ),
    *_rows(
        S.PROCESSING,
        (S.SUCCEEDED, "RESULT success, or all branches and items are joined"),
        (S.FAILED_RETRY, "a retryable failure, a lost lease or the step's time limit"),
        (S.FAILED_FINAL, "failed for good: not retryable, no attempt left, or the job's time is up"),
        (S.CANCELLED, "a retryable failure or a lost lease while the job is being cancelled, or a sibling failed fast"),
    ),
    *_rows(
        S.FAILED_RETRY,
        (S.DISPATCHING, "its backoff is over: a new attempt with a new lease"),
        (S.SUCCEEDED, "the timed-out attempt succeeded before the retry started, or a quarantined success is adopted"),
        (S.FAILED_FINAL, "the job's time is up"),
        (S.CANCELLED, "the job was cancelled while the step waited, or a sibling failed fast"),
    ),
    *_rows(
        S.WAITING,
        (S.SUCCEEDED, "the time has passed, or the signal came"),
        (S.FAILED_FINAL, "the signal did not come in time, or the job's time is up"),
        (S.CANCELLED, "the job was cancelled while the step waited, or a sibling failed fast"),
    ),
    *_rows(
        S.AWAITING_APPROVAL,
        (S.SUCCEEDED, "enough people approved"),
        (S.FAILED_FINAL, "rejected, not decided in time, or the job's time is up"),
        (S.CANCELLED, "the job was cancelled while the step waited, or a sibling failed fast"),
    ),
    *(
        row
        for ended in (S.SUCCEEDED, S.FAILED_FINAL, S.CANCELLED, S.SKIPPED)
        for row in _rows(ended, *((after, f"visited again, or a new run: {why}") for after, why in _STARTS))
    ),
    *_rows(S.SUCCEEDED, (S.SKIPPED, "a new run: a person skipped it")),
    *_rows(S.FAILED_FINAL, (S.SKIPPED, "a new run: a person skipped it")),
    *_rows(S.CANCELLED, (S.SKIPPED, "a new run: a person skipped it")),
    *_rows(S.SKIPPED, (S.SKIPPED, "a new run: a person skipped it again")),
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

# A step whose turn has not come has no record. This is what it counts as once its job has ended.
NOT_STARTED = {
    J.SUCCEEDED: S.SKIPPED,
    J.FAILED_FINAL: S.SKIPPED,
    J.CANCELLED: S.CANCELLED,
}

JOB_ARROWS = frozenset((t.before, t.after) for t in JOB_TRANSITIONS)
STEP_ARROWS = frozenset((t.before, t.after) for t in STEP_TRANSITIONS)
