"""Directives that are handed over already, and have to be written and answered.

What can't be is not lost: it is for whoever waits or comes next, until its time for an ACK is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from lucius.contract import Directive
from lucius.core.decision import Decision
from lucius.core.model import OutboxRow, StepStatus
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerAway
from lucius.ports.ledger import Ledger
from lucius.service.pulls import Given, Pulls

log = structlog.get_logger(__name__)

Write = Callable[[OutboxRow, Decision], Awaitable[Directive | None]]


class GivenDirectives:
    def __init__(
        self, ledger: Ledger, pulls: Pulls, clock: Clock, write: Write, on_failure: Callable[[str], None]
    ) -> None:
        self._ledger = ledger
        self._pulls = pulls
        self._clock = clock
        self._write = write
        self._on_failure = on_failure

    async def directives(self, given: Sequence[Given], gone: asyncio.Future[Any] | None = None) -> list[Directive]:
        """None, if `gone` is done by then. One that can't be written holds up no other."""
        passed_on = list(given)
        try:
            writing = (self._write(one.row, one.decision) for one in given)
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
                log.error("a directive can't be written", job_id=one.row.job_id, exc_info=outcome)
        return [outcome for outcome in written if isinstance(outcome, Directive)]

    async def kept(self, service: str, limit: int, lanes: frozenset[int] | None) -> list[Directive]:
        """What has reached nobody so far. Not what has run out of time since: that is tried again, or for a person."""
        kept = self._pulls.take_kept(service, limit, lanes)
        if not kept:
            return []
        wanted: list[Given] = []
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
