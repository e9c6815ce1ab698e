"""The durable store and the connections to it: what a crash takes and what it leaves.

The dictionaries of a MemoryLedger are the disk. Every process has a ledger of its own over them, with its own group
commit queue, which dies with it; how much of that queue was still written is drawn.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from lucius.adapters.ledger_memory import MemoryLedger, _Record
from lucius.core.decision import Decision, JobView
from lucius.core.model import Instant, Job, Millis, OutboxRow, ReviewItem, Step
from lucius.ports.errors import LedgerFull, LimitReached, VersionConflict
from lucius.ports.ledger import Drift, IdempotencyRow, PendingQuery
from tests.simulation.faults import Faults

T = TypeVar("T")


class Before(Struct, frozen=True):
    """A job as it was before a commit."""

    job: Job
    steps: dict[str, Step]
    rows: dict[str, OutboxRow]


Committed = Callable[["Connection", Before | None, _Record, Decision], None]


class Disk(MemoryLedger):
    """What survives. Nobody commits through it; connections share its dictionaries."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        super().__init__()
        self.faults = faults
        self.rng = rng
        self.full = False
        self.on_write: Committed = lambda *_: None
        self.on_read: Callable[[str, str], bool] = lambda *_: False

    @property
    def records(self) -> dict[str, _Record]:
        return self._records

    @property
    def totals(self) -> dict[str, int]:
        return self._counters

    @property
    def review_items(self) -> dict[str, ReviewItem]:
        return self._reviews._items

    def lose_row(self, row: OutboxRow) -> None:
        """Drift: an outbox row is gone."""
        self._drop_pending(row)
        del self._records[row.job_id].outbox[row.outbox_id]


class Connection(MemoryLedger):
    """One process's ledger: the real one, with a slow wire to the disk and faults on the way."""

    def __init__(self, disk: Disk, name: str) -> None:
        super().__init__()
        self.name = name
        self.dead = False
        self._disk = disk
        self._records = disk._records
        self._live = disk._live
        self._pending = disk._pending
        self._keys = disk._keys
        self._counters = disk._counters
        self._reviews = disk._reviews

    def cut(self) -> None:
        """The process died: of what it was committing, some may have been written and the rest never will be."""
        self.on_commit = self.on_flush = None
        keep = self._disk.rng.randint(0, len(self._queue)) if self._queue else 0
        for decision, _ in list(self._queue)[:keep]:
            kept = self._write_one(decision) is None
            self._disk.faults.saw("commit_survived_crash" if kept else "commit_refused_in_crash")
        self._disk.faults.counts["commit_lost_in_crash"] += len(self._queue) - keep
        self._queue.clear()
        self.dead = True

    async def commit(self, decision: Decision) -> None:
        await self._wire()
        await super().commit(decision)
        await self._wire()

    def _write_one(self, decision: Decision) -> Exception | None:
        if not decision.creates and self._disk.faults.hit("ledger_conflict"):
            return VersionConflict("injected")
        if self._disk.full or self._disk.faults.hit("ledger_full"):
            self._disk.faults.saw("commit_refused_full")
            return LedgerFull("injected")
        record = self._records.get(decision.job.job_id)
        before = Before(record.job, dict(record.steps), dict(record.outbox)) if record else None
        refusal = super()._write_one(decision)
        if isinstance(refusal, VersionConflict):
            self._disk.faults.saw("conflict_of_replicas")
        elif isinstance(refusal, LimitReached):
            self._disk.faults.saw("limit_reached")
        elif refusal is None:
            self._disk.on_write(self, before, self._records[decision.job.job_id], decision)
        return refusal

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
        return await self._read(super().load(job_id, step_ids, fresh))

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return await self._read(super().accepted(tenant_id, key))

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        return await self._read(super().due(now, limit, hold_ms), "due")

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        return await self._read(super().pending(query), "pending")

    async def drifted(self, limit: int) -> list[Drift]:
        return await self._read(super().drifted(limit))

    async def job(self, job_id: str) -> JobView | None:
        return await self._read(super().job(job_id))

    async def _read(self, answer: Coroutine[Any, Any, T], what: str = "") -> T:
        """What was read may be out of date when it arrives."""
        read = await answer
        if what and self._disk.on_read(self.name, what):
            await asyncio.sleep(0)  # here it stands still
        await self._wire()
        return read

    async def _wire(self) -> None:
        if self.dead:
            raise asyncio.CancelledError
        faults, rng = self._disk.faults, self._disk.rng
        if faults.hit("ledger_slow"):
            await asyncio.sleep(rng.choice((0, 0, rng.random() ** 6 * 1.5)))
            if self.dead:
                raise asyncio.CancelledError
