"""Simulated durable store and the connections to it, with what a crash loses and what it leaves.

The tables of a ledger in memory are the disk. Each process has its own store over them with its own group commit
queue, which dies with the process; how much of that queue was still written is drawn at random.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lucius.adapters.ledger.group_commit import GroupCommit
from lucius.adapters.ledger.memory.store import open_memory
from lucius.adapters.ledger.memory.tables import JobEntry, MemoryTables
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Instant, Job, Millis, OutboxRow, ReviewItem, Step
from lucius.ports.errors import LedgerFull, LimitReached, VersionConflict
from lucius.ports.ledger import Drift, IdempotencyRow, Ledger
from lucius.ports.outbox import Outbox, PendingQuery
from lucius.ports.readers import JobReader
from lucius.ports.store import Store
from tests.simulation.faults import Faults

T = TypeVar("T")


class Before(Struct, frozen=True):
    """State of a job before a commit."""

    job: Job
    steps: dict[str, Step]
    rows: dict[str, OutboxRow]


Committed = Callable[["Connection", Before | None, JobEntry, Decision], None]


class Disk:
    """Durable state that survives crashes; connections share its tables, and nothing commits through it."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self.tables = MemoryTables()
        self.reviews = self.tables.reviews
        self.faults = faults
        self.rng = rng
        self.full = False
        self.on_write: Committed = lambda *_: None
        self.on_read: Callable[[str, str], bool] = lambda *_: False

    @property
    def records(self) -> dict[str, JobEntry]:
        return self.tables.records

    @property
    def totals(self) -> dict[str, int]:
        return self.tables.counters

    @property
    def review_items(self) -> dict[str, ReviewItem]:
        return self.tables.reviews.items

    def lose_row(self, row: OutboxRow) -> None:
        """Delete an outbox row, to simulate drift."""
        self.tables.drop_pending(row)
        del self.records[row.job_id].outbox[row.outbox_id]


class Connection:
    """Store of one process: the real one in memory behind a slow, faulty wire to the disk."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.name = name
        self.dead = False
        self.disk = disk
        real = open_memory(disk.tables)
        self.hooks = real.hooks
        self._commits = GroupCommit(self._write, real.hooks, real.blocked_time)
        self.store: Store = replace(
            real,
            ledger=WiredLedger(self, real.ledger, self._commits),
            outbox=WiredOutbox(self, real.outbox),
            jobs=WiredJobReader(self, real.jobs),
        )

    def cut(self) -> None:
        """Disconnect a dead process: a random part of its queued commits is written, the rest is lost."""
        self.hooks.on_commit = self.hooks.on_flush = None
        queue = self._commits.queue
        keep = self.disk.rng.randint(0, len(queue)) if queue else 0
        for decision, _ in list(queue)[:keep]:
            kept = self._write_one(decision) is None
            self.disk.faults.saw("commit_survived_crash" if kept else "commit_refused_in_crash")
        self.disk.faults.counts["commit_lost_in_crash"] += len(queue) - keep
        queue.clear()
        self.dead = True

    def _write(self, decisions: Sequence[Decision]) -> list[Exception | None]:
        return [self._write_one(decision) for decision in decisions]

    def _write_one(self, decision: Decision) -> Exception | None:
        if not decision.creates and self.disk.faults.hit("ledger_conflict"):
            return VersionConflict("injected")
        if self.disk.full or self.disk.faults.hit("ledger_full"):
            self.disk.faults.saw("commit_refused_full")
            return LedgerFull("injected")
        record = self.disk.records.get(decision.job.job_id)
        before = Before(record.job, dict(record.steps), dict(record.outbox)) if record else None
        refusal = self.disk.tables.write_one(decision)
        if isinstance(refusal, VersionConflict):
            self.disk.faults.saw("conflict_of_replicas")
        elif isinstance(refusal, LimitReached):
            self.disk.faults.saw("limit_reached")
        elif refusal is None:
            self.disk.on_write(self, before, self.disk.records[decision.job.job_id], decision)
        return refusal

    async def read(self, answer: Coroutine[Any, Any, T], what: str = "") -> T:
        """Return what was read, after a delay in which it may become outdated."""
        read = await answer
        if what and self.disk.on_read(self.name, what):
            await asyncio.sleep(0)  # lets a process frozen by on_read stop here
        await self.wire()
        return read

    async def wire(self) -> None:
        if self.dead:
            raise asyncio.CancelledError
        faults, rng = self.disk.faults, self.disk.rng
        if faults.hit("ledger_slow"):
            await asyncio.sleep(rng.choice((0, 0, rng.random() ** 6 * 1.5)))
            if self.dead:
                raise asyncio.CancelledError


class WiredLedger:
    def __init__(self, wire: Connection, ledger: Ledger, commits: GroupCommit) -> None:
        self._wire = wire
        self._ledger = ledger
        self._commits = commits

    async def commit(self, decision: Decision) -> None:
        await self._wire.wire()
        await self._commits.commit(decision)
        await self._wire.wire()

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
        return await self._wire.read(self._ledger.load(job_id, step_ids, fresh))

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return await self._wire.read(self._ledger.accepted(tenant_id, key))

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        return await self._wire.read(self._ledger.due(now, limit, hold_ms), "due")

    async def drifted(self, limit: int) -> list[Drift]:
        return await self._wire.read(self._ledger.drifted(limit))


class WiredOutbox:
    def __init__(self, wire: Connection, outbox: Outbox) -> None:
        self._wire = wire
        self._outbox = outbox

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        return await self._wire.read(self._outbox.pending(query), "pending")

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        await self._outbox.put_back(rows)


class WiredJobReader:
    def __init__(self, wire: Connection, jobs: JobReader) -> None:
        self._wire = wire
        self._jobs = jobs
        self.jobs, self.counters, self.backlog = jobs.jobs, jobs.counters, jobs.backlog

    async def job(self, job_id: str) -> JobSnapshot | None:
        return await self._wire.read(self._jobs.job(job_id))
