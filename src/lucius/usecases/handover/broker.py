"""Broker between decisions and waiting pulls: reserves capacity, and delivers what a committed decision handed over.

It knows nothing of how decisions are made or committed. Whoever decides reserves first, passes the reserved capacity
to the core as a value, commits, and then calls `deliver` or `abandon`.
"""

import asyncio
from collections.abc import Callable, Collection

from lucius.core.decide.changeset import MAX_DECISION_ROWS
from lucius.core.model.counters import unacked_counter, unacked_service
from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Cap, Capacity
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.ledger import Ledger
from lucius.usecases.handover.slow_start import PacedRamp
from lucius.usecases.handover.uncertain_commits import UncertainCommits
from lucius.usecases.handover.waiting_pulls import Reservation, WaitingPulls

MAX_AT_ONCE = 1_024


class HandoverBroker:
    """Holds the waiting pulls, the pace of hand-overs after an outage, and the counters that are at their cap."""

    def __init__(self, ledger: Ledger, pulls: WaitingPulls, *, max_unacked: int, jitter: Callable[[], float]) -> None:
        self.pulls = pulls
        self.pace = PacedRamp(MAX_AT_ONCE, jitter, lambda: asyncio.get_running_loop().time())
        self.max_unacked = max_unacked
        self._uncertain = UncertainCommits(ledger, pulls, jitter)
        self._capped: dict[str, asyncio.Lock] = {}

    @property
    def uncertain_count(self) -> int:
        """Number of uncertain commits that are being looked up."""
        return len(self._uncertain)

    def reserve(self, protocol: ProtocolDefinition, tenant_id: str) -> Reservation:
        """Reserve capacity of the pulls that wait for directives of the protocol's steps.

        Reserves nothing of a service that is at its cap, and nothing at all during slow start: rows then go through the
        outbox, where all tenants take turns.
        """
        plan = protocol.plan
        services: Collection[str] = plan.services if self.pace.is_full else ()
        if self._capped:
            services = [name for name in services if not self.is_capped(unacked_counter(name))]
        return self.pulls.reserve(services, tenant_id, MAX_DECISION_ROWS if plan.has_containers else 1)

    def capacity(self, reservation: Reservation) -> dict[str, Capacity]:
        """Return the reservation as a value for the core."""
        counts = reservation.counts()
        return {service: Capacity(rows, self.caps(unacked_counter(service))) for service, rows in counts.items()}

    def abandon(self, reservation: Reservation, decision: Decision, *, is_uncertain: bool) -> None:
        """Release the reservation of a decision whose commit failed.

        If it `is_uncertain` whether the commit happened, the ledger is asked, and delivered is what it handed over.
        """
        reservation.release()
        if is_uncertain:
            self._uncertain.note(decision)

    def caps(self, counter: str) -> tuple[Cap, ...]:
        return (Cap(counter, self.max_unacked),)

    def is_capped(self, counter: str) -> bool:
        """Return True if this counter of un-ACKed directives was at its cap recently."""
        return counter in self._capped

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

    def note_cap(self, counter: str) -> None:
        """Note that the counter reached its cap."""
        self._capped.setdefault(counter, asyncio.Lock())

    def lift_cap(self, counter: str) -> None:
        """Note that the counter is well below its cap again."""
        self._capped.pop(counter, None)

    def cap_lock(self, counter: str) -> asyncio.Lock:
        """Return the lock of a capped counter, under which one pull at a time tries for the room that is left."""
        return self._capped[counter]
