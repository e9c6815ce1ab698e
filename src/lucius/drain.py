"""The way out: from being asked to stop until everything has ended, within so many seconds, or at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

DRAIN_SECONDS = 10.0


class Drain:
    """One for each process. Asked a second time, nobody waits for anything any more."""

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
        """From now on there are so many seconds left. It starts once."""
        if self._until is None:
            self._until = self._steady() + seconds

    def left(self) -> float:
        if self.at_once.is_set():
            return 0.0
        return DRAIN_SECONDS if self._until is None else max(0.0, self._until - self._steady())

    async def pause(self, seconds: float) -> None:
        """Let time pass, unless there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.at_once.wait()

    async def unless_at_once(self, work: Awaitable[Any]) -> None:
        """Wait for it, and leave it as it is when told to hurry."""
        working, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self.at_once.wait())
        try:
            await asyncio.wait({working, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
