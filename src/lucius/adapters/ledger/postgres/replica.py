"""Applies commits to what this replica keeps in memory, announces them to its peers, and applies theirs."""

import asyncio
from collections.abc import Sequence

import structlog

from lucius.adapters.ledger.group_commit import call_hook
from lucius.adapters.ledger.postgres.cache import JobCache
from lucius.adapters.ledger.postgres.claims import OutboxClaims
from lucius.adapters.ledger.postgres.clock import DatabaseClock
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.notify import PeerNotifier
from lucius.adapters.ledger.postgres.peer_registry import PeerRegistry
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.ports.errors import LedgerError
from lucius.ports.peers import Wake
from lucius.ports.store import StoreHooks

log = structlog.get_logger(__name__)

RELEASE_UNCLAIMED_SECONDS = 0.05
"""After this time a row held for a pull in this replica is released to all replicas."""


class Replica:
    """This process among the replicas of one schema."""

    def __init__(
        self,
        database: Database,
        clock: DatabaseClock,
        replica_id: int,
        peers: PeerRegistry,
        cache: JobCache,
        claims: OutboxClaims,
        hooks: StoreHooks,
    ) -> None:
        self._cache = cache
        self._claims = claims
        self._hooks = hooks
        self.notifier = PeerNotifier(
            database, clock, replica_id, peers, on_wake=self._on_wake, on_gap=self.forget, on_revision=self._on_revision
        )
        self.revision = 0
        """Revision of the protocols, as far as known."""
        self._releases: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Release what is held, and stop listening."""
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._release()
        await self.notifier.close()

    def publish_revision(self, revision: int) -> None:
        """Apply and announce a revision of the protocols that this replica has just made."""
        self._on_revision(revision)
        self.notifier.publish_revision(revision)

    def on_durable(self, decisions: Sequence[Decision], held: set[str], ends: Sequence[JobSnapshot]) -> None:
        """Apply a commit's effects, first in this process, then in its peers."""
        self._claims.on_commit(decisions, held)
        if self._hooks.on_end is not None:
            for end in ends:
                call_hook(self._hooks.on_end, end)
        if self._hooks.on_commit is not None:
            for decision in decisions:
                call_hook(self._hooks.on_commit, decision)
        if held:
            asyncio.get_running_loop().call_later(RELEASE_UNCLAIMED_SECONDS, self._start_release)
        self.notifier.publish(decisions, lambda row: row.outbox_id in held)

    def on_group(self, decisions: int, seconds: float) -> None:
        """Report the size of a group and the seconds that it took."""
        if self._hooks.on_flush is not None:
            self._hooks.on_flush(decisions, seconds)

    def _start_release(self) -> None:
        task = asyncio.get_running_loop().create_task(self._release())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self) -> None:
        untaken = self._claims.take_held()
        if not untaken:
            return
        try:
            await self._claims.release(untaken)
        except LedgerError as error:
            log.info("rows stay held until their time is over", rows=len(untaken), reason=str(error))
        ready = tuple({(row.service, row.lane): None for row in untaken})
        self.notifier.publish_ready(ready)
        self._on_wake(Wake(ready=ready))

    def _on_wake(self, wake: Wake) -> None:
        self._cache.evict((*wake.changed, *wake.ended))
        self._claims.mark_ready(service for service, _ in wake.ready)
        if self._hooks.on_wake is not None:
            call_hook(self._hooks.on_wake, wake)

    def forget(self) -> None:
        """Forget what is in memory after missed notifications."""
        self._cache.clear()
        self._cache.stored_protocols.clear()  # a standby that took over may lack the latest
        self._claims.reset()

    def _on_revision(self, revision: int) -> None:
        if revision > self.revision:
            self.revision = revision
            if self._hooks.on_wake is not None:
                call_hook(self._hooks.on_wake, Wake(protocols=True))
