"""Retention: reads finished jobs out of the ledger, and stores them as archive files.

`FinishedJobs` is a ledger's port for retention: it returns whole jobs and deletes them. It needs neither engine nor
API, so it can be opened while no server runs.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Raw, Struct, field

from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Event, Instant, Job, Quarantined, ReviewItem, Step
from lucius.core.model.statuses import JobStatus

FORMAT: Literal["lucius-job/1"] = "lucius-job/1"


class FinishedFilter(Struct, frozen=True, kw_only=True):
    before: Instant
    """Only jobs that ended before this instant."""
    tenant_id: str | None = None
    status: JobStatus | None = None


class JobRecord(Struct, frozen=True, kw_only=True):
    """Everything the ledger has of a job, each row as stored, so that rows this version can't read are kept as well."""

    format: Literal["lucius-job/1"] = FORMAT
    jobId: str
    job: Raw
    steps: list[Raw]
    attempts: list[Raw]
    events: list[Raw]
    quarantined: list[Raw]
    reviews: list[Raw]


class ArchivedJob(Struct, frozen=True, kw_only=True):
    """A `JobRecord` with its rows decoded."""

    format: Literal["lucius-job/1"]
    jobId: str
    job: Job
    steps: list[Step]
    attempts: list[EndedAttempt]
    events: list[Event]
    quarantined: list[Quarantined]
    reviews: list[ReviewItem]


class FinishedPage(Struct, frozen=True, kw_only=True):
    """Jobs in the order of their acceptance, and how many were left out for an open review or a pending webhook."""

    records: list[JobRecord]
    protocols: dict[str, bytes] = field(default_factory=dict)
    """The protocols that the jobs were run under, by digest."""
    open_reviews: int = 0
    pending_webhooks: int = 0
    cursor: int | None = None
    """Start of the next page; None after the last."""


class FinishedJobs(Protocol):
    async def page(self, where: FinishedFilter, cursor: int, limit: int, max_bytes: int) -> FinishedPage:
        """Return up to `limit` jobs after the cursor (0 at first).

        Returns fewer if they are large, but at least one if any is left. A job with an OPEN review item or a PENDING
        webhook is left out.
        """

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        """Delete jobs and their idempotency keys in one transaction, except those no longer at the given version.

        Returns the ids of the jobs that remain; a job that was deleted earlier is not among them.
        """


class ArchiveFiles(Protocol):
    """Small files by name, such as `2026-01-31/x.jsonl`. All raise ArchiveError."""

    @property
    def place(self) -> str:
        """Location of the files, for display."""

    async def put(self, name: str, data: bytes) -> None:
        """Write or replace a file atomically; it is durable once this returns."""

    async def get(self, name: str) -> bytes: ...

    async def names(self, folder: str = "") -> list[str]:
        """Return the names of all files in a folder and below it, sorted."""

    async def move(self, name: str, to: str) -> None:
        """Rename a file, atomically and durably. Never replaces a file."""

    async def remove(self, name: str) -> None: ...
