"""Loops that must not die: each failure is logged, counted and backed off from."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import structlog

from lucius.ports.errors import BusDown, LedgerDown

log = structlog.get_logger(__name__)

FIRST_BACKOFF = 0.1
MAX_BACKOFF = 10.0
FAILING_SECONDS = 5.0


class Turns:
    """What became of a loop's turns."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._went_well_at = steady()
        self._failing = False

    def went_well(self) -> None:
        self._went_well_at, self._failing = self._steady(), False

    def failed(self) -> None:
        self._failing = True

    def trouble(self, quiet_seconds: float) -> str:
        """What is wrong, if something is. One failure is not: a loop goes on after it."""
        seconds = self._steady() - self._went_well_at
        if self._failing and seconds > FAILING_SECONDS:
            return f"every turn failed for {seconds:.0f} s"
        return f"stuck for {seconds:.0f} s" if seconds > quiet_seconds else ""


async def supervised(
    name: str, turn: Callable[[], Awaitable[None]], on_failure: Callable[[str], None], turns: Turns | None = None
) -> None:
    """Run `turn` for ever. Only cancellation ends it."""
    turns = turns or Turns()
    backoff = FIRST_BACKOFF
    while True:
        try:
            await turn()
            turns.went_well()
            backoff = FIRST_BACKOFF
        except Exception as failure:
            turns.failed()
            on_failure(name)
            if isinstance(failure, (LedgerDown, BusDown)):  # known trouble of others: a line, not a page
                log.warning("out of reach, will go on", loop=name, backoff_seconds=backoff, reason=str(failure))
            else:
                log.exception("loop failed, will go on", loop=name, backoff_seconds=backoff)
            await asyncio.sleep(random.uniform(0, backoff))
            backoff = min(backoff * 2, MAX_BACKOFF)
