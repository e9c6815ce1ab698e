"""Directives of which nobody knows whether they were handed over: the commit that did so may be durable, or not.

A connection that breaks after COMMIT was sent leaves that open. The ledger is asked, as soon as it can be. What it
shows as handed over, and nobody was given, goes to whoever waits or comes next.
"""

import asyncio
from collections.abc import Callable

import structlog

from lucius.core.decision import Decision
from lucius.core.model import StepStatus
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import Ledger
from lucius.service.backoff import Backoff
from lucius.service.pulls import Given, Pulls

log = structlog.get_logger(__name__)

MOST_DOUBTS = 1_000
MOST_ASKS = 100  # which takes some minutes; by then what is not acknowledged has run out of time
MOST_LOOKS = 8  # within some seconds, at a ledger that answers and does not show it
FIRST_SECONDS, MOST_SECONDS = 0.05, 5.0


class Doubts:
    def __init__(self, ledger: Ledger, pulls: Pulls, jitter: Callable[[], float]) -> None:
        self._ledger = ledger
        self._pulls = pulls
        self._jitter = jitter
        self._asking: set[asyncio.Task[None]] = set()

    def note(self, decision: Decision) -> None:
        """What it gives may have been handed over."""
        if len(self._asking) >= MOST_DOUBTS:
            log.error("too much is in doubt: a directive may be with nobody", job_id=decision.job.job_id)
            return
        task = asyncio.get_running_loop().create_task(self._find_out(decision))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _find_out(self, decision: Decision) -> None:
        backoff, looks = Backoff(FIRST_SECONDS, MOST_SECONDS, self._jitter), 0
        for _ in range(MOST_ASKS):
            try:
                found = await self._handed_over(decision)
                looks += 1
            except LedgerError:
                found = None
            if found is not None or looks >= MOST_LOOKS:
                for given in found or ():
                    self._pulls.give(given)
                return
            await asyncio.sleep(backoff.pause())
        log.error("nobody could say whether a directive was handed over", job_id=decision.job.job_id)

    async def _handed_over(self, decision: Decision) -> list[Given] | None:
        """Leases are made once: one that is there was made durable by this very decision. None if it may still come: a
        server goes on with what it was sent when the connection is gone."""
        view = await self._ledger.load(decision.job.job_id, [row.step_id for row in decision.given], fresh=True)
        if view is None or view.job.version < decision.job.version:
            return None
        waiting = {step.attempt.lease_id for step in view.steps.values() if step.status is StepStatus.INITIATED}
        return [Given(row, decision) for row in decision.given if row.lease_id in waiting]
