"""The records the core reasons about: jobs, steps, attempts, outbox rows, events.

Instants are integer milliseconds since the epoch and durations are milliseconds, so that arithmetic is exact
and an index over `due_at` is a plain integer index. Everything is frozen: a change is a new value.
"""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

Instant = int
Millis = int

NEVER: Instant = 2**62
"""The clock of a job that waits for the outside and for nothing else."""


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
    """How an attempt ended. Only SUCCEEDED, FAILED and REJECTED were said by a service or a person; the rest we
    concluded."""

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
    """Why a person must look: a job failed for good, a side effect may need undoing, the bus refused a message for
    good or nobody could take it, a fenced attempt succeeded after all."""

    JOB_FAILED = "JOB_FAILED"
    COMPENSATION = "COMPENSATION"
    POISON = "POISON"
    STALE_RESULT = "STALE_RESULT"


class ReviewStatus(StrEnum):
    OPEN = "OPEN"
    REPROCESSED = "REPROCESSED"
    RESOLVED = "RESOLVED"
    DISCARDED = "DISCARDED"


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
    service: str | None = None


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
    claimed_by: str = ""
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
    idempotency_key: str = ""
    visit: int = 1
    adopted_from: int | None = None
    held: bool = False


class Vote(Struct, frozen=True, omit_defaults=True):
    by: str
    approves: bool
    at: Instant
    comment: str = ""


class Request(Struct, frozen=True, omit_defaults=True):
    """A call or a webhook, rendered once so that every attempt sends the same. Secrets are still names in it."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


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
    visit: int = 1
    wake_at: Instant | None = None
    awaits: str | None = None
    votes: tuple[Vote, ...] = ()
    request: Request | None = None
    guard_request: Request | None = None
    items: list[Any] | None = None
    before: str | None = None
    closes: str | None = None
    closes_visit: int = 0
    run_no: int = 1
    undone: bool = False
    repeats: bool = False
    effect: Any = None
    """What a step with a handler came to when it succeeded last: undoing needs it, also while it is done again."""


class Failure(Struct, frozen=True, omit_defaults=True):
    """What made a flow fail."""

    step_id: str | None
    error: ErrorInfo
    failure_class: FailureClass | None = None
    outcome: AttemptOutcome | None = None
    attempt_no: int | None = None


class Token(Struct, frozen=True, omit_defaults=True):
    """Where a flow stands between two steps: what comes next, inside which container and for which map items.

    `before` is the step whose result counts if the flow ends here. `keeps` lets steps that succeeded in an earlier
    run stand; with `anew` the target itself is begun again all the same.
    """

    target: str
    container: str | None = None
    items: tuple[int, ...] = ()
    before: str | None = None
    failure: Failure | None = None
    asked: bool = False
    keeps: bool = False
    anew: bool = False


class Scope(Struct, frozen=True, omit_defaults=True):
    """How far a parallel or a map has come. On the job's head, so that an item's end rewrites no list of items."""

    container: str
    total: int
    next: int = 0
    live: int = 0
    succeeded: int = 0
    failed: int = 0
    keeps: bool = False
    failing: Failure | None = None
    visit: int = 1


class Signal(Struct, frozen=True, omit_defaults=True):
    """A signal that came before anything waited for it."""

    name: str
    by: str
    at: Instant
    payload: Any = None


class Pause(Struct, frozen=True, omit_defaults=True):
    by: str
    at: Instant
    reason: str = ""
    on_review: bool = False


class Compensation(Struct, frozen=True, omit_defaults=True):
    """Steps whose effects are being undone, the last one first. `failed` halts it until a person acts."""

    todo: tuple[str, ...]
    started_at: Instant
    by: str
    failure: Failure | None = None
    done: tuple[str, ...] = ()
    failed: str | None = None
    completed_at: Instant | None = None
    cleared: bool = False
    reason: str = ""


class Void(Struct, frozen=True, omit_defaults=True):
    """A run that was started from an earlier step: what older runs did from there on no longer counts."""

    run_no: int
    index: int


class Run(Struct, frozen=True, omit_defaults=True):
    """A pass of the job that has ended, as it ended."""

    run_no: int
    status: JobStatus
    started_at: Instant
    completed_at: Instant
    error: ErrorInfo | None = None


class ReviewItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something a person must look at. `signature` is the same for items that have the same cause."""

    review_id: str
    job_id: str
    tenant_id: str
    request_type: str
    kind: ReviewKind
    status: ReviewStatus
    signature: str
    created_at: Instant
    updated_at: Instant
    run_no: int = 1
    step_id: str | None = None
    attempt_no: int | None = None
    lease_id: str | None = None
    failure_class: FailureClass | None = None
    error: ErrorInfo | None = None
    resolved_by: str | None = None
    reason: str = ""
    act: str = ""


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
    event_hash: str = ""
    unsealed: int = 0  # events up to this one are from before there were chains
    under_way: bool = False
    ready: tuple[Token, ...] = ()
    scopes: tuple[Scope, ...] = ()
    paused: Pause | None = None
    catching_up: bool = False
    stopping: Failure | None = None
    signals: tuple[Signal, ...] = ()
    failure: Failure | None = None
    output_step_id: str | None = None
    compensable: tuple[str, ...] = ()
    compensation: Compensation | None = None
    review: ReviewItem | None = None
    review_run: int = 0
    dismissed: bool = False
    run_started_at: Instant | None = None
    voids: tuple[Void, ...] = ()
    undone: tuple[str, ...] = ()
    resume_from: Token | None = None
    runs: tuple[Run, ...] = ()
    engine: str = ""
    """What drives it; empty for the embedded one."""
    recent_acts: tuple[str, ...] = ()
    """The last things that people did, by the names that such an engine gave them."""

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

    @property
    def is_ready(self) -> bool:
        """Whether whoever asks may have it now."""
        return self.status is OutboxStatus.PENDING and self.next_attempt_at is None and self.claimed_at is None


class Event(Struct, frozen=True, omit_defaults=True):
    """`attempts` are digests of those that ended with it."""

    job_id: str
    seq: int
    type: str
    at: Instant
    step_id: str | None = None
    attempt_no: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    hash: str = ""
    attempts: dict[str, str] = field(default_factory=dict)


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
