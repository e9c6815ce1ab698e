"""Store of jobs that changes them, one guarded commit at a time."""

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Command, Instant, Millis


class IdempotencyRow(Struct, frozen=True):
    job_id: str
    idempotency_hash: str


def idempotency_token(command: Command) -> str:
    """Return the key of a tenant's idempotency row: the client's key or, without one, the command's hash."""
    key = command.idempotency_key
    return f"key:{key}" if key is not None else f"sha256:{command.idempotency_hash}"


class Drift(Struct, frozen=True):
    """A live job that would never be processed again unless repaired."""

    job_id: str
    missing_rows: tuple[str, ...] = ()


class Ledger(Protocol):
    """The only port that changes jobs."""

    async def commit(self, decision: Decision) -> None:
        """Commit a decision atomically.

        Raises VersionConflict, AlreadyAccepted, LimitReached or LedgerFull; none of these ever fails another
        caller's commit. After LedgerDown the commit may be durable or not: read again.
        """

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
        """Return the job's head with its active steps and those of the named steps that have started.

        Returns None if there is no such job. Unless `fresh`, another process may have changed the job since
        (`JobSnapshot.cached`).
        """

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        """Return the job that holds a tenant's idempotency key, if any."""

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        """Return live jobs whose `due_at` has come, the most overdue first; held as by `PendingQuery.hold_ms`."""

    async def drifted(self, limit: int) -> list[Drift]:
        """Return live jobs with neither a `due_at` nor a PENDING row, or with DISPATCHING steps that have no row."""
