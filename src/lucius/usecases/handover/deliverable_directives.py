"""Delivers directives whose hand-over is already committed, and that must be written and returned to a pull.

A directive that can't be delivered goes to a waiting or the next pull, until its ACK deadline.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from lucius.contract import Directive
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import StepStatus
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerAway
from lucius.ports.ledger import Ledger
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.waiting_pulls import DeliverableDirective, WaitingPulls

log = structlog.get_logger(__name__)


class DeliverableDirectives:
    """Writes handed-over directives for pulls, and passes on what one pull can't receive to another."""

    def __init__(
        self,
        ledger: Ledger,
        pulls: WaitingPulls,
        clock: Clock,
        loader: DirectiveLoader,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._ledger = ledger
        self._pulls = pulls
        self._clock = clock
        self._loader = loader
        self._on_failure = on_failure

    async def directives(
        self, given: Sequence[DeliverableDirective], gone: asyncio.Future[Any] | None = None
    ) -> list[Directive]:
        """Write and return the directives; return none if `gone` is done by then.

        A directive that can't be written does not hold up others; if the ledger is away, it goes to another pull.
        """
        passed_on = list(given)
        try:
            writing = (self._loader.load(one.row, one.decision) for one in given)
            written = await asyncio.gather(*writing, return_exceptions=True)
            if gone is not None and gone.done():
                return []
            away = [isinstance(outcome, LedgerAway) for outcome in written]
            passed_on = [one for one, is_away in zip(given, away, strict=True) if is_away]
        finally:
            for one in passed_on:
                self._pulls.give(one)
        for one, outcome in zip(given, written, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, LedgerAway):
                self._on_failure("pull")
                log.error("could not write a directive", job_id=one.row.job_id, exc_info=outcome)
        return [outcome for outcome in written if isinstance(outcome, Directive)]

    async def kept(self, service: str, limit: int, lanes: frozenset[int] | None) -> list[Directive]:
        """Return kept directives that still await their ACK; others have timed out and are retried or under review."""
        kept = self._pulls.take_kept(service, limit, lanes)
        if not kept:
            return []
        wanted: list[DeliverableDirective] = []
        left = kept
        try:
            for place, one in enumerate(kept, start=1):
                if await self._awaits_ack(one.row):
                    wanted.append(one)
                left = kept[place:]
        except BaseException:
            for one in (*wanted, *left):
                self._pulls.keep(one)
            raise
        return await self.directives(wanted)

    async def _awaits_ack(self, row: OutboxRow) -> bool:
        view = await self._ledger.load(row.job_id, (row.step_id,), fresh=True)
        step = view.steps.get(row.step_id) if view is not None else None
        if step is None or step.status is not StepStatus.INITIATED or step.attempt.lease_id != row.lease_id:
            return False
        return step.attempt.ack_deadline is not None and self._clock.now() < step.attempt.ack_deadline
