"""Outbox in dictionaries: PENDING rows in fair order."""

from collections.abc import Callable, Collection
from itertools import islice

from lucius.adapters.ledger.memory.tables import MemoryTables
from lucius.adapters.ledger.tenant_fairness import QueueKey, take_round_robin
from lucius.core.model.records import Instant, OutboxRow
from lucius.ports.outbox import PendingQuery


class MemoryOutbox:
    """Implements Outbox."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        found = self._first(query, query.limit, _is_claimed if query.claimed else _is_ready)
        if query.later and not query.claimed and len(found) < query.limit:
            found += self._first(query, query.limit - len(found), lambda row: _is_ready_again(row, query.now))
        return found

    def _first(self, query: PendingQuery, limit: int, which: Callable[[OutboxRow], bool]) -> list[OutboxRow]:
        """Return the first wanted rows that `which` accepts, in fair order."""

        def look(queue: QueueKey, n: int) -> list[OutboxRow]:
            rows = self._tables.pending.find(queue) or {}
            return list(islice((row for row in rows.values() if which(row) and _is_wanted(row, query)), n))

        queues = (
            queue for queue, _ in self._tables.pending.iter_queues(query.service, query.except_services, query.tenants)
        )
        dealt = take_round_robin(queues, limit, look)
        self._tables.pending.mark_served(queue for queue, _ in dealt)
        return [row for _, row in dealt]

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Do nothing: no other process reads this ledger."""


def _is_claimed(row: OutboxRow) -> bool:
    return row.claimed_at is not None


def _is_ready(row: OutboxRow) -> bool:
    return row.claimed_at is None and row.next_attempt_at is None


def _is_ready_again(row: OutboxRow, now: Instant) -> bool:
    return row.claimed_at is None and row.next_attempt_at is not None and row.next_attempt_at <= now


def _is_wanted(row: OutboxRow, query: PendingQuery) -> bool:
    return row.outbox_id not in query.except_rows and (query.lanes is None or row.lane in query.lanes)
