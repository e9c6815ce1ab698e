"""Settles finished directives on the bus, so that they are not delivered again: in batches, with retries."""

import asyncio
from collections import deque

import structlog

from lucius.contract import Directive
from lucius.ports.bus import Consumer
from lucius.ports.errors import BusDown
from lucius.worker.timing import Timing

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_BATCH_DIRECTIVES = 500
MAX_RETRY_PAUSE_SECONDS = 5.0
CLOSE_TIMEOUT_SECONDS = 3.0


class DirectiveSettler:
    """Queue of directives to settle.

    Directives that are not settled when `close` times out are delivered again; the consumer then finds them finished.
    """

    def __init__(self, consumer: Consumer, timing: Timing) -> None:
        self._consumer = consumer
        self._timing = timing
        self._waiting: deque[Directive] = deque()
        self._settling: asyncio.Task[None] | None = None

    def settle(self, directive: Directive) -> None:
        self._waiting.append(directive)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_batches())

    async def close(self) -> None:
        settling = self._settling
        if settling is None:
            return
        await asyncio.wait({settling}, timeout=CLOSE_TIMEOUT_SECONDS)
        if not settling.done():
            settling.cancel()
            log.warning("finished directives not settled on the bus", directives=len(self._waiting))

    async def _settle_batches(self) -> None:
        failures = 0
        try:
            while self._waiting:
                some = [self._waiting[i] for i in range(min(len(self._waiting), MAX_BATCH_DIRECTIVES))]
                try:
                    await self._consumer.settle(some)
                except BusDown as down:
                    failures += 1
                    pause = self._timing.backoff(failures, cap=MAX_RETRY_PAUSE_SECONDS)
                    log.warning("can't settle finished directives", reason=str(down), retry_in=round(pause, 2))
                    await self._timing.sleep(pause)
                    continue
                failures = 0
                for _ in some:
                    self._waiting.popleft()
        finally:
            self._settling = None
