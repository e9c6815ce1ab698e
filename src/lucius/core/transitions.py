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
        (J.DISPATCHING, "an engine takes the job and the first outbox row is written"),
        (J.CANCELLING, "cancel is asked"),
        (J.FAILED_FINAL, "the job's time is up"),
    ),
    *_rows(
        J.DISPATCHING,
        (J.IN_PROGRESS, "the first directive is handed over"),
        (J.CANCELLING, "cancel is asked"),
        (J.FAILED_FINAL, "the first step could not be handed over, or the job's time is up"),
    ),
    *_rows(
        J.IN_PROGRESS,
        (J.SUCCEEDED, "the last step succeeded"),
        (J.FAILED_FINAL, "a step failed for good, or the job's time is up"),
        (J.CANCELLING, "cancel is asked"),
    ),
    *_rows(J.CANCELLING, (J.CANCELLED, "nothing is with a service any more")),
)

STEP_TRANSITIONS = (
    *_rows(
        S.PENDING,
        (S.DISPATCHING, "its turn has come: attempt and outbox row are recorded"),
        (S.SKIPPED, "the job failed before its turn"),
        (S.CANCELLED, "the job was cancelled before its turn"),
    ),
    *_rows(
        S.DISPATCHING,
        (S.INITIATED, "handed over, as reported or as a callback proves"),
        (S.FAILED_RETRY, "the hand-over failed"),
        (S.FAILED_FINAL, "the hand-over failed and no attempt is left, or the job's time is up"),
        (S.CANCELLED, "cancelled before hand-over"),
        (S.DISPATCHING, "its outbox row was missing: recorded again as a new attempt"),
    ),
    *_rows(
        S.INITIATED,
        (S.PROCESSING, "picked up: ACK, heartbeat or RESULT"),
        (S.FAILED_RETRY, "no ACK in time"),
        (S.FAILED_FINAL, "no ACK in time and no attempt is left, or the job's time is up"),
        (S.CANCELLED, "no ACK in time while the job is being cancelled"),
    ),
    *_rows(
        S.PROCESSING,
        (S.SUCCEEDED, "RESULT success"),
        (S.FAILED_RETRY, "a retryable failure, a lost lease or the step's time limit"),
        (S.FAILED_FINAL, "failed for good: not retryable, no attempt left, or the job's time is up"),
        (S.CANCELLED, "a retryable failure or a lost lease while the job is being cancelled"),
    ),
    *_rows(
        S.FAILED_RETRY,
        (S.DISPATCHING, "its backoff is over: a new attempt with a new lease"),
        (S.SUCCEEDED, "the timed-out attempt succeeded before the retry started"),
        (S.FAILED_FINAL, "the job's time is up"),
        (S.CANCELLED, "the job was cancelled while the step waited"),
    ),
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
