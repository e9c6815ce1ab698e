"""What waits to be handed over, and what is due: taken so that no two processes work on the same.

What is taken is held for a while in its own row. A commit that writes a row for which somebody waits in this very
process holds it from the start, and it is handed out from memory.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable
from itertools import chain, zip_longest
from typing import Any

from asyncpg import Record
from msgspec.structs import replace

from lucius.adapters.postgres.batch import Hold
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.functions import MOST_TENANTS
from lucius.adapters.postgres.reserve import Reserve
from lucius.core.decision import Decision
from lucius.core.model import Instant, Millis, OutboxRow, OutboxStatus
from lucius.core.protocol import WEBHOOK_SERVICE
from lucius.ports.clock import Clock
from lucius.ports.ledger import PendingQuery

RESERVED_MS: Millis = 5_000
LATER_MS: Millis = 15_000
NOBODY: Hold = (0, 0)
LEAST_SHARE = 3

_COLUMNS = """
    job_id, outbox_id, tenant_id, step_id, attempt_no, lease_id, service, topic, lane, created_at, next_attempt_at,
    claimed_at, seq
"""
_TAKE = f"SELECT {_COLUMNS} FROM take_1($1, $2, $3, $4::smallint[], $5::text[], $6, $7, $8)"
_LATER = f"""
    SELECT {_COLUMNS} FROM outbox
    WHERE service = $1 AND claimed_at IS NULL AND next_attempt_at <= $2 AND ($3::smallint[] IS NULL OR lane = ANY ($3))
      AND (held_until < $4 OR holder = $5) AND ($7::text[] IS NULL OR outbox_id <> ALL ($7))
    ORDER BY next_attempt_at, seq LIMIT $6
"""
_HOLD_LATER = f"""
    UPDATE outbox SET holder = $5, held_until = $8 WHERE (job, outbox_id) IN (
        SELECT job, outbox_id FROM outbox
        WHERE service = $1 AND claimed_at IS NULL AND next_attempt_at <= $2
          AND ($3::smallint[] IS NULL OR lane = ANY ($3)) AND (held_until < $4 OR holder = $5)
          AND ($7::text[] IS NULL OR outbox_id <> ALL ($7))
        ORDER BY next_attempt_at, seq LIMIT $6 FOR UPDATE SKIP LOCKED
    ) RETURNING {_COLUMNS}
"""
_CLAIMED = f"""
    SELECT {_COLUMNS} FROM outbox
    WHERE claimed_at IS NOT NULL AND ($1::text IS NULL OR service = $1) AND ($2::smallint[] IS NULL OR lane = ANY ($2))
    ORDER BY claimed_at, seq LIMIT $3
"""
# Hops from service to service along the index.
_SERVICES = """
    WITH RECURSIVE heads AS (
        (SELECT service, seq FROM outbox WHERE {which} ORDER BY {order} LIMIT 1)
        UNION ALL
        SELECT behind.service, behind.seq FROM heads CROSS JOIN LATERAL (
            SELECT service, seq FROM outbox WHERE service > heads.service AND {which} ORDER BY {order} LIMIT 1
        ) AS behind
    ) SELECT service, seq FROM heads
"""
_READY_SERVICES = _SERVICES.format(
    which="next_attempt_at IS NULL AND claimed_at IS NULL", order="service, tenant_id, seq"
)
_LATER_SERVICES = _SERVICES.format(which="next_attempt_at IS NOT NULL", order="service, next_attempt_at, seq")
# A row that somebody is changing at this moment is not waited for: whoever does says what becomes of it.
_PUT_BACK = """
    WITH mine AS MATERIALIZED (
        SELECT o.job, o.outbox_id FROM unnest($1::text[], $2::text[]) AS r (job_id, outbox_id)
        JOIN jobs ON jobs.job_id = r.job_id JOIN outbox AS o ON o.job = jobs.id AND o.outbox_id = r.outbox_id
        WHERE o.holder = $3 FOR UPDATE OF o SKIP LOCKED
    )
    UPDATE outbox SET holder = 0, held_until = 0 FROM mine
    WHERE outbox.job = mine.job AND outbox.outbox_id = mine.outbox_id
"""
_DUE = """
    SELECT jobs.job_id FROM live JOIN jobs ON jobs.id = live.id
    WHERE live.look_at <= $1 AND live.due_at <= $1 ORDER BY live.due_at, live.id LIMIT $2
"""
_TAKE_DUE = """
    SELECT jobs.job_id FROM due_1($1, $2, $3, $4) AS due JOIN jobs ON jobs.id = due.id ORDER BY due.due_at, due.id
"""


class PostgresOutbox:
    """Implements Outbox, and what the sweeper takes."""

    def __init__(self, database: Database, clock: Clock, me: int) -> None:
        self._database = database
        self._clock = clock
        self._me = me
        self._served: dict[tuple[str, frozenset[int] | None], str] = {}
        self._reserve = Reserve()
        self._empty: set[str] = set()
        self._news = 0
        self._quiet_since = -1
        self._passed_over: frozenset[str] = frozenset()
        self._later_at: dict[str, Instant] = {}
        self._turn = 0
        self._turns: dict[str, int] = {}
        self._nothing_due_until: Instant | None = None
        self.awaited: Callable[[str, int], bool] = lambda service, lane: False
        """Whether somebody in this process waits for a row like this."""
        self.alone: Callable[[], bool] = lambda: False
        """Whether no other process is there: then all that is written here can be handed out from memory."""

    def hold(self, row: OutboxRow) -> Hold:
        """A notice is told before it is recorded: it is held for as long as whoever tells it asks for."""
        if row.service == WEBHOOK_SERVICE:
            return NOBODY
        if row.next_attempt_at is None and row.claimed_at is None and self.awaited(row.service, row.lane):
            return self._me, self._clock.now() + RESERVED_MS
        return NOBODY

    def committed(self, decisions: Iterable[Decision], held: Container[str]) -> None:
        """Keep the rows that were written for somebody here, and forget those that are settled."""
        for decision in decisions:
            for row in decision.outbox:
                self._note(row, row.outbox_id in held)

    def _note(self, row: OutboxRow, held: bool) -> None:
        if row.status is not OutboxStatus.PENDING or row.claimed_at is not None or row.next_attempt_at is not None:
            self._reserve.drop(row)
        elif not ((held or self._keeps(row)) and self._reserve.put(row, held)):
            self.heard([row.service])
        if row.next_attempt_at is not None and row.next_attempt_at < self._later_at.get(row.service, 0):
            self._later_at[row.service] = row.next_attempt_at

    def _keeps(self, row: OutboxRow) -> bool:
        """A notice is told before it is recorded, so somebody who comes meanwhile must find it held."""
        return self.alone() and row.service != WEBHOOK_SERVICE

    def heard(self, services: Iterable[str]) -> None:
        """There are rows in the database that nobody here has seen."""
        self._empty.difference_update(services)
        self._news += 1

    def heard_nothing(self) -> None:
        """For a while: there may be rows of any service, and those in memory may be gone."""
        self._reserve.clear()
        self._empty.clear()
        self._news += 1

    def untaken(self) -> list[OutboxRow]:
        """Rows that were written for somebody who did not come for them."""
        return self._reserve.take_held()

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        if query.claimed:
            return await self._claimed(query)
        if query.service is None:
            found = await self._of_all(query)
        else:
            found = await self._of(query.service, query)
        for row in found:
            self._served[row.service, query.lanes] = row.tenant_id
            self._turn += 1
            self._turns[row.service] = self._turn
        return found

    async def _of_all(self, query: PendingQuery) -> list[OutboxRow]:
        """The services take turns too: whichever was served last is the last to be served next."""
        if query.hold_ms and not query.later and self._is_quiet(query):
            return self._all_reserved(query)
        news = self._news
        heads = await self._database.rows(_READY_SERVICES)
        if query.later:
            heads += await self._database.rows(_LATER_SERVICES)
        services = {service: seq for service, seq in reversed(heads) if service not in query.except_services}
        wanted = [(self._turns.get(service, 0), seq, service) for service, seq in services.items()]
        share = replace(query, limit=-(-query.limit // max(1, len(wanted)))) if query.hold_ms else query
        queues = [await self._of(service, share) for _, _, service in sorted(wanted)]
        dealt = chain.from_iterable(zip_longest(*queues))
        found = [row for row in dealt if row is not None][: query.limit]
        if not found and query.lanes is None:
            self._quiet_since = news
            self._passed_over = query.except_services.intersection(service for service, _ in heads)
        return found

    def _is_quiet(self, query: PendingQuery) -> bool:
        """Whether there was nothing in the database, but for services that were not asked for and still are not."""
        return self._quiet_since == self._news and self._passed_over <= query.except_services

    def _all_reserved(self, query: PendingQuery) -> list[OutboxRow]:
        services = [service for service in self._reserve.services() if service not in query.except_services]
        turns = deque(sorted(services, key=lambda service: self._turns.get(service, 0)))
        found: list[OutboxRow] = []
        while turns and len(found) < query.limit:
            service = turns.popleft()
            one = self._reserve.take(service, 1, lambda row: _is_wanted(row, query))
            if one:
                found += one
                turns.append(service)
        return found

    async def _of(self, service: str, query: PendingQuery) -> list[OutboxRow]:
        if not query.hold_ms:
            ready = await self._all_ready(service, query)
        elif service in self._empty:
            ready = self._reserve.take(service, query.limit, lambda row: _is_wanted(row, query))
        else:
            news = self._news
            ready = await self._all_ready(service, query)
            for row in ready:
                self._reserve.drop(row)
            if len(ready) < query.limit and query.lanes is None and self._news == news:
                self._empty.add(service)
        if len(ready) < query.limit and query.later:
            ready += await self._later(service, query, query.limit - len(ready))
        return ready

    async def _held_later(self, service: str, query: PendingQuery, values: tuple[Any, ...]) -> list[Record]:
        """Rows of other processes come up unannounced, so there is a look now and then; our own when they are due."""
        if query.now < self._later_at.get(service, 0):
            return []
        self._later_at[service] = query.now + LATER_MS
        found = await self._database.rows(_HOLD_LATER, *values, query.now + query.hold_ms)
        if found:
            self._later_at.pop(service)
        return found

    async def _all_ready(self, service: str, query: PendingQuery) -> list[OutboxRow]:
        """Fewer than asked for only if there are no more: one look passes over what is beyond a tenant's share."""
        found = part = await self._ready(service, query)
        while part and len(found) < query.limit and not _are_all(part, query.limit):
            self._served[service, query.lanes] = part[-1].tenant_id
            known = query.except_rows | {row.outbox_id for row in found}
            part = await self._ready(service, replace(query, limit=query.limit - len(found), except_rows=known))
            found = found + part
        return found

    async def _ready(self, service: str, query: PendingQuery) -> list[OutboxRow]:
        until = query.now + query.hold_ms if query.hold_ms else 0
        after, known = self._served.get((service, query.lanes), ""), sorted(query.except_rows) or None
        values = (service, after, query.limit, _lanes(query), known, self._me, query.now, until)
        return [_row(record) for record in await self._database.rows(_TAKE, *values)]

    async def _later(self, service: str, query: PendingQuery, limit: int) -> list[OutboxRow]:
        known = sorted(query.except_rows) or None
        values = (service, query.now, _lanes(query), query.now, self._me, limit, known)
        if query.hold_ms:
            found = await self._held_later(service, query, values)
        else:
            found = await self._database.rows(_LATER, *values)
        return [_row(record) for record in sorted(found, key=lambda r: (r["next_attempt_at"], r["seq"]))]

    async def _claimed(self, query: PendingQuery) -> list[OutboxRow]:
        found = await self._database.rows(_CLAIMED, query.service, _lanes(query), query.limit)
        return [_row(record) for record in found]

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        if rows:
            self.heard({row.service for row in rows})
            ids = [row.job_id for row in rows], [row.outbox_id for row in rows]
            async with self._database.connection() as connection:  # at most once: by then it may be taken again
                await connection.execute(_PUT_BACK, *ids, self._me)

    def nothing_due(self, until: Instant) -> None:
        """As of just now: the next look is spared, and only that."""
        self._nothing_due_until = until

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        """Whoever holds nothing may want to know whether the database answers: he is spared no look."""
        if hold_ms:
            spared, self._nothing_due_until = self._nothing_due_until, None
            if spared is not None and now <= spared:
                return []
            found = await self._database.rows(_TAKE_DUE, now, limit, self._me, now + hold_ms)
        else:
            found = await self._database.rows(_DUE, now, limit)
        return [job_id for (job_id,) in found]


def _are_all(taken: list[OutboxRow], limit: int) -> bool:
    """Whether surely nothing was left behind: only so many tenants are served at a time, and none gets more than a
    share, which is three at least. Rows that others were just taking count for nobody, hence the half."""
    tenants = Counter(row.tenant_id for row in taken)
    return len(taken) < limit and len(tenants) < MOST_TENANTS // 2 and max(tenants.values(), default=0) < LEAST_SHARE


def _lanes(query: PendingQuery) -> list[int] | None:
    return None if query.lanes is None else sorted(query.lanes)


def _is_wanted(row: OutboxRow, query: PendingQuery) -> bool:
    return (query.lanes is None or row.lane in query.lanes) and row.outbox_id not in query.except_rows


def _row(record: Record) -> OutboxRow:
    return OutboxRow(
        outbox_id=record["outbox_id"],
        job_id=record["job_id"],
        tenant_id=record["tenant_id"],
        step_id=record["step_id"],
        attempt_no=record["attempt_no"],
        lease_id=record["lease_id"],
        service=record["service"],
        topic=record["topic"],
        lane=record["lane"],
        status=OutboxStatus.PENDING,
        created_at=record["created_at"],
        next_attempt_at=record["next_attempt_at"],
        claimed_at=record["claimed_at"],
    )
