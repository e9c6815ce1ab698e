"""Views of the API: jobs, steps, attempts, events, services and health."""

from typing import Any

from msgspec import Struct, field

from lucius.contract.commands import Target
from lucius.contract.directives import StepInput
from lucius.contract.fields import Check, Error, ProgressCounts, Timestamp


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
    logs_ref: str | None = None
    """Reference to the logs of this attempt, as reported by its service."""
    progress_counts: ProgressCounts | None = None
    """Set if the service reports counts; `progress` is then `done` / `total`."""


class VoteView(Struct, frozen=True, kw_only=True):
    by: str
    approves: bool
    at: Timestamp
    comment: str = ""


class ItemCounts(Struct, frozen=True, kw_only=True):
    """Progress of a parallel or map step."""

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
    progress_counts: ProgressCounts | None = None
    """Set if the service reports counts; `progress` is then `done` / `total`."""


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
    """An ended run of a job."""

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
    """Compensation of a job. `todo` lists the steps still to undo, in order; `failed` is the step whose handler failed;
    the compensation is then halted until an operator acts."""

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
    """Number of map item steps that are omitted here; `/steps` lists all."""
    engine: str = "embedded"
    """Engine of the job: `embedded` or `temporal`."""
    engine_url: str | None = None
    """Web page of the job's workflow, if there is one and the server knows its address."""
    payload: dict[str, Any] = field(default_factory=dict)
    """Payload as accepted, with defaults. Values that the protocol lists under `redact` are shown as `[redacted]`."""
    current_step_index: int | None = None
    idempotency_hash: str = ""
    """SHA-256 of the command as submitted; a command with the same idempotency key must have the same hash."""
    reported_output_ref: str | None = None
    """Output that the last step's service reported: `output_ref` in its result, else an artifact at or below the job's
    `output_ref`. Null if it reported none."""


class EventView(Struct, frozen=True, kw_only=True):
    jobId: str
    seq: int
    type: str
    at: Timestamp
    stepId: str | None
    attempt_no: int | None
    data: dict[str, Any]
    hash: str = ""


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
    """Result of a retry of failed hand-overs: the number of jobs with a new attempt (`retried`) and of all `pending`
    outbox rows. `message` names rows that need no retry."""

    retried: int
    pending: int
    message: str = ""


class ServiceBacklog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Backlog of a service. `pending` counts directives that are ready for hand-over, also by lane in `lanes`;
    `unacked` counts those that were handed over and not yet acknowledged. Directives held back by a backoff or a pause
    are in neither. `oldest_at` is the time since which the oldest pending directive waits; if `older_possible`, not
    all tenants were checked and there may be older ones."""

    service: str
    pending: int
    unacked: int
    lanes: dict[str, int]
    oldest_at: Timestamp | None
    older_possible: bool = False


class BacklogList(Struct, frozen=True, kw_only=True):
    """Backlogs by service. Services without a backlog are omitted."""

    services: list[ServiceBacklog]


class ServiceInstance(Struct, frozen=True, kw_only=True):
    """A service process, identified by the headers `X-Lucius-Instance` and `User-Agent` of its pulls and callbacks."""

    instance: str
    agent: str
    last_seen_at: Timestamp
    last_pull_at: Timestamp | None = None


class ServiceView(Struct, frozen=True, kw_only=True):
    """A service that has pulled or called back, or has a backlog.

    `last_pull_at` is null if it never pulled; on a push bus only callbacks set `last_seen_at`. `at_work` counts
    attempts in progress, `unacked` directives handed over and not yet acknowledged, and `backlog` steps that are ready
    for hand-over, the oldest of them since `oldest_waiting_at`.
    """

    service: str
    last_pull_at: Timestamp | None
    last_seen_at: Timestamp | None
    at_work: int
    unacked: int
    backlog: int
    oldest_waiting_at: Timestamp | None = None
    oldest_waiting_seconds: float | None = None
    instances: list[ServiceInstance] = field(default_factory=list)


class ServiceList(Struct, frozen=True, kw_only=True):
    """Services by name. `services_omitted` counts idle services that were last seen long ago, which are left out."""

    services: list[ServiceView]
    services_omitted: int = 0


class Ready(Struct, frozen=True, kw_only=True):
    """Readiness. While a check is not `ok`, commands are still accepted and wait."""

    status: str
    checks: dict[str, Check] = field(default_factory=dict)


class Health(Struct, frozen=True, kw_only=True):
    status: str
