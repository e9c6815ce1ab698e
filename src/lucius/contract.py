"""The message contract between Lucius and the world: directives, callbacks, commands, and what the API answers.

`jobId` and `stepId` are in camel case and all else in snake case, on the wire and therefore here. Fields are only
ever added. Imports nothing of Lucius, so that a platform service can depend on it alone.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # RFC 3339, UTC, milliseconds
Reason = Annotated[str, Meta(max_length=1024)]


class Error(Struct, frozen=True, omit_defaults=True):
    code: Annotated[str, Meta(min_length=1, max_length=128)]
    message: Annotated[str, Meta(max_length=8192)] = ""


class StepInput(Struct, frozen=True):
    """What an earlier step left behind."""

    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)


class CallbackUrls(Struct, frozen=True, omit_defaults=True):
    ack: str
    result: str
    heartbeat: str


class Directive(Struct, frozen=True, kw_only=True):
    """Asks a service for one attempt at one step."""

    message_id: str
    jobId: str
    stepId: str
    tenant_id: str
    protocol_id: str
    protocol_version: int
    request_type: str
    step_type: str
    kind: str
    service: str
    attempt_no: int
    lease_id: str
    lease_seconds: float
    ack_deadline: Timestamp
    idempotency_key: str
    lane: int
    mode: str
    routing_key_used: str
    input_ref: str
    workspace_ref: str
    output_ref: str
    payload: dict[str, Any]
    callback_urls: CallbackUrls
    callback_token: str
    correlation_id: str
    last_step: bool
    inputs: dict[str, StepInput] = field(default_factory=dict)
    doc_id: str | None = None
    traceparent: str | None = None
    timeout_ms: int | None = None
    retry_safety: str = "SAFE_TO_RETRY"
    guard: dict[str, Any] | None = None
    """There on a repeated attempt of a guarded step: check first whether the one before took effect after all."""
    item: Any = None
    item_index: int | None = None
    compensates: str | None = None


class AckCallback(Struct, kw_only=True):
    jobId: Identifier
    stepId: Identifier
    tenant_id: Identifier
    attempt_no: PositiveInt
    lease_id: Identifier


class HeartbeatCallback(AckCallback, kw_only=True):
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None


class ResultCallback(AckCallback, kw_only=True):
    status: Literal["SUCCEEDED", "FAILED", "FAILED_RETRY", "FAILED_FINAL"]
    result: Any = None
    artifact_refs: Annotated[list[Annotated[str, Meta(max_length=4096)]], Meta(max_length=1000)] | None = None
    failure_class: Annotated[str, Meta(max_length=64)] | None = None
    error: Error | None = None
    retry_after_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None


class CallbackAnswer(Struct, frozen=True, kw_only=True):
    disposition: Literal["APPLIED", "DUPLICATE", "LATE", "STALE"]
    lease_expires_at: Timestamp | None = None
    cancel_requested: bool = False


class PullRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=500)] = 1
    wait_seconds: Annotated[float, Meta(ge=0)] = 0
    lanes: Annotated[list[Annotated[int, Meta(ge=0, le=15)]], Meta(min_length=1, max_length=16)] | None = None


class PullAnswer(Struct, frozen=True):
    directives: list[Directive]


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    type: Identifier
    id: Identifier


class ClientCallbackUrls(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    ack: Annotated[str, Meta(max_length=2048)] | None = None
    result: Annotated[str, Meta(max_length=2048)] | None = None
    job: Annotated[str, Meta(max_length=2048)] | None = None


class CommandEnvelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Envelope v1: what a client submits. A null member counts as absent."""

    tenant_id: Annotated[str, Meta(min_length=1, max_length=256)]
    request_type: Annotated[str, Meta(min_length=1, max_length=128)]
    input_ref: Annotated[str, Meta(min_length=1, max_length=4096)]
    output_ref: Annotated[str, Meta(min_length=1, max_length=4096)]
    payload: dict[str, Any]
    schema_version: Literal["v1"]
    mode: Literal["DEFAULT", "SAFE", "BURST"] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    doc_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    callback_urls: ClientCallbackUrls | None = None
    correlation_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    traceparent: Annotated[str, Meta(max_length=256)] | None = None
    target: Target | None = None
    protocol_version: PositiveInt | None = None


class Accepted(Struct, frozen=True, kw_only=True):
    jobId: str
    status: str
    duplicate: bool


class BlockedOn(Struct, frozen=True, kw_only=True):
    reason: str
    message: str
    since: Timestamp
    until: Timestamp | None = None


class AttemptView(Struct, frozen=True, kw_only=True):
    stepId: str
    attempt_no: int
    lease_id: str
    run_no: int
    outcome: str | None
    created_at: Timestamp
    handed_over_at: Timestamp | None
    ack_deadline: Timestamp | None
    acked_at: Timestamp | None
    lease_expires_at: Timestamp | None
    ended_at: Timestamp | None
    progress: float | None
    failure_class: str | None
    error: Error | None
    idempotency_key: str
    lane: int
    routing_key_used: str
    resolved_mode: str
    decision_source: str
    decision_reason: str
    quarantined: StepInput | None = None
    visit: int = 1
    adopted_from: int | None = None


class VoteView(Struct, frozen=True, kw_only=True):
    by: str
    approves: bool
    at: Timestamp
    comment: str = ""


class ItemCounts(Struct, frozen=True, kw_only=True):
    """How far a parallel or a map has come."""

    total: int
    live: int
    succeeded: int
    failed: int


class StepView(Struct, frozen=True, kw_only=True):
    stepId: str
    index: int
    kind: str
    step_type: str
    service: str
    status: str
    attempt_no: int
    lease_id: str | None
    lane: int
    routing_key_used: str
    resolved_mode: str
    decision_source: str
    decision_reason: str
    workspace_ref: str
    idempotency_key: str
    progress: float | None = None
    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)
    last_error: Error | None = None
    ack_deadline: Timestamp | None = None
    lease_expires_at: Timestamp | None = None
    retry_at: Timestamp | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    completed_at: Timestamp | None = None
    name: str = ""
    run_no: int | None = None
    visit: int = 1
    wake_at: Timestamp | None = None
    awaits_signal: str | None = None
    votes: list[VoteView] = field(default_factory=list)
    items: ItemCounts | None = None


class StepWithAttempts(StepView, frozen=True, kw_only=True):
    attempts: list[AttemptView]


class JobSummary(Struct, frozen=True, kw_only=True):
    jobId: str
    tenant_id: str
    request_type: str
    protocol_id: str
    protocol_version: int
    status: str
    run_no: int
    current_step_id: str | None
    mode: str
    blocked_on: BlockedOn | None
    created_at: Timestamp
    updated_at: Timestamp
    completed_at: Timestamp | None
    error: Error | None
    correlation_id: str


class RunView(Struct, frozen=True, kw_only=True):
    """A pass of the job that has ended, as it ended."""

    run_no: int
    status: str
    started_at: Timestamp
    completed_at: Timestamp
    error: Error | None = None


class PauseView(Struct, frozen=True, kw_only=True):
    by: str
    at: Timestamp
    reason: str = ""


class CompensationView(Struct, frozen=True, kw_only=True):
    """`todo` is what is still to be undone, in order; `failed` halts it until a person acts."""

    status: str
    by: str
    todo: list[str]
    done: list[str]
    failed: str | None = None


class JobView(JobSummary, frozen=True, kw_only=True):
    steps: list[StepView]
    input_ref: str
    output_ref: str
    workspace_ref: str
    doc_id: str | None
    idempotency_key: str | None
    attempts_total: int
    traceparent: str | None
    target: Target | None
    output: Any = None
    runs: list[RunView] = field(default_factory=list)
    paused: PauseView | None = None
    compensation: CompensationView | None = None
    review_id: str | None = None
    steps_omitted: int = 0
    """Steps of map items that are left out here; `/steps` has all of them."""
    engine: str = "embedded"
    """What drives the job: `embedded`, or `temporal`."""
    engine_url: str | None = None
    """Where people see its workflow, if there is one and the server knows where that is."""


class EventView(Struct, frozen=True, kw_only=True):
    jobId: str
    seq: int
    type: str
    at: Timestamp
    stepId: str | None
    attempt_no: int | None
    data: dict[str, Any]
    hash: str = ""


class Fault(Struct, frozen=True):
    """One thing wrong with a request; `pointer` is a JSON Pointer into its body."""

    pointer: str
    message: str


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457. `code` is stable and listed in the docs; `title` and `detail` are for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    errors: list[Fault] = field(default_factory=list)
    jobId: str | None = None
    disposition: str | None = None
    retry_after_seconds: int | None = None
    checks: dict[str, "Check"] = field(default_factory=dict)


class JobList(Struct, frozen=True, kw_only=True):
    jobs: list[JobSummary]
    next_cursor: str | None


class StepList(Struct, frozen=True, kw_only=True):
    steps: list[StepWithAttempts]


class AttemptList(Struct, frozen=True, kw_only=True):
    attempts: list[AttemptView]


class EventList(Struct, frozen=True, kw_only=True):
    events: list[EventView]
    next_cursor: int | None


class OutboxRetried(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`retried` jobs got a new attempt; `pending` rows wait in all. `message` names what needs no retry."""

    retried: int
    pending: int
    message: str = ""


class ServiceBacklog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service has before it: `pending` waits for nothing but a service that takes it, and by lane in `lanes`;
    `unacked` was handed over and not picked up. What a backoff or a pause keeps back is in neither. `oldest_at` is
    when the oldest that waits was put there. With `older_possible`, so many tenants wait that not all were asked: there
    may be older ones."""

    service: str
    pending: int
    unacked: int
    lanes: dict[str, int]
    oldest_at: Timestamp | None
    older_possible: bool = False


class BacklogList(Struct, frozen=True, kw_only=True):
    """Services that have nothing before them are not named."""

    services: list[ServiceBacklog]


class Check(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was looked at. `detail` says what is wrong, or what is worth knowing."""

    ok: bool
    detail: str = ""


class Ready(Struct, frozen=True, kw_only=True):
    """A check that is not `ok` here costs no request: what is accepted waits until it is."""

    status: str
    checks: dict[str, Check] = field(default_factory=dict)


class Health(Struct, frozen=True, kw_only=True):
    status: str


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason` is kept with the job's events."""

    reason: Reason | None = None


class OutboxRetryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason | None = None


class CommandBatch(Struct, frozen=True, forbid_unknown_fields=True):
    commands: Annotated[list[CommandEnvelope], Meta(max_length=500)]


class CallbackItem(ResultCallback, kw_only=True):
    """One callback of a batch; `status` and what follows it belong to a result."""

    type: Literal["ack", "heartbeat", "result"]
    callback_token: str
    status: Literal["SUCCEEDED", "FAILED", "FAILED_RETRY", "FAILED_FINAL"] | None = None  # type: ignore[assignment]
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None


class CallbackBatch(Struct, frozen=True, forbid_unknown_fields=True):
    callbacks: Annotated[list[CallbackItem], Meta(max_length=500)]


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """One command's own answer within a batch: what it would have got alone, with its HTTP status.

    Accepted, it has `jobId`, `status` (the job's) and `duplicate`; refused, the members of a problem.
    """

    status_code: int
    status: str | int
    jobId: str | None = None
    duplicate: bool | None = None
    code: str | None = None
    type: str | None = None
    title: str | None = None
    detail: str | None = None
    errors: list[Fault] | None = None
    retry_after_seconds: int | None = None


class CommandBatchAnswer(Struct, frozen=True):
    """In the order of the commands."""

    results: list[CommandOutcome]


class CallbackOutcome(Struct, frozen=True, kw_only=True):
    """One callback's own answer within a batch: what it would have got alone, with its HTTP status.

    `disposition` comes with every answer and with STALE_CALLBACK; refused, it has the members of a problem.
    """

    status_code: int
    status: int
    disposition: str | None = None
    lease_expires_at: Timestamp | None = None
    cancel_requested: bool | None = None
    jobId: str | None = None
    code: str | None = None
    type: str | None = None
    title: str | None = None
    detail: str | None = None
    errors: list[Fault] | None = None
    retry_after_seconds: int | None = None


class CallbackBatchAnswer(Struct, frozen=True):
    """In the order of the callbacks."""

    results: list[CallbackOutcome]
