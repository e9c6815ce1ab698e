"""Records of the core: jobs, steps, attempts, outbox rows, events."""

from typing import Any

from msgspec import Struct, field

from lucius.core.model.statuses import (
    TERMINAL_JOB,
    AttemptOutcome,
    BlockedReason,
    FailureClass,
    JobStatus,
    Mode,
    OutboxStatus,
    ReviewKind,
    ReviewStatus,
    StepStatus,
)

Instant = int
Millis = int

NEVER: Instant = 2**62
"""`due_at` of a job that waits only for outside input."""


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    code: str
    message: str = ""


class Routing(Struct, frozen=True):
    """Routing of a job's directives, decided once at ingress and pinned on every attempt."""

    resolved_mode: Mode
    lane: int
    routing_key_used: str
    decision_source: str
    decision_reason: str


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's request, normalised and validated. Never changes after acceptance."""

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
    tracestate: str | None = None


class Blocked(Struct, frozen=True, omit_defaults=True):
    """Why a live job waits. `explain` turns it into a sentence for people."""

    reason: BlockedReason
    since: Instant
    until: Instant | None = None
    step_id: str | None = None
    service: str | None = None


class RequestedCancel(Struct, frozen=True, omit_defaults=True):
    by: str
    at: Instant
    reason: str = ""


class ProgressCounts(Struct, frozen=True, omit_defaults=True):
    """Progress of an attempt, in units of its work."""

    done: int
    total: int | None = None
    unit: str = ""


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try at a step. Stored on its step while current, and appended to the history once superseded."""

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
    tenant_bound: bool = False
    """Handed over to a pull by a key that is bound to tenants: it counts towards its tenant's own dispatch window."""
    counts: ProgressCounts | None = None
    """Set if the service reports counts; `progress` is then `done` / `total`."""


class Vote(Struct, frozen=True, omit_defaults=True):
    by: str
    approves: bool
    at: Instant
    comment: str = ""


class Request(Struct, frozen=True, omit_defaults=True):
    """A call or a webhook, rendered once so that every attempt sends the same. Secrets are still names here."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that has started. One that has not is PENDING and has no record; it is derived from the protocol."""

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
    """Result of the last success of a step with a handler: compensation needs it, even while the step is done again."""


class Failure(Struct, frozen=True, omit_defaults=True):
    """Cause of a flow's failure."""

    step_id: str | None
    error: ErrorInfo
    failure_class: FailureClass | None = None
    outcome: AttemptOutcome | None = None
    attempt_no: int | None = None


class Token(Struct, frozen=True, omit_defaults=True):
    """Position of a flow between two steps: what comes next, in which container and for which map items.

    `before` is the step whose result counts if the flow ends here. `keeps` lets steps that succeeded in an earlier
    run stand; with `anew` the target itself is still executed again.
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
    """Progress of a parallel or a map. It is on the job's head, so that an item's end rewrites no list of items."""

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
    """A signal that arrived before any step waited for it."""

    name: str
    by: str
    at: Instant
    payload: Any = None


class JobPause(Struct, frozen=True, omit_defaults=True):
    by: str
    at: Instant
    reason: str = ""
    on_review: bool = False


class Compensation(Struct, frozen=True, omit_defaults=True):
    """A compensation under way, undoing steps last first. `failed` halts it until an operator acts."""

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
    """Marks a run started from an earlier step: results of older runs from that step on no longer count."""

    run_no: int
    index: int


class Run(Struct, frozen=True, omit_defaults=True):
    """An ended pass of the job, in its final state."""

    run_no: int
    status: JobStatus
    started_at: Instant
    completed_at: Instant
    error: ErrorInfo | None = None


class ReviewItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something an operator must decide about. `signature` is the same for items with the same cause."""

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
    """A job's head: all that `decide` needs besides the steps it touches."""

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
    cancel: RequestedCancel | None = None
    completed_at: Instant | None = None
    event_hash: str = ""
    unsealed: int = 0  # events up to this one were written before hash chains existed
    under_way: bool = False
    ready: tuple[Token, ...] = ()
    scopes: tuple[Scope, ...] = ()
    paused: JobPause | None = None
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
    """Name of the engine that drives the job; empty for the embedded one."""
    timeout_ms: Millis | None = None
    """The deployment's default at acceptance if the protocol has no timeout; it applies to every run."""
    recent_acts: tuple[str, ...] = ()
    """Ids of the latest operator actions, as assigned by an engine other than the embedded one."""

    @property
    def tenant_id(self) -> str:
        return self.command.tenant_id

    @property
    def live(self) -> bool:
        return self.status not in TERMINAL_JOB

    @property
    def is_ledger_driven(self) -> bool:
        """Whether decisions are made on the ledger itself; else a workflow makes them, and keeps the deadlines."""
        return not self.engine


class OutboxRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The durable intent to hand over one attempt. The directive itself is rendered at hand-over.

    The row of a job webhook has no lease, its `attempt_no` counts the deliveries, and its id ends with the run.
    """

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
        """Whether the row can be handed over now."""
        return self.status is OutboxStatus.PENDING and self.next_attempt_at is None and self.claimed_at is None


class Event(Struct, frozen=True, omit_defaults=True):
    """An entry of a job's history. `attempts` are digests of the attempts that ended with it."""

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
    """A success of a fenced attempt, kept so that an operator can adopt it instead of repeating the step."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    received_at: Instant
    result: Any
    artifact_refs: list[str]


def message_id(job_id: str, step_id: str, attempt_no: int) -> str:
    return f"{job_id}/{step_id}/{attempt_no}"
