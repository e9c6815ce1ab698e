"""Broker between decisions and waiting pulls: reserves capacity, and settles reservations whose commit failed.

It knows nothing of how decisions are made or committed. The engine reserves first, passes the reserved capacity to the
core as a value, commits, and then calls `Reservation.deliver`, or `HandoverBroker.abandon` after a failed commit.
"""

import asyncio
from collections.abc import Callable

from lucius.core.decide.changeset import MAX_DECISION_ROWS
from lucius.core.model.counters import unacked_counter
from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Capacity
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.ledger import Ledger
from lucius.usecases.handover.slow_start import PacedRamp
from lucius.usecases.handover.unacked_caps import UnackedCaps
from lucius.usecases.handover.uncertain_commits import UncertainCommits
from lucius.usecases.handover.waiting_pulls import Reservation, WaitingPulls

MAX_CONCURRENT_HANDOVERS = 1_024


class HandoverBroker:
    """Reserves capacity of the waiting pulls, and holds the pace of hand-overs after an outage."""

    def __init__(self, ledger: Ledger, pulls: WaitingPulls, caps: UnackedCaps, jitter: Callable[[], float]) -> None:
        self.pulls = pulls
        self.pace = PacedRamp(MAX_CONCURRENT_HANDOVERS, jitter, lambda: asyncio.get_running_loop().time())
        self._caps = caps
        self._uncertain = UncertainCommits(ledger, pulls, jitter)

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
        services = self._caps.uncapped_services(plan.services) if self.pace.is_full else ()
        return self.pulls.reserve(services, tenant_id, MAX_DECISION_ROWS if plan.has_containers else 1)

    def capacity(self, reservation: Reservation) -> dict[str, Capacity]:
        """Return the reservation as a value for the core."""
        limits, counts = self._caps.limits, reservation.counts()
        return {service: Capacity(rows, limits(unacked_counter(service))) for service, rows in counts.items()}

    def abandon(self, reservation: Reservation, decision: Decision, *, is_uncertain: bool) -> None:
        """Release the reservation of a decision whose commit failed.

        If it `is_uncertain` whether the commit happened, the ledger is asked, and delivered is what it handed over.
        """
        reservation.release()
        if is_uncertain:
            self._uncertain.note(decision)
