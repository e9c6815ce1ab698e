"""Resolves hand-overs whose commit has an unknown outcome.

A connection that breaks after COMMIT was sent leaves it open whether the decision is durable. The ledger is queried as
soon as possible; directives that it shows as handed over, and that no pull received, go to a waiting or the next pull.
"""

import asyncio
from collections.abc import Callable

import structlog

from lucius.backoff import Backoff
from lucius.core.model.decision import Decision
from lucius.core.model.statuses import StepStatus
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import Ledger
from lucius.usecases.handover.waiting_pulls import DeliverableDirective, WaitingPulls

log = structlog.get_logger(__name__)

MAX_UNCERTAIN_COMMITS = 1_000
MAX_QUERIES = 100  # takes some minutes; by then a directive without an ACK has timed out
MAX_ANSWERED_QUERIES = 8  # within some seconds, while the ledger answers but does not show the commit
FIRST_SECONDS, MAX_SECONDS = 0.05, 5.0


class UncertainCommits:
    """Looks up uncertain commits in the ledger, and delivers the directives that they handed over."""

    def __init__(self, ledger: Ledger, pulls: WaitingPulls, jitter: Callable[[], float]) -> None:
        self._ledger = ledger
        self._pulls = pulls
        self._jitter = jitter
        self._lookups: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of commits that are being looked up."""
        return len(self._lookups)

    def note(self, decision: Decision) -> None:
        """Find out in the background whether the decision's directives were handed over."""
        if len(self._lookups) >= MAX_UNCERTAIN_COMMITS:
            log.error("too many uncertain commits: a directive may reach no service", job_id=decision.job.job_id)
            return
        task = asyncio.get_running_loop().create_task(self._find_out(decision))
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _find_out(self, decision: Decision) -> None:
        backoff, answered = Backoff(FIRST_SECONDS, MAX_SECONDS, self._jitter), 0
        for _ in range(MAX_QUERIES):
            try:
                found = await self._handed_over(decision)
                answered += 1
            except LedgerError:
                found = None
            if found is not None or answered >= MAX_ANSWERED_QUERIES:
                for given in found or ():
                    self._pulls.give(given)
                return
            await asyncio.sleep(backoff.pause())
        log.error("could not determine whether a directive was handed over", job_id=decision.job.job_id)

    async def _handed_over(self, decision: Decision) -> list[DeliverableDirective] | None:
        """Return the directives that were handed over; None if the commit may still come.

        Lease ids are unique, so one that is in the ledger was committed by this decision. A server may still execute
        what it received after the connection has broken.
        """
        view = await self._ledger.load(decision.job.job_id, [row.step_id for row in decision.handed_over], fresh=True)
        if view is None or view.job.version < decision.job.version:
            return None
        waiting = {step.attempt.lease_id for step in view.steps.values() if step.status is StepStatus.INITIATED}
        return [DeliverableDirective(row, decision) for row in decision.handed_over if row.lease_id in waiting]
