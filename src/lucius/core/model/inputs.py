"""Inputs of `decide`: one class for each kind of event."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from lucius.core.model.records import (
    Command,
    ErrorInfo,
    Instant,
    OutboxRow,
    ProgressCounts,
    Quarantined,
    ReviewItem,
    Routing,
)
from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import ProtocolDefinition


class Cap(Struct, frozen=True):
    """A limit on a counter, checked in the same commit that moves the counter."""

    counter: str
    limit: int


class Capacity(Struct, frozen=True):
    """How many directives of a service the decision may hand over, and the caps that apply to them."""

    max_rows: int
    caps: tuple[Cap, ...] = ()


class Submit(Struct, frozen=True, kw_only=True):
    """A validated command. Creates the job as QUEUED; `Start` starts it."""

    job_id: str
    command: Command
    protocol: ProtocolDefinition
    protocol_digest: str
    routing: Routing
    caps: tuple[Cap, ...] = ()
    engine: str = ""
    default_timeout_ms: int | None = None
    """The deployment's default, for a protocol without a timeout."""


class Start(Struct, frozen=True):
    """An engine takes a QUEUED job."""


class HandOverStarted(Struct, frozen=True):
    """A relay is about to publish this attempt: from here on the directive may have left Lucius."""

    step_id: str
    attempt_no: int
    lease_id: str
    caps: tuple[Cap, ...] = ()
    by: str = ""


class HandOverReleased(Struct, frozen=True):
    """The bus was down: the attempt was not sent and stays in the outbox; it does not count as a try."""

    step_id: str
    attempt_no: int
    lease_id: str


class HandedOver(Struct, frozen=True):
    """The directive was handed over. `picked_up` if work has begun, as for the engine's own calls: no ACK follows."""

    step_id: str
    attempt_no: int
    lease_id: str
    caps: tuple[Cap, ...] = ()
    picked_up: bool = False
    tenant_bound: bool | UnsetType = UNSET
    """True for a pull by a key that is bound to tenants. Otherwise left out when encoded, as before there was one."""


class HandOverFailed(Struct, frozen=True):
    """The bus refused this particular message. If the bus is unavailable the relay stops instead."""

    step_id: str
    attempt_no: int
    lease_id: str
    error: ErrorInfo


class Poisoned(Struct, frozen=True):
    """The bus dead-lettered this attempt's directive: it was unreadable, or every consumer that took it died."""

    step_id: str
    attempt_no: int
    lease_id: str
    error: ErrorInfo


class Callback(Struct, frozen=True, kw_only=True):
    step_id: str
    attempt_no: int
    lease_id: str
    extra: dict[str, Any] = field(default_factory=dict)


class Ack(Callback, frozen=True, kw_only=True):
    pass


class Heartbeat(Callback, frozen=True, kw_only=True):
    progress: float | None = None
    counts: ProgressCounts | None = None


class Succeeded(Callback, frozen=True, kw_only=True):
    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)


class Failed(Callback, frozen=True, kw_only=True):
    failure_class: FailureClass
    error: ErrorInfo
    retry_after_ms: int | None = None


class DeadlinePassed(Struct, frozen=True):
    """Check the job's deadlines. `resumed_at` is when the engine last resumed ticking after a gap.

    `as_of` is the engine's time when it checked; None means now. Deadlines that passed between that
    and now, if the process stalled, are left to the next check, which takes the gap into account.
    """

    resumed_at: Instant = 0
    as_of: Instant | None = None


class Cancel(Struct, frozen=True):
    by: str
    reason: str = ""


class Pause(Struct, frozen=True):
    by: str
    reason: str = ""


class Resume(Struct, frozen=True):
    by: str
    reason: str = ""


class GiveSignal(Struct, frozen=True):
    """A named signal for a wait step that waits for it now or later."""

    name: str
    by: str
    payload: Any = None
    reason: str = ""


class CastVote(Struct, frozen=True, kw_only=True):
    """A vote on an approval. `groups` are the approver groups of the voter's key."""

    step_id: str
    approves: bool
    by: str
    groups: tuple[str, ...] = ()
    comment: str = ""


class Retry(Struct, frozen=True, kw_only=True):
    """Open a new run of an ended job, from the step that failed or from an earlier one."""

    by: str
    reason: str = ""
    from_step: str | None = None
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Skip(Struct, frozen=True, kw_only=True):
    """Open a new run in which the failed step counts as done, with this result."""

    by: str
    reason: str = ""
    result: Any = None
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Compensate(Struct, frozen=True, kw_only=True):
    """Undo what completed steps did, or continue a halted compensation."""

    by: str
    reason: str = ""
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Adopt(Struct, frozen=True, kw_only=True):
    """Use a quarantined success as the step's result instead of repeating the work."""

    kept: Quarantined
    by: str
    reason: str = ""
    idempotency_key: str = ""
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Discard(Struct, frozen=True, kw_only=True):
    """Close a review item without any other action."""

    item: ReviewItem
    by: str
    reason: str = ""


class WebhookAttempted(Struct, frozen=True, kw_only=True):
    """Outcome of a job webhook. `final` if another attempt is pointless."""

    row: OutboxRow
    error: ErrorInfo | None = None
    retry_after_ms: int | None = None
    final: bool = False
    put_off_until: Instant | None = None


class RetryHandOver(Struct, frozen=True):
    """An operator asks to retry steps now that wait after a failed hand-over."""

    by: str
    reason: str = ""


class Repair(Struct, frozen=True):
    """The ledger has a DISPATCHING step without an outbox row, or a live job without a `due_at`."""

    missing_rows: tuple[str, ...] = ()


Input = (
    Submit
    | Start
    | HandOverStarted
    | HandOverReleased
    | HandedOver
    | HandOverFailed
    | Poisoned
    | Ack
    | Heartbeat
    | Succeeded
    | Failed
    | DeadlinePassed
    | Cancel
    | Pause
    | Resume
    | GiveSignal
    | CastVote
    | Retry
    | Skip
    | Compensate
    | Adopt
    | Discard
    | WebhookAttempted
    | RetryHandOver
    | Repair
)
