"""Where jobs live. A Ledger changes them, one guarded commit at a time; a Reader only looks."""

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from lucius.core.decision import Decision, EndedAttempt, JobView
from lucius.core.model import (
    BlockedReason,
    Command,
    Event,
    Instant,
    Job,
    JobStatus,
    Millis,
    OutboxRow,
    Quarantined,
    ReviewItem,
    ReviewKind,
    ReviewStatus,
)


class IdempotencyRow(Struct, frozen=True):
    job_id: str
    idempotency_hash: str


def idempotency_token(command: Command) -> str:
    """What a tenant's idempotency row is filed under: the client's key or, without one, the command's hash."""
    key = command.idempotency_key
    return f"key:{key}" if key is not None else f"sha256:{command.idempotency_hash}"


class PendingQuery(Struct, frozen=True, kw_only=True):
    """Which PENDING outbox rows are wanted. None means any.

    Ready rows come in fair order: the tenants of a service take turns, each with its oldest first, so that a long
    backlog of one can't starve another that shares its lane. The next call goes on behind whoever was served last.
    Without a service, the services take turns as well. `except_rows` are those that the asker has in hand already:
    they are not answered again, and nobody's turn is spent on them. With `hold_ms`, other processes on the same ledger
    are not given the answered rows for that long; whoever dies meanwhile keeps nothing longer. Rows whose
    backoff is over come behind the ready ones, unless `later` is off.
    """

    limit: int
    now: Instant
    service: str | None = None
    except_services: frozenset[str] = frozenset()
    except_rows: frozenset[str] = frozenset()
    lanes: frozenset[int] | None = None
    claimed: bool = False
    hold_ms: Millis = 0
    later: bool = True


class Drift(Struct, frozen=True):
    """A live job that nothing will ever look at again, unless repaired."""

    job_id: str
    missing_rows: tuple[str, ...] = ()


class Ledger(Protocol):
    """The one place where jobs change."""

    async def commit(self, decision: Decision) -> None:
        """Make a decision durable, all of it or nothing.

        Raises VersionConflict, AlreadyAccepted, LimitReached or LedgerFull; none of these ever fails another
        caller's commit. LedgerDown leaves open whether it is durable: read again.
        """

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
        """The job's head with its active steps and those of the named ones that have started.

        Unless it must be `fresh`, it may be one that another process has moved since (`JobView.cached`).
        """

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        """The job that holds a tenant's idempotency key."""

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        """Live jobs whose `due_at` has come, the most overdue first; held as by `PendingQuery.hold_ms`."""

    async def drifted(self, limit: int) -> list[Drift]:
        """Live jobs with neither a clock nor a PENDING row, and DISPATCHING steps without a row."""

    async def close(self) -> None:
        """Finish what is being committed and let go of the store."""


class Outbox(Protocol):
    """What waits to be handed over."""

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        """PENDING outbox rows whose `next_attempt_at` has come: the unclaimed ones, or those claimed."""

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Hold these no longer: they were not handed over."""


class JobFilter(Struct, frozen=True, kw_only=True):
    tenants: frozenset[str] | None = None
    status: JobStatus | None = None
    request_type: str | None = None
    blocked_on: BlockedReason | None = None
    blocked_services: frozenset[str] | None = None
    except_services: frozenset[str] = frozenset()
    created_after: Instant | None = None


class JobPage(Struct, frozen=True):
    jobs: list[Job]
    next_cursor: str | None


class StoredEvent(Struct, frozen=True):
    """A row as it is kept: where it stands, and the event if it can be read. The place is a number, unless somebody
    else wrote it."""

    place: int | float | str | bytes
    event: Event | None


class StoredAttempt(Struct, frozen=True):
    """A row as it is kept, by the name that a seal gives it."""

    place: tuple[str, int]
    ended: EndedAttempt | None


MOST_TENANTS = 1_000
"""How many of a service's tenants are asked for their oldest row: the figures of autoscalers must not cost more, the
more there are."""


class Oldest(Struct, frozen=True):
    """When the oldest of a service's waiting rows was written, as far as was looked: `older_possible` if as many
    tenants wait as are asked, or more."""

    at: Instant
    older_possible: bool = False


class Reader(Protocol):
    """Lists, history and counts, for API, console and metrics. Never changes anything."""

    async def job(self, job_id: str) -> JobView | None:
        """The job with every step that has started."""

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        """Newest first. Raises ValueError for a cursor that this reader did not give out."""

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        """Ended attempts, oldest first."""

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        """Successes of fenced attempts."""

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        """Events with a sequence number above `after`, in order."""

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        """The rows behind `after`, whatever is in them, in the order of their places."""

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        """The rows of ended attempts behind `after`, whatever is in them, in the order of their places."""

    async def counters(self, *names: str) -> dict[str, int]:
        """Those of these names that are not 0, as counted by the commits. A name that ends in `/` stands for all that
        begin with it, and an empty one for all there are: of the tenants there may be very many."""

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        """The services with rows that wait for nothing but their turn, and when the oldest of each was written. Of one
        service, if it is named. What it costs has a bound for each service, however much waits."""


class ReviewFilter(Struct, frozen=True, kw_only=True):
    tenants: frozenset[str] | None = None
    status: ReviewStatus | None = ReviewStatus.OPEN
    kind: ReviewKind | None = None
    kinds: frozenset[ReviewKind] | None = None
    signature: str | None = None
    job_id: str | None = None


class ReviewPage(Struct, frozen=True):
    items: list[ReviewItem]
    next_cursor: str | None


class ReviewGroup(Struct, frozen=True):
    """Items with the same cause: how many, and the newest of them."""

    signature: str
    kind: ReviewKind
    count: int
    newest: ReviewItem


class ReviewReader(Protocol):
    """What people must look at. Items change only with the job they are about, in its commits."""

    async def review(self, review_id: str) -> ReviewItem | None: ...

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        """Newest first. Raises ValueError for a cursor that this reader did not give out."""

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        """By signature, the largest group first."""

    async def open_reviews(self) -> dict[str, int]:
        """How many are open, by kind."""
