"""The ledger that processes share: one PostgreSQL schema, any number of replicas, none of them special."""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence

import structlog

from lucius.adapters.group_commit import call_safely
from lucius.adapters.postgres.cache import Cache
from lucius.adapters.postgres.clock import DatabaseClock
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.inbox import PostgresInbox
from lucius.adapters.postgres.keys import Keys
from lucius.adapters.postgres.loads import Loads
from lucius.adapters.postgres.outbox import PostgresOutbox
from lucius.adapters.postgres.presence import PostgresPresence
from lucius.adapters.postgres.queries import PostgresReader
from lucius.adapters.postgres.reviews import PostgresReviews
from lucius.adapters.postgres.schema import MIGRATIONS, Migration
from lucius.adapters.postgres.secrets import PostgresSecrets
from lucius.adapters.postgres.versions import PostgresVersions
from lucius.adapters.postgres.wakes import Wakes
from lucius.adapters.postgres.writer import Writer
from lucius.core.decision import Decision, JobView
from lucius.core.model import Instant, Millis, OutboxRow
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerError, LedgerTooNew
from lucius.ports.ledger import IdempotencyRow, PendingQuery
from lucius.ports.peers import Presence, SharedSecrets, Wake
from lucius.ports.protocols import ProtocolVersion

log = structlog.get_logger(__name__)

CONNECTIONS = 8
TAKEN_WITHIN_SECONDS = 0.05
"""A row that was written for somebody here and not fetched by then is anybody's."""


class PostgresLedger(PostgresReader, PostgresReviews, PostgresVersions, PostgresInbox):
    """Implements Ledger, Outbox, Reader, ReviewReader, ProtocolStore and Inbox."""

    def __init__(self, database: Database) -> None:
        self._cache = Cache()
        self._loads = Loads(database, self._cache)
        PostgresReader.__init__(self, database, self._loads.protocol)
        me = random.getrandbits(62) + 1
        clock = DatabaseClock()
        self.clock: Clock | None = clock
        self.secrets: SharedSecrets | None = PostgresSecrets(database)
        self.on_commit: Callable[[Decision], None] | None = None
        self.on_end: Callable[[JobView], None] | None = None
        self.on_flush: Callable[[int, float], None] | None = None
        self.on_wake: Callable[[Wake], None] | None = None
        self._keys = Keys(database)
        self._outbox = PostgresOutbox(database, clock, me)
        self._writer = Writer(database, self._cache, self._outbox.hold, self._durable, self._flushed)
        self._wakes = Wakes(
            database, clock, me, on_wake=self._woken, on_gap=self._missed_some, on_revision=self._heard_revision
        )
        self._outbox.alone = self._wakes.company.alone
        self.presence: Presence | None = PostgresPresence(database, self._wakes.company, self._outbox.nothing_due)
        self._revision = 0
        self._releases: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, url: str, connections: int = CONNECTIONS, migrations: Sequence[Migration] = MIGRATIONS
    ) -> "PostgresLedger":
        """Open or create a ledger. Raises LedgerDown, LedgerTooNew or LedgerError."""
        database = Database(url, connections)
        await database.open(migrations)
        ledger = cls(database)
        try:
            await ledger._wakes.look()
            if database.outdated:
                raise LedgerTooNew(database.outdated)
            await ledger._wakes.start()
        except BaseException:
            await database.close()
            raise
        return ledger

    @property
    def awaited(self) -> Callable[[str, int], bool]:
        return self._outbox.awaited

    @awaited.setter
    def awaited(self, awaited: Callable[[str, int], bool]) -> None:
        self._outbox.awaited = awaited

    async def commit(self, decision: Decision) -> None:
        await self._writer.commit(decision)

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
        cached = None if fresh else self._cache.view(job_id, step_ids)
        return cached or await self._loads.view(job_id, step_ids)

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return await self._keys.holder(tenant_id, key)

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        return await self._outbox.due(now, limit, hold_ms)

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        return await self._outbox.pending(query)

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        await self._outbox.put_back(rows)
        self._wakes.tell_put_back({(row.service, row.lane): None for row in rows})

    def announce(self, letter_ids: Collection[str]) -> None:
        self._wakes.tell_letters(letter_ids)

    async def protocol_revision(self) -> int:
        return self._revision

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        return self._moved_revision(await super().put_protocols(versions, expected))

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        return self._moved_revision(await super().delete_protocol(request_type, version, expected))

    async def close(self) -> None:
        await self._writer.close()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._release()
        await self._wakes.close()
        await self._database.close()

    def _moved_revision(self, revision: int) -> int:
        self._heard_revision(revision)
        self._wakes.tell_revision(revision)
        return revision

    def _durable(self, decisions: Sequence[Decision], held: set[str], ends: Sequence[JobView]) -> None:
        """What a commit brings about: here first, then elsewhere."""
        self._outbox.committed(decisions, held)
        if self.on_end is not None:
            for end in ends:
                call_safely(self.on_end, end)
        if self.on_commit is not None:
            for decision in decisions:
                call_safely(self.on_commit, decision)
        if held:
            asyncio.get_running_loop().call_later(TAKEN_WITHIN_SECONDS, self._start_release)
        self._wakes.tell(decisions, lambda row: row.outbox_id in held)

    def _flushed(self, decisions: int, seconds: float) -> None:
        if self.on_flush is not None:
            self.on_flush(decisions, seconds)

    def _start_release(self) -> None:
        task = asyncio.get_running_loop().create_task(self._release())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self) -> None:
        untaken = self._outbox.untaken()
        if not untaken:
            return
        try:
            await self._outbox.put_back(untaken)
        except LedgerError as error:
            log.info("rows stay held until their time is over", rows=len(untaken), reason=str(error))
        ready = tuple({(row.service, row.lane): None for row in untaken})
        self._wakes.tell_ready(ready)
        self._woken(Wake(ready=ready))

    def _woken(self, wake: Wake) -> None:
        self._cache.forget((*wake.changed, *wake.ended))
        self._outbox.heard(service for service, _ in wake.ready)
        if self.on_wake is not None:
            call_safely(self.on_wake, wake)

    def _missed_some(self) -> None:
        self._cache.forget_all()
        self._writer.forget_protocols()
        self._outbox.heard_nothing()

    def _heard_revision(self, revision: int) -> None:
        if revision > self._revision:
            self._revision = revision
            if self.on_wake is not None:
                call_safely(self.on_wake, Wake(protocols=True))
