"""Whether an engine was at work all along, where this process is the only one that could be."""

from collections.abc import Callable

from lucius.core.model import Instant, Millis
from lucius.ports.peers import Door


class LonePresence:
    """Implements Presence. Begins with the process: nobody was there before it."""

    def __init__(self, started_at: Instant) -> None:
        self._last_tick = self._resumed_at = started_at

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        if now - self._last_tick > gap_ms:
            self._resumed_at = now
        self._last_tick = now
        return self._resumed_at

    async def serve(self, serves: Callable[[], bool]) -> None:
        """Whoever minds the deadlines is the one who is spoken to."""

    def door(self, now: Instant) -> Door:
        return Door()

    async def at_work(self, now: Instant, gap_ms: Millis) -> Instant:
        return now if now - self._last_tick > gap_ms else self._resumed_at

    def stretch(self) -> float:
        return 1.0

    async def last_tick(self) -> Instant | None:
        return self._last_tick
