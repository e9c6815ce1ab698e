"""Claims pending outbox rows and due jobs so that no two replicas work on the same one.

A claim is a hold with an expiry, stored in the row itself. A commit that writes a row for which a pull waits in this
replica holds it from the start, and the row is handed out from memory.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable
from itertools import chain, zip_longest
from typing import Any

from asyncpg import Record
from msgspec.structs import replace

from lucius.adapters.ledger.postgres.batch import Hold
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.functions import MAX_TENANTS
from lucius.adapters.ledger.postgres.prefetched_outbox import PrefetchedOutbox
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.decision import Decision
from lucius.core.model.records import Instant, Millis, OutboxRow
from lucius.core.model.statuses import OutboxStatus
from lucius.core.protocol.definition import WEBHOOK_SERVICE
from lucius.ports.clock import Clock
from lucius.ports.outbox import PendingQuery
from lucius.ports.store import StoreHooks

PREFETCH_HOLD_MS: Millis = 5_000
DEFERRED_POLL_MS: Millis = 15_000
NO_HOLD: Hold = (0, 0)
MIN_TENANT_SHARE = 3

_RotationKey = tuple[str, frozenset[int] | None, frozenset[str] | None]
"""Service, lanes and tenants of a query; for each such key the tenant served last is remembered."""

_SQL = load_statements(__package__, "claims", max_tenants=MAX_TENANTS)
_TAKE = _SQL["take"]
_TAKE_OF_TENANTS = _SQL["take_of_tenants"]
_DEFERRED = _SQL["deferred"]
_DEFERRED_OF_TENANTS = _SQL["deferred_of_tenants"]
_HOLD_DEFERRED = _SQL["hold_deferred"]
_CLAIMED = _SQL["claimed"]
_READY_SERVICES = _SQL["ready_services"]
_DEFERRED_SERVICES = _SQL["deferred_services"]
_RELEASE = _SQL["release"]
_DUE = _SQL["due"]
_TAKE_DUE = _SQL["take_due"]


class OutboxClaims:
    """Claims of this replica.

    `_empty` names services without free rows in the database, `_change_count` grows with every sign of new rows: if it
    is still the same after a query that found nothing, the next query is answered from memory.
    """

    def __init__(
        self, database: Database, clock: Clock, replica_id: int, hooks: StoreHooks, is_alone: Callable[[], bool]
    ) -> None:
        """While `is_alone()`, there is no other replica: then all rows written here can be handed out from memory."""
        self._database = database
        self._hooks = hooks
        self._is_alone = is_alone
        self._clock = clock
        self._replica_id = replica_id
        self._last_tenant: dict[_RotationKey, str] = {}
        self._prefetched = PrefetchedOutbox()
        self._empty: set[str] = set()
        self._change_count = 0
        self._idle_at_change = -1
        self._excluded_with_rows: frozenset[str] = frozenset()
        self._next_deferred_query_at: dict[str, Instant] = {}
        self._turn = 0
        self._served_at_turn: dict[str, int] = {}
        self._none_due_until: Instant | None = None

    def choose_hold(self, row: OutboxRow) -> Hold:
        """Return the hold to write with a new row: this replica's if a pull waits for it.

        Webhook rows are not held here: a webhook is sent before it is recorded, so its sender claims the row for as
        long as the request may take.
        """
        if row.service == WEBHOOK_SERVICE:
            return NO_HOLD
        if row.next_attempt_at is None and row.claimed_at is None and self._hooks.awaited(row):
            return self._replica_id, self._clock.now() + PREFETCH_HOLD_MS
        return NO_HOLD

    def on_commit(self, decisions: Iterable[Decision], held: Container[str]) -> None:
        """Keep committed rows that can be handed out from memory, and drop settled ones."""
        for decision in decisions:
            for row in decision.outbox:
                self._on_row(row, row.outbox_id in held)

    def _on_row(self, row: OutboxRow, held: bool) -> None:
        if row.status is not OutboxStatus.PENDING or row.claimed_at is not None or row.next_attempt_at is not None:
            self._prefetched.discard(row)
        elif not ((held or self._can_prefetch(row)) and self._prefetched.add(row, held)):
            self.mark_ready([row.service])
        if row.next_attempt_at is not None and row.next_attempt_at < self._next_deferred_query_at.get(row.service, 0):
            self._next_deferred_query_at[row.service] = row.next_attempt_at

    def _can_prefetch(self, row: OutboxRow) -> bool:
        """Return True while alone, except for webhooks: a replica that joins must find their rows claimed."""
        return self._is_alone() and row.service != WEBHOOK_SERVICE

    def mark_ready(self, services: Iterable[str]) -> None:
        """Note that the database may have new ready rows of these services."""
        self._empty.difference_update(services)
        self._change_count += 1

    def reset(self) -> None:
        """Forget everything in memory after missed notifications: other replicas may have added or taken rows."""
        self._prefetched.clear()
        self._empty.clear()
        self._change_count += 1

    def take_held(self) -> list[OutboxRow]:
        """Remove and return rows held for pulls that did not take them."""
        return self._prefetched.take_held()

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        """Return PENDING rows, as `Outbox.pending`."""
        if query.claimed:
            return await self._claimed(query)
        if query.service is None:
            found = await self._pending_of_all(query)
        else:
            found = await self._pending_of(query.service, query)
        for row in found:
            self._last_tenant[row.service, query.lanes, query.tenants] = row.tenant_id
            self._turn += 1
            self._served_at_turn[row.service] = self._turn
        return found

    async def _pending_of_all(self, query: PendingQuery) -> list[OutboxRow]:
        """Return rows of all services in rotation: the service served last comes last."""
        if query.hold_ms and not query.later and self._is_idle(query):
            return self._take_prefetched(query)
        changes = self._change_count
        heads = await self._database.fetch_rows(_READY_SERVICES)
        if query.later:
            heads += await self._database.fetch_rows(_DEFERRED_SERVICES)
        services = {service: seq for service, seq in reversed(heads) if service not in query.except_services}
        wanted = [(self._served_at_turn.get(service, 0), seq, service) for service, seq in services.items()]
        share = replace(query, limit=-(-query.limit // max(1, len(wanted)))) if query.hold_ms else query
        queues = [await self._pending_of(service, share) for _, _, service in sorted(wanted)]
        interleaved = chain.from_iterable(zip_longest(*queues))
        found = [row for row in interleaved if row is not None][: query.limit]
        if not found and query.lanes is None and query.tenants is None:
            self._idle_at_change = changes
            self._excluded_with_rows = query.except_services.intersection(service for service, _ in heads)
        return found

    def _is_idle(self, query: PendingQuery) -> bool:
        """Return True if the last query found nothing and nothing changed since, excluded services apart."""
        return self._idle_at_change == self._change_count and self._excluded_with_rows <= query.except_services

    def _take_prefetched(self, query: PendingQuery) -> list[OutboxRow]:
        services = [service for service in self._prefetched.services() if service not in query.except_services]
        turns = deque(sorted(services, key=lambda service: self._served_at_turn.get(service, 0)))
        found: list[OutboxRow] = []
        while turns and len(found) < query.limit:
            service = turns.popleft()
            one = self._prefetched.take(service, 1, lambda row: _is_wanted(row, query))
            if one:
                found += one
                turns.append(service)
        return found

    async def _pending_of(self, service: str, query: PendingQuery) -> list[OutboxRow]:
        if not query.hold_ms:
            ready = await self._all_ready(service, query)
        elif service in self._empty:
            ready = self._prefetched.take(service, query.limit, lambda row: _is_wanted(row, query))
        else:
            changes = self._change_count
            ready = await self._all_ready(service, query)
            for row in ready:
                self._prefetched.discard(row)
            is_whole_queue = query.lanes is None and query.tenants is None
            if len(ready) < query.limit and is_whole_queue and self._change_count == changes:
                self._empty.add(service)
        if len(ready) < query.limit and query.later:
            ready += await self._deferred(service, query, query.limit - len(ready))
        return ready

    async def _claim_deferred(self, service: str, query: PendingQuery, values: tuple[Any, ...]) -> list[Record]:
        """Claim rows whose backoff is over.

        Other replicas do not announce theirs, so the database is queried every DEFERRED_POLL_MS; rows written here are
        queried for when they are due.
        """
        if query.now < self._next_deferred_query_at.get(service, 0):
            return []
        self._next_deferred_query_at[service] = query.now + DEFERRED_POLL_MS
        found = await self._database.fetch_rows(_HOLD_DEFERRED, *values, query.now + query.hold_ms)
        if found:
            self._next_deferred_query_at.pop(service)
        return found

    async def _all_ready(self, service: str, query: PendingQuery) -> list[OutboxRow]:
        """Return ready rows, fewer than the limit only if there are no more.

        One query returns at most a share of each tenant, so it is repeated while there may be others.
        """
        found = part = await self._ready(service, query)
        while part and len(found) < query.limit and not _is_complete(part, query.limit):
            self._last_tenant[service, query.lanes, query.tenants] = part[-1].tenant_id
            known = query.except_rows | {row.outbox_id for row in found}
            part = await self._ready(service, replace(query, limit=query.limit - len(found), except_rows=known))
            found = found + part
        return found

    async def _ready(self, service: str, query: PendingQuery) -> list[OutboxRow]:
        until = query.now + query.hold_ms if query.hold_ms else 0
        after = self._last_tenant.get((service, query.lanes, query.tenants), "")
        known = sorted(query.except_rows) or None
        values = (query.limit, _lanes(query), known, self._replica_id, query.now, until)
        if query.tenants is None:
            found = await self._database.fetch_rows(_TAKE, service, after, *values)
        else:
            in_turn = sorted(query.tenants, key=lambda tenant: (tenant <= after, tenant))
            found = await self._database.fetch_rows(_TAKE_OF_TENANTS, service, in_turn, *values)
        return [_row(record) for record in found]

    async def _deferred(self, service: str, query: PendingQuery, limit: int) -> list[OutboxRow]:
        known = sorted(query.except_rows) or None
        values = (service, query.now, _lanes(query), query.now, self._replica_id, limit, known)
        if query.tenants is not None:
            found = await self._database.fetch_rows(_DEFERRED_OF_TENANTS, *values, sorted(query.tenants))
        elif query.hold_ms:
            found = await self._claim_deferred(service, query, values)
        else:
            found = await self._database.fetch_rows(_DEFERRED, *values)
        return [_row(record) for record in sorted(found, key=lambda r: (r["next_attempt_at"], r["seq"]))]

    async def _claimed(self, query: PendingQuery) -> list[OutboxRow]:
        found = await self._database.fetch_rows(_CLAIMED, query.service, _lanes(query), query.limit)
        return [_row(record) for record in found]

    async def release(self, rows: Collection[OutboxRow]) -> None:
        """Release the holds of rows that were not handed over."""
        if rows:
            self.mark_ready({row.service for row in rows})
            ids = [row.job_id for row in rows], [row.outbox_id for row in rows]
            # Not retried: a row may have been claimed again by then.
            async with self._database.connection() as connection:
                await connection.execute(_RELEASE, *ids, self._replica_id)

    def skip_next_due_query(self, until: Instant) -> None:
        """Answer the next call of `due` with nothing if it asks up to `until`: no job was due just now."""
        self._none_due_until = until

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        """Return due jobs. Without a claim, always query: callers use this as a health check."""
        if hold_ms:
            none_until, self._none_due_until = self._none_due_until, None
            if none_until is not None and now <= none_until:
                return []
            found = await self._database.fetch_rows(_TAKE_DUE, now, limit, self._replica_id, now + hold_ms)
        else:
            found = await self._database.fetch_rows(_DUE, now, limit)
        return [job_id for (job_id,) in found]


def _is_complete(taken: list[OutboxRow], limit: int) -> bool:
    """Return True if a query surely left no rows behind.

    A query serves at most MAX_TENANTS tenants and gives each at least MIN_TENANT_SHARE rows if it has them. Tenants
    whose rows were locked by other replicas do not show in the result, hence only half of MAX_TENANTS.
    """
    tenants = Counter(row.tenant_id for row in taken)
    most = max(tenants.values(), default=0)
    return len(taken) < limit and len(tenants) < MAX_TENANTS // 2 and most < MIN_TENANT_SHARE


def _lanes(query: PendingQuery) -> list[int] | None:
    return None if query.lanes is None else sorted(query.lanes)


def _is_wanted(row: OutboxRow, query: PendingQuery) -> bool:
    return (
        (query.lanes is None or row.lane in query.lanes)
        and (query.tenants is None or row.tenant_id in query.tenants)
        and row.outbox_id not in query.except_rows
    )


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
