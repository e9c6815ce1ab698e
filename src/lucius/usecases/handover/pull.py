"""Pulls of services: each returns directives whose hand-over is durable, or waits for the first."""

import asyncio
from collections.abc import Callable
from typing import Any

from lucius.contract import Directive
from lucius.usecases.handover.deliverable_directives import DeliverableDirectives
from lucius.usecases.handover.outbox_handover import OutboxHandover
from lucius.usecases.handover.slow_start import PacedRamp
from lucius.usecases.handover.waiting_pulls import Pull
from lucius.usecases.notifier import Notifier


class DirectivePulls:
    """Answers pulls: with kept directives, with PENDING rows, or with what a commit gives to a waiting pull."""

    def __init__(
        self, handover: OutboxHandover, deliverable: DeliverableDirectives, notifier: Notifier, pace: PacedRamp
    ) -> None:
        self._handover = handover
        self._deliverable = deliverable
        self._notifier = notifier
        self._pace = pace

    async def pull(
        self,
        service: str,
        limit: int,
        wait_seconds: float,
        lanes: frozenset[int] | None = None,
        gone: Callable[[], asyncio.Future[Any]] | None = None,
        tenants: frozenset[str] | None = None,
    ) -> list[Directive]:
        """Hand over directives for a service durably and return them; wait up to `wait_seconds` for the first.

        With `tenants`, only those of these tenants.

        `gone`, called before the wait begins, makes a future that is done once the client disconnects: a hand-over to
        a closed connection would cost an attempt. What it raises ends the pull.
        """
        seen = self._notifier.pulls.arrivals(service)
        directives = await self._hand_over_ready(service, limit, lanes, tenants)
        if directives or wait_seconds <= 0:
            return directives
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        hung_up = gone() if gone else None
        try:
            while not directives and (remaining := deadline - loop.time()) > 0:
                paced = self._pace.wait()
                waiting = Pull(lanes, limit, hung_up, tenants)
                woken = await self._notifier.pulls.wait(service, waiting, min(remaining, paced or remaining), seen)
                if not woken and (not paced or self._notifier.closed or (hung_up is not None and hung_up.done())):
                    break
                seen = self._notifier.pulls.arrivals(service)
                if waiting.given:
                    directives = await self._deliverable.directives(waiting.given, hung_up)
                else:
                    directives = await self._hand_over_ready(service, limit, lanes, tenants)
        finally:
            if hung_up is not None:
                hung_up.cancel()
        return directives

    async def _hand_over_ready(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> list[Directive]:
        if tenants is None and (directives := await self._deliverable.kept(service, limit, lanes)):
            return directives
        return await self._handover.hand_over(service, limit, lanes, tenants)
