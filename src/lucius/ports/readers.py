"""Read-only views of what a ledger stores: jobs, their histories and review items."""

from typing import Protocol

from msgspec import Struct

from lucius.core.model.decision import EndedAttempt, JobSnapshot
from lucius.core.model.records import Event, Instant, Job, Quarantined, ReviewItem
from lucius.core.model.statuses import BlockedReason, JobStatus, ReviewKind, ReviewStatus


class JobFilter(Struct, frozen=True, kw_only=True):
    tenants: frozenset[str] | None = None
    status: JobStatus | None = None
    request_type: str | None = None
    blocked_on: BlockedReason | None = None
    blocked_services: frozenset[str] | None = None
    except_services: frozenset[str] = frozenset()
    created_after: Instant | None = None
    id_prefix: str | None = None
    """Prefix of the job id. Only together with `tenants`."""
    doc_id: str | None = None
    correlation_id: str | None = None
    target: str | None = None
    """The target's type and id, separated by a slash."""
    error_code: str | None = None
    """Error code of an ended job."""
    completed_after: Instant | None = None
    completed_before: Instant | None = None


class JobPage(Struct, frozen=True):
    jobs: list[Job]
    next_cursor: str | None


class StoredEvent(Struct, frozen=True):
    """A stored row: its position, and the event if it can be read.

    The position is an integer unless something other than Lucius wrote the row.
    """

    place: int | float | str | bytes
    event: Event | None


class StoredAttempt(Struct, frozen=True):
    """A stored row at the name that an event's seal uses; `ended` is None if it can't be read."""

    place: tuple[str, int]
    ended: EndedAttempt | None


MAX_TENANTS = 1_000
"""Tenants of one service whose oldest row is read. Bounds the cost of autoscaler metrics with many tenants."""


class Oldest(Struct, frozen=True):
    """Creation time of a service's oldest waiting row; `older_possible` if MAX_TENANTS or more tenants wait."""

    at: Instant
    older_possible: bool = False


class JobReader(Protocol):
    """Jobs, their counters and the backlog, for API, console and metrics. Read-only."""

    async def job(self, job_id: str) -> JobSnapshot | None:
        """Return the job with every step that has started; None if there is no such job."""

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        """Return jobs, newest first, or last ended first if the time of their end is the only search term.

        A page may be shorter than `limit` and still have a cursor. Raises ValueError for a cursor that this reader did
        not return.
        """

    async def counters(self, *names: str) -> dict[str, int]:
        """Return the named counters that are not 0. A name that ends in `/` selects all counters with that prefix.

        An empty name selects all counters; per-tenant counters can be very many.
        """

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        """Return when the oldest row due for hand-over was written, by service; only `service` if it is given.

        The cost per service is bounded, however large the backlog.
        """


class HistoryReader(Protocol):
    """Events and attempts of a job, for API and audit. Read-only."""

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        """Return ended attempts, oldest first."""

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        """Return successes of fenced attempts."""

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        """Return events with a sequence number above `after`, in order."""

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        """Return the event rows after `after`, readable or not, in the order of their positions."""

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        """Return the rows of ended attempts after `after`, readable or not, in the order of their positions."""


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
    """Review items. They change only in commits of the job they belong to."""

    async def review(self, review_id: str) -> ReviewItem | None: ...

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        """Return review items, newest first. Raises ValueError for a cursor that this reader did not return."""

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        """Return items grouped by signature, the largest group first."""

    async def open_reviews(self) -> dict[str, int]:
        """Return the number of open items by kind."""
