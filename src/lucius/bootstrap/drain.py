"""Shutdown of a process: a stop request, a deadline for finishing work, and a second request that ends all waiting."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

DRAIN_SECONDS = 10.0


class Drain:
    """Shutdown state of one process. A second stop request ends all waiting at once."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._until: float | None = None
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()

    def start_clock(self, seconds: float) -> None:
        """Start the countdown of `seconds`; later calls have no effect."""
        if self._until is None:
            self._until = self._steady() + seconds

    def left(self) -> float:
        """Return the seconds left: DRAIN_SECONDS before the countdown starts, 0 after a second stop request."""
        if self.at_once.is_set():
            return 0.0
        return DRAIN_SECONDS if self._until is None else max(0.0, self._until - self._steady())

    async def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a second stop request."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.at_once.wait()

    async def unless_at_once(self, work: Awaitable[Any]) -> None:
        """Await `work` and raise its error, or return on a second stop request without cancelling it."""
        working, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self.at_once.wait())
        try:
            await asyncio.wait({working, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
        if working.done():
            working.result()
