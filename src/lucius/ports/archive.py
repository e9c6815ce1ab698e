"""Finished jobs on their way out of the ledger, and the files that keep them.

`FinishedJobs` is a ledger's other door, for whoever keeps it small: it hands out whole jobs and drops them. It needs
neither engine nor API, so it can be opened while no server runs.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Raw, Struct, field

from lucius.core.decision import EndedAttempt
from lucius.core.model import Event, Instant, Job, JobStatus, Quarantined, ReviewItem, Step

FORMAT: Literal["lucius-job/1"] = "lucius-job/1"


class FinishedFilter(Struct, frozen=True, kw_only=True):
    before: Instant
    """Only jobs that ended before this."""
    tenant_id: str | None = None
    status: JobStatus | None = None


class JobRecord(Struct, frozen=True, kw_only=True):
    """All that the ledger has of a job, each row as it is stored: what this version can't read is kept as well."""

    format: Literal["lucius-job/1"] = FORMAT
    jobId: str
    job: Raw
    steps: list[Raw]
    attempts: list[Raw]
    events: list[Raw]
    quarantined: list[Raw]
    reviews: list[Raw]


class ArchivedJob(Struct, frozen=True, kw_only=True):
    """A record, read."""

    format: Literal["lucius-job/1"]
    jobId: str
    job: Job
    steps: list[Step]
    attempts: list[EndedAttempt]
    events: list[Event]
    quarantined: list[Quarantined]
    reviews: list[ReviewItem]


class FinishedPage(Struct, frozen=True, kw_only=True):
    """Jobs in the order of their acceptance, and how many were left out because something about them is not over."""

    records: list[JobRecord]
    protocols: dict[str, bytes] = field(default_factory=dict)
    """Those that the jobs were run under, by digest."""
    open_reviews: int = 0
    pending_notices: int = 0
    cursor: int | None = None
    """Where the next page begins; None after the last."""


class FinishedJobs(Protocol):
    async def page(self, where: FinishedFilter, cursor: int, limit: int, max_bytes: int) -> FinishedPage:
        """Up to `limit` jobs behind the cursor, 0 at first; fewer if they are long, but at least one if there are any.

        A job with an OPEN review item or a PENDING notice is left out.
        """

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        """Forget these jobs and their idempotency keys, in one transaction, unless they have moved on from those
        versions. Returns the ones that are still there; one that was dropped before is not."""


class ArchiveFiles(Protocol):
    """Small files by name, such as `2026-01-31/x.jsonl`. All raise ArchiveError."""

    @property
    def place(self) -> str:
        """Where they are, for people."""

    async def put(self, name: str, data: bytes) -> None:
        """Write or replace it, whole or not at all; durable once this returns."""

    async def get(self, name: str) -> bytes: ...

    async def names(self, folder: str = "") -> list[str]:
        """Of every file in a folder and below it, in order."""

    async def move(self, name: str, to: str) -> None:
        """At once and for good. Never replaces a file."""

    async def remove(self, name: str) -> None: ...
