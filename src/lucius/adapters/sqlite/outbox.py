"""The PENDING rows in fair order. Memory knows who has some, so no backlog is read to find what stands beside it."""

import heapq
from collections.abc import Callable, Collection

from lucius.adapters import rows
from lucius.adapters.sqlite.live import Mirror, Waiting
from lucius.adapters.sqlite.store import Row, Store
from lucius.adapters.turns import Taker, deal
from lucius.core.model import Instant, OutboxRow
from lucius.ports.ledger import PendingQuery

# The inner query is answered by the index alone, so rows of unwanted lanes are passed over without reading them.
PENDING = """
    SELECT seq, outbox_id, body FROM outbox JOIN (
        SELECT job, outbox_id FROM outbox WHERE status = 'PENDING' AND service = ? AND {which} LIMIT ?
    ) AS wanted USING (job, outbox_id)
"""
OF_TENANT = "claimed = 0 AND tenant_id = ? AND next_attempt_at {when}%s ORDER BY next_attempt_at, seq"
READY = PENDING.format(which=OF_TENANT.format(when="IS NULL"))
LATER = PENDING.format(which=OF_TENANT.format(when="<= ?"))
CLAIMED = PENDING.format(which="claimed = 1%s ORDER BY tenant_id, next_attempt_at, seq")
NEXT_LATER = """
    SELECT next_attempt_at FROM outbox
    WHERE status = 'PENDING' AND service = ? AND claimed = 0 AND tenant_id = ? AND next_attempt_at > 0%s
    ORDER BY next_attempt_at, seq LIMIT 1
"""

Look = Callable[[Taker, int], list[Row]]
"""A taker's first rows, as many as asked for."""


class SqliteOutbox:
    """Implements Outbox."""

    _store: Store
    _mirror: Mirror

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        found = self._claimed(query) if query.claimed else self._ready(query)
        if query.later and not query.claimed and len(found) < query.limit:
            found += self._later(query, query.limit - len(found))
        return [rows.outbox_row(body) for _, _, body in found]

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Nobody else asks this file."""

    def _claimed(self, query: PendingQuery) -> list[Row]:
        services = self._mirror.services if query.service is None else {query.service}
        found: list[Row] = []
        for service in services - query.except_services:
            found += self._store.rows(CLAIMED % _lanes(query), (service, query.limit))
        return heapq.nsmallest(query.limit, found)

    def _ready(self, query: PendingQuery) -> list[Row]:
        sql, lanes = READY % _lanes(query), query.lanes
        waiting, in_vain = self._mirror.ready, list[Taker]()

        def look(taker: Taker, n: int) -> list[Row]:
            return self._store.rows(sql, (*taker, n))

        found = self._dealt(waiting, query, query.limit, look, in_vain)
        for taker in in_vain:
            waiting.looked_in_vain(taker, lanes, until=None)
        return found

    def _later(self, query: PendingQuery, limit: int) -> list[Row]:
        """Rows that still wait for their backoff are never walked over: they may be many."""
        sql, next_sql = LATER % _lanes(query), NEXT_LATER % _lanes(query)
        waiting, in_vain = self._mirror.later, list[Taker]()

        def look(taker: Taker, n: int) -> list[Row]:
            return self._store.rows(sql, (*taker, query.now, n))

        found = self._dealt(waiting, query, limit, look, in_vain)
        for taker in in_vain:
            row = self._store.row(next_sql, taker)
            waiting.looked_in_vain(taker, query.lanes, until=row[0] if row else None)
        return found

    def _dealt(self, waiting: Waiting, query: PendingQuery, limit: int, look: Look, in_vain: list[Taker]) -> list[Row]:
        def free(taker: Taker, n: int) -> list[Row]:
            found = sorted(look(taker, n))
            if not found:
                in_vain.append(taker)
            return _not_in_hand(query.except_rows, found, n, lambda more: sorted(look(taker, more)))

        takers = waiting.takers(query.service, query.except_services)
        dealt = deal((taker for taker, lanes in takers if _is_worth_it(lanes, query)), limit, free)
        waiting.served(taker for taker, _ in dealt)
        return [row for _, row in dealt]


def _not_in_hand(in_hand: frozenset[str], found: list[Row], n: int, look: Callable[[int], list[Row]]) -> list[Row]:
    """`found` are the first `n`. Those in hand are few, so twice as many are read until there are enough."""
    asked = n
    while True:
        free = [row for row in found if row[1] not in in_hand]
        if len(free) >= n or len(found) < asked:
            return free[:n]
        asked *= 2
        found = look(asked)


def _lanes(query: PendingQuery) -> str:
    return "" if query.lanes is None else f" AND lane IN ({', '.join(str(int(lane)) for lane in query.lanes)})"


def _is_worth_it(lanes: dict[int, Instant], query: PendingQuery) -> bool:
    wanted = query.lanes
    return any(since <= query.now and (wanted is None or lane in wanted) for lane, since in lanes.items())
