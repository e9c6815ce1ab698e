"""Statuses and other enumerations of the records."""

from enum import StrEnum


class Mode(StrEnum):
    DEFAULT = "DEFAULT"
    SAFE = "SAFE"
    BURST = "BURST"


class JobStatus(StrEnum):
    QUEUED = "QUEUED"
    DISPATCHING = "DISPATCHING"
    IN_PROGRESS = "IN_PROGRESS"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"


TERMINAL_JOB = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED_FINAL, JobStatus.CANCELLED})


class StepStatus(StrEnum):
    PENDING = "PENDING"
    DISPATCHING = "DISPATCHING"
    INITIATED = "INITIATED"
    PROCESSING = "PROCESSING"
    FAILED_RETRY = "FAILED_RETRY"
    WAITING = "WAITING"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    SUCCEEDED = "SUCCEEDED"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


TERMINAL_STEP = frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED_FINAL, StepStatus.CANCELLED, StepStatus.SKIPPED})
WITH_SERVICE = frozenset({StepStatus.INITIATED, StepStatus.PROCESSING})


class OutboxStatus(StrEnum):
    PENDING = "PENDING"
    SENT = "SENT"
    FAILED_FINAL = "FAILED_FINAL"
    WITHDRAWN = "WITHDRAWN"


class FailureClass(StrEnum):
    TRANSIENT = "TRANSIENT"
    RETRYABLE = "RETRYABLE"
    RATE_LIMITED = "RATE_LIMITED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    NON_RETRYABLE = "NON_RETRYABLE"
    COMPENSATION_REQUIRED = "COMPENSATION_REQUIRED"


class AttemptOutcome(StrEnum):
    """How an attempt ended. Services or people report SUCCEEDED, FAILED and REJECTED; Lucius infers the others."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    HANDOVER_FAILED = "HANDOVER_FAILED"
    POISONED = "POISONED"
    ACK_TIMEOUT = "ACK_TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    STEP_TIMEOUT = "STEP_TIMEOUT"
    JOB_TIMEOUT = "JOB_TIMEOUT"
    WITHDRAWN = "WITHDRAWN"
    REPAIRED = "REPAIRED"
    REJECTED = "REJECTED"
    FENCED = "FENCED"


TIMED_OUT = frozenset({AttemptOutcome.ACK_TIMEOUT, AttemptOutcome.LEASE_EXPIRED, AttemptOutcome.STEP_TIMEOUT})


class Disposition(StrEnum):
    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    LATE = "LATE"
    STALE = "STALE"


class BlockedReason(StrEnum):
    HANDOVER = "HANDOVER"
    DISPATCH_WINDOW = "DISPATCH_WINDOW"
    ACK = "ACK"
    RESULT = "RESULT"
    RETRY = "RETRY"
    TIMER = "TIMER"
    SIGNAL = "SIGNAL"
    APPROVAL = "APPROVAL"
    PAUSED = "PAUSED"
    REVIEW = "REVIEW"
    ENGINE = "ENGINE"


class ReviewKind(StrEnum):
    """Reason for a review item.

    A job failed for good, a side effect may need undoing, the bus refused a message for good or no consumer could take
    it, or a fenced attempt succeeded after all.
    """

    JOB_FAILED = "JOB_FAILED"
    COMPENSATION = "COMPENSATION"
    POISON = "POISON"
    STALE_RESULT = "STALE_RESULT"


class ReviewStatus(StrEnum):
    OPEN = "OPEN"
    REPROCESSED = "REPROCESSED"
    RESOLVED = "RESOLVED"
    DISCARDED = "DISCARDED"
