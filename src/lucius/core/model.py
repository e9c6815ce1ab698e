"""The records the core reasons about: jobs, steps, attempts, outbox rows, events.

Instants are integer milliseconds since the epoch and durations are milliseconds, so that arithmetic is exact
and an index over `due_at` is a plain integer index. Everything is frozen: a change is a new value.
"""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

Instant = int
Millis = int


class Mode(StrEnum):
    DEFAULT = "DEFAULT"
    SAFE = "SAFE"
    BURST = "BURST"


class JobStatus(StrEnum):
    QUEUED = "QUEUED"
    DISPATCHING = "DISPATCHING"
    IN_PROGRESS = "IN_PROGRESS"
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
    """How an attempt ended. Only FAILED and SUCCEEDED were said by a service; the rest we concluded."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    HANDOVER_FAILED = "HANDOVER_FAILED"
    ACK_TIMEOUT = "ACK_TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    STEP_TIMEOUT = "STEP_TIMEOUT"
    JOB_TIMEOUT = "JOB_TIMEOUT"
    WITHDRAWN = "WITHDRAWN"
    REPAIRED = "REPAIRED"


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
    ENGINE = "ENGINE"


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    code: str
    message: str = ""


class Routing(Struct, frozen=True):
    """Where a job's directives go, decided once at ingress and pinned on every attempt."""

    resolved_mode: Mode
    lane: int
    routing_key_used: str
    decision_source: str
    decision_reason: str


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the client asked for, normalised and validated. Never changes after acceptance."""

    tenant_id: str
    request_type: str
    input_ref: str
    output_ref: str
    payload: dict[str, Any]
    schema_version: str
    workspace_ref: str
    correlation_id: str
    mode: Mode | None = None
    idempotency_key: str | None = None
    idempotency_hash: str = ""
    doc_id: str | None = None
    traceparent: str | None = None
    callback_urls: dict[str, str] = field(default_factory=dict)
    target: dict[str, str] | None = None
    submitted_by: str = ""


class Blocked(Struct, frozen=True, omit_defaults=True):
    """Why a live job waits. The sentence a person reads is made from it by `explain`."""

    reason: BlockedReason
    since: Instant
    until: Instant | None = None
    step_id: str | None = None


class CancelRequest(Struct, frozen=True, omit_defaults=True):
    by: str
    at: Instant
    reason: str = ""


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try at a step. It lives on its step while current and is appended to the history once superseded."""

    attempt_no: int
    lease_id: str
    run_no: int
    routing: Routing
    outbox_id: str
    created_at: Instant
    claimed_at: Instant | None = None
    handed_over_at: Instant | None = None
    ack_deadline: Instant | None = None
    picked_up_at: Instant | None = None
    acked_at: Instant | None = None
    lease_expires_at: Instant | None = None
    hard_deadline: Instant | None = None
    progress: float | None = None
    ended_at: Instant | None = None
    outcome: AttemptOutcome | None = None
    failure_class: FailureClass | None = None
    error: ErrorInfo | None = None
    digest: str | None = None
    extra: dict[str, Any] | None = None


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that has started. One that has not is PENDING and has no record: it is derived from the protocol."""

    job_id: str
    step_id: str
    index: int
    kind: str
    step_type: str
    service: str
    status: StepStatus
    attempt: Attempt
    tries: int
    idempotency_key: str
    created_at: Instant
    updated_at: Instant
    completed_at: Instant | None = None
    retry_at: Instant | None = None
    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)
    last_error: ErrorInfo | None = None


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's head: all that `decide` needs beside the steps it touches."""

    job_id: str
    command: Command
    protocol_id: str
    protocol_version: int
    protocol_digest: str
    routing: Routing
    status: JobStatus
    created_at: Instant
    updated_at: Instant
    version: int = 0
    event_seq: int = 0
    run_no: int = 1
    current_step_id: str | None = None
    active: tuple[str, ...] = ()
    attempts_total: int = 0
    deadline: Instant | None = None
    due_at: Instant | None = None
    blocked: Blocked | None = None
    error: ErrorInfo | None = None
    cancel: CancelRequest | None = None
    completed_at: Instant | None = None

    @property
    def tenant_id(self) -> str:
        return self.command.tenant_id

    @property
    def live(self) -> bool:
        return self.status not in TERMINAL_JOB


class OutboxRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The durable intent to hand one attempt over. The directive itself is rendered at hand-over."""

    outbox_id: str
    job_id: str
    tenant_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    service: str
    topic: str
    lane: int
    status: OutboxStatus
    created_at: Instant
    next_attempt_at: Instant | None = None
    claimed_at: Instant | None = None
    settled_at: Instant | None = None


class Event(Struct, frozen=True, omit_defaults=True):
    job_id: str
    seq: int
    type: str
    at: Instant
    step_id: str | None = None
    attempt_no: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


class Quarantined(Struct, frozen=True):
    """A success of a fenced attempt, kept so that a person can adopt it instead of paying for the step again."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    received_at: Instant
    result: Any
    artifact_refs: list[str]


def message_id(job_id: str, step_id: str, attempt_no: int) -> str:
    return f"{job_id}/{step_id}/{attempt_no}"
