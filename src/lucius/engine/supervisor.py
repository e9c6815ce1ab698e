"""Runs loops that must not end: each failure is logged, counted and followed by a backoff."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from lucius.backoff import Backoff
from lucius.ports.errors import BusDown, LedgerDown

log = structlog.get_logger(__name__)

MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 10.0
FAILING_SECONDS = 5.0


class LoopHealth:
    """Whether a loop makes progress, from the outcomes of its iterations."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._went_well_at = steady()
        self._failing = False

    def went_well(self) -> None:
        self._went_well_at, self._failing = self._steady(), False

    def failed(self) -> None:
        self._failing = True

    def trouble(self, quiet_seconds: float) -> str:
        """Return why the loop makes no progress; "" if it does. A single failure is no reason: the loop retries."""
        seconds = self._steady() - self._went_well_at
        if self._failing and seconds > FAILING_SECONDS:
            return f"every iteration failed for {seconds:.0f} s"
        return f"stuck for {seconds:.0f} s" if seconds > quiet_seconds else ""


async def supervised(
    name: str,
    run_once: Callable[[], Awaitable[None]],
    on_failure: Callable[[str], None],
    health: LoopHealth | None = None,
) -> None:
    """Run `run_once` repeatedly until cancelled. After a failure, call `on_failure`, back off and go on."""
    health = health or LoopHealth()
    backoff = Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
    while True:
        try:
            await run_once()
            health.went_well()
            backoff.went_well()
        except Exception as failure:
            health.failed()
            on_failure(name)
            pause = backoff.pause()
            if isinstance(failure, (LedgerDown, BusDown)):  # a known outage: one line, no traceback
                log.warning("outage, will retry", loop=name, retry_in_seconds=pause, reason=str(failure))
            else:
                log.exception("loop failed, will retry", loop=name, retry_in_seconds=pause)
            await asyncio.sleep(pause)
