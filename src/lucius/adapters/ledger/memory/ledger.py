"""Ledger without durability, for simulations and tests: the same guarantees, kept in dictionaries."""

from collections.abc import Collection
from itertools import islice

from lucius.adapters.ledger.group_commit import GroupCommit
from lucius.adapters.ledger.memory.tables import JobEntry, MemoryTables
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Instant, Millis
from lucius.core.model.statuses import StepStatus
from lucius.ports.ledger import Drift, IdempotencyRow
from lucius.ports.store import BlockedTime, StoreHooks


class MemoryLedger:
    """Implements Ledger. Deterministic: the same calls in the same order get the same answers."""

    def __init__(self, tables: MemoryTables, hooks: StoreHooks, blocked_time: BlockedTime) -> None:
        self._tables = tables
        self.commits = GroupCommit(tables.write, hooks, blocked_time)

    async def commit(self, decision: Decision) -> None:
        await self.commits.commit(decision)

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
        record = self._tables.records.get(job_id)
        return record.view((*record.job.active, *step_ids)) if record is not None else None

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return self._tables.keys.get((tenant_id, key))

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        due = [
            (record.job.due_at, record.position, job_id)
            for job_id, record in self._tables.live.items()
            if record.job.due_at is not None and record.job.due_at <= now
        ]
        return [job_id for _, _, job_id in sorted(due)[:limit]]

    async def drifted(self, limit: int) -> list[Drift]:
        return list(islice((drift for record in self._tables.live.values() if (drift := _drift(record))), limit))

    async def close(self) -> None:
        self.commits.drain()


def _drift(record: JobEntry) -> Drift | None:
    rows = {row.outbox_id for row in record.pending_rows()}
    missing = tuple(
        step.step_id
        for _, step in sorted(record.steps.items())
        if step.status is StepStatus.DISPATCHING and step.attempt.outbox_id not in rows
    )
    if missing or (record.job.due_at is None and not rows):
        return Drift(record.job.job_id, missing)
    return None
