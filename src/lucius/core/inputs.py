"""Everything that can happen to a job. Each is a value; `decide` has one clause for each."""

from typing import Any

from msgspec import Struct, field

from lucius.core.model import Command, ErrorInfo, FailureClass, Instant, OutboxRow, Quarantined, ReviewItem, Routing
from lucius.core.protocol import Protocol


class Cap(Struct, frozen=True):
    """A limit on a counter, checked in the same commit that moves the counter."""

    counter: str
    limit: int


class Taker(Struct, frozen=True):
    """A service that waits for directives at this moment: for how many, and within which limits."""

    room: int
    caps: tuple[Cap, ...] = ()


class Submit(Struct, frozen=True, kw_only=True):
    """A validated command. Creates the job QUEUED; `Start` takes it from there."""

    job_id: str
    command: Command
    protocol: Protocol
    protocol_digest: str
    routing: Routing
    caps: tuple[Cap, ...] = ()
    engine: str = ""


class Start(Struct, frozen=True):
    """An engine takes a QUEUED job."""


class HandOverStarted(Struct, frozen=True):
    """A relay is about to publish this attempt: from here on it may have left us."""

    step_id: str
    attempt_no: int
    lease_id: str
    caps: tuple[Cap, ...] = ()
    by: str = ""


class HandOverReleased(Struct, frozen=True):
    """The bus was down: this attempt surely did not leave us, and waits on with nothing burned."""

    step_id: str
    attempt_no: int
    lease_id: str


class HandedOver(Struct, frozen=True):
    """`picked_up` if whoever took it is at work already, as the engine is with its own calls: no ACK will follow."""

    step_id: str
    attempt_no: int
    lease_id: str
    caps: tuple[Cap, ...] = ()
    picked_up: bool = False


class HandOverFailed(Struct, frozen=True):
    """The bus refused this very message. A bus that is down is not this: it stops the relay and burns nothing."""

    step_id: str
    attempt_no: int
    lease_id: str
    error: ErrorInfo


class Poisoned(Struct, frozen=True):
    """The bus has put this attempt's directive aside: nobody could read it, or all who took it died with it."""

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


class Succeeded(Callback, frozen=True, kw_only=True):
    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)


class Failed(Callback, frozen=True, kw_only=True):
    failure_class: FailureClass
    error: ErrorInfo
    retry_after_ms: int | None = None


class DeadlinePassed(Struct, frozen=True):
    """Look at the job's clocks. `resumed_at` is when the engine last came back from not ticking.

    `as_of` is when it looked at its own clock: should it stand still between that and now, what ran out meanwhile
    is for its next look, which knows of the absence. None means now.
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
    """Something outside has happened that a wait step may be waiting for, now or later."""

    name: str
    by: str
    payload: Any = None
    reason: str = ""


class CastVote(Struct, frozen=True, kw_only=True):
    """A person approves or rejects. `groups` are those that their key names."""

    step_id: str
    approves: bool
    by: str
    groups: tuple[str, ...] = ()
    comment: str = ""


class Retry(Struct, frozen=True, kw_only=True):
    """A new run of an ended job, from the step that failed or from an earlier one."""

    by: str
    reason: str = ""
    from_step: str | None = None
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Skip(Struct, frozen=True, kw_only=True):
    """A new run in which the failed step counts as done, with this result."""

    by: str
    reason: str = ""
    result: Any = None
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Compensate(Struct, frozen=True, kw_only=True):
    """Undo what completed steps did, or go on with undoing it."""

    by: str
    reason: str = ""
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Adopt(Struct, frozen=True, kw_only=True):
    """Take a quarantined success as the step's result instead of paying for it again."""

    kept: Quarantined
    by: str
    reason: str = ""
    idempotency_key: str = ""
    item: ReviewItem | None = None
    caps: tuple[Cap, ...] = ()


class Discard(Struct, frozen=True, kw_only=True):
    """Close a review item without doing anything about it."""

    item: ReviewItem
    by: str
    reason: str = ""


class NoticeTold(Struct, frozen=True, kw_only=True):
    """What became of telling a client about the end of its job. `final` means that trying again is no use."""

    row: OutboxRow
    error: ErrorInfo | None = None
    retry_after_ms: int | None = None
    final: bool = False
    put_off_until: Instant | None = None


class RetryHandOver(Struct, frozen=True):
    """An operator wants steps that wait after a failed hand-over to be tried now."""

    by: str
    reason: str = ""


class Repair(Struct, frozen=True):
    """The ledger has a DISPATCHING step without an outbox row, or a live job without a clock."""

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
    | NoticeTold
    | RetryHandOver
    | Repair
)
