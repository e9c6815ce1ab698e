"""Tells the bus what we are done with, so that nobody else gets it: in batches, and until the bus has heard it."""

import asyncio
from collections import deque

import structlog

from lucius.contract import Directive
from lucius.ports.bus import Consumer
from lucius.ports.errors import BusDown
from lucius.worker.timing import Timing

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MOST_AT_ONCE = 500
PAUSE = 5.0
LAST_SECONDS = 3.0


class Settler:
    """What it can't tell before the end comes again to somebody, who finds that it was done."""

    def __init__(self, consumer: Consumer, timing: Timing) -> None:
        self._consumer = consumer
        self._timing = timing
        self._waiting: deque[Directive] = deque()
        self._telling: asyncio.Task[None] | None = None

    def done_with(self, directive: Directive) -> None:
        self._waiting.append(directive)
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())

    async def close(self) -> None:
        telling = self._telling
        if telling is None:
            return
        await asyncio.wait({telling}, timeout=LAST_SECONDS)
        if not telling.done():
            telling.cancel()
            log.warning("the bus was not told of all that is done", directives=len(self._waiting))

    async def _tell(self) -> None:
        failures = 0
        try:
            while self._waiting:
                some = [self._waiting[i] for i in range(min(len(self._waiting), MOST_AT_ONCE))]
                try:
                    await self._consumer.settle(some)
                except BusDown as down:
                    failures += 1
                    pause = self._timing.backoff(failures, cap=PAUSE)
                    log.warning("can't tell the bus what is done", reason=str(down), retry_in=round(pause, 2))
                    await self._timing.sleep(pause)
                    continue
                failures = 0
                for _ in some:
                    self._waiting.popleft()
        finally:
            self._telling = None
