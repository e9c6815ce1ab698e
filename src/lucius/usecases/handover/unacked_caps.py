"""Caps on un-ACKed directives: which counters are at their cap, and how much room they have left.

The ledger enforces the caps with each hand-over. What is known here only saves attempts that it would refuse.
"""

import asyncio
from collections.abc import Collection

from lucius.core.model.counters import unacked_counter, unacked_service
from lucius.core.model.inputs import Cap
from lucius.core.model.records import OutboxRow
from lucius.ports.readers import JobReader
from lucius.usecases.notifier import Notifier


class UnackedCaps:
    """Counters of un-ACKed directives that were at their cap recently, and the room under a cap."""

    def __init__(self, jobs: JobReader, notifier: Notifier, max_unacked: int) -> None:
        self._jobs = jobs
        self._notifier = notifier
        self._max_unacked = max_unacked
        self._capped: dict[str, asyncio.Lock] = {}

    def limits(self, counter: str) -> tuple[Cap, ...]:
        """Return the caps that the commit of a hand-over enforces."""
        return (Cap(counter, self._max_unacked),)

    def is_capped(self, counter: str) -> bool:
        """Return True if this counter of un-ACKed directives was at its cap recently."""
        return counter in self._capped

    def uncapped_services(self, services: Collection[str]) -> Collection[str]:
        """Return those of the services that were not at their cap recently, with the pulls for all tenants."""
        if not self._capped:
            return services
        return [name for name in services if unacked_counter(name) not in self._capped]

    def capped_services(self) -> frozenset[str]:
        """Return the services that were at their cap recently, with the pulls for all tenants."""
        services = map(unacked_service, self._capped)
        return frozenset(service for service in services if unacked_counter(service) in self._capped)

    def capped_tenants(self, service: str, tenants: frozenset[str]) -> dict[str, str]:
        """Return those of the tenants whose own counter of the service was at its cap recently, and the counters."""
        if not self._capped:
            return {}
        counters = {tenant: unacked_counter(service, tenant) for tenant in sorted(tenants)}
        return {tenant: counter for tenant, counter in counters.items() if counter in self._capped}

    def note_refusal(self, counter: str, seen: int) -> None:
        """Note that the ledger refused a hand-over as the counter is at its cap.

        `seen` is the number of pick-ups from before the refused attempt.
        """
        self._capped.setdefault(counter, asyncio.Lock())
        self._notifier.hold(counter, seen)

    def lock(self, counter: str) -> asyncio.Lock:
        """Return the lock of a capped counter, under which one pull at a time tries for the room that is left."""
        return self._capped[counter]

    async def room(self, counter: str) -> int:
        """Return how many more directives may be un-ACKed; only called for a counter that was at its cap recently."""
        seen = self._notifier.pick_ups(counter)
        room = max(0, self._max_unacked - await self._count(counter))
        if not room:
            self._notifier.hold(counter, seen)
        elif room * 2 > self._max_unacked:
            self._capped.pop(counter, None)
        return room

    async def has_room(self, service: str, uncounted: int = 0) -> bool:
        """Return True if one more directive may be un-ACKed, besides `uncounted` ones that the ledger lacks so far."""
        return await self._count(unacked_counter(service)) + uncounted < self._max_unacked

    async def _count(self, counter: str) -> int:
        return (await self._jobs.counters(counter)).get(counter, 0)


def counter_of(row: OutboxRow, *, is_bound: bool) -> str:
    """Return the counter towards which a row counts if a pull takes it; `is_bound` pulls have tenants of their own."""
    return unacked_counter(row.service, row.tenant_id if is_bound else None)
