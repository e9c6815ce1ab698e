"""Returns PENDING rows in fair order.

Memory knows which tenants have some, so a long backlog is not read to find other tenants' rows.
"""

import heapq
from collections.abc import Callable, Collection

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import Row, SqliteFile
from lucius.adapters.ledger.sqlite.filters import Filters
from lucius.adapters.ledger.sqlite.memory_state import MemoryState, PendingIndex
from lucius.adapters.ledger.tenant_fairness import QueueKey, take_round_robin
from lucius.core.model.records import Instant, OutboxRow
from lucius.ports.outbox import PendingQuery

_SQL = load_statements(__package__, "outbox")

Look = Callable[[QueueKey, int], list[Row]]
"""Returns a tenant's first rows, as many as asked for."""


class SqliteOutbox:
    """Implements Outbox."""

    def __init__(self, file: SqliteFile, state: MemoryState) -> None:
        self._file = file
        self._state = state

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        found = self._claimed(query) if query.claimed else self._ready(query)
        if query.later and not query.claimed and len(found) < query.limit:
            found += self._later(query, query.limit - len(found))
        return [record_codec.decode_outbox_row(body) for _, _, body in found]

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Do nothing: no other process reads this file."""

    def _claimed(self, query: PendingQuery) -> list[Row]:
        services = self._state.services if query.service is None else {query.service}
        lanes = _lanes(query)
        found: list[Row] = []
        for service in services - query.except_services:
            found += self._file.fetch_rows(lanes.fill("claimed"), (service, *lanes.values, query.limit))
        return heapq.nsmallest(query.limit, found)

    def _ready(self, query: PendingQuery) -> list[Row]:
        lanes = _lanes(query)
        sql = lanes.fill("ready")
        waiting, in_vain = self._state.ready, list[QueueKey]()

        def look(queue: QueueKey, n: int) -> list[Row]:
            return self._file.fetch_rows(sql, (*queue, *lanes.values, n))

        found = self._dealt(waiting, query, query.limit, look, in_vain)
        for queue in in_vain:
            waiting.mark_empty(queue, query.lanes, until=None)
        return found

    def _later(self, query: PendingQuery, limit: int) -> list[Row]:
        """Return rows whose backoff is over, without reading those that still wait: they may be many."""
        lanes = _lanes(query)
        sql, next_sql = lanes.fill("deferred"), lanes.fill("next_deferred")
        waiting, in_vain = self._state.deferred, list[QueueKey]()

        def look(queue: QueueKey, n: int) -> list[Row]:
            return self._file.fetch_rows(sql, (*queue, query.now, *lanes.values, n))

        found = self._dealt(waiting, query, limit, look, in_vain)
        for queue in in_vain:
            row = self._file.fetch_row(next_sql, (*queue, *lanes.values))
            waiting.mark_empty(queue, query.lanes, until=row[0] if row else None)
        return found

    def _dealt(
        self, waiting: PendingIndex, query: PendingQuery, limit: int, look: Look, in_vain: list[QueueKey]
    ) -> list[Row]:
        def free(queue: QueueKey, n: int) -> list[Row]:
            found = sorted(look(queue, n))
            if not found:
                in_vain.append(queue)
            return _not_in_hand(query.except_rows, found, n, lambda more: sorted(look(queue, more)))

        queues = waiting.iter_queues(query.service, query.except_services, query.tenants)
        dealt = take_round_robin((queue for queue, lanes in queues if _is_worth_it(lanes, query)), limit, free)
        waiting.mark_served(queue for queue, _ in dealt)
        return [row for _, row in dealt]


def _not_in_hand(in_hand: frozenset[str], found: list[Row], n: int, look: Callable[[int], list[Row]]) -> list[Row]:
    """Return the first `n` rows that are not in `in_hand`; `found` are the first `n` of all.

    Rows in `in_hand` are few, so twice as many are read until there are enough.
    """
    asked = n
    while True:
        free = [row for row in found if row[1] not in in_hand]
        if len(free) >= n or len(found) < asked:
            return free[:n]
        asked *= 2
        found = look(asked)


def _lanes(query: PendingQuery) -> Filters:
    filters = Filters(_SQL)
    if query.lanes is not None:
        filters.add_set("in_lanes", query.lanes)
    return filters


def _is_worth_it(lanes: dict[int, Instant], query: PendingQuery) -> bool:
    wanted = query.lanes
    return any(since <= query.now and (wanted is None or lane in wanted) for lane, since in lanes.items())
