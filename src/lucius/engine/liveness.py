"""Engine liveness where only this process can run an engine."""

from collections.abc import Callable

from lucius.core.model.records import Instant, Millis
from lucius.ports.peers import CallbackAvailability


class SingleProcessLiveness:
    """Implements EngineLiveness for one process: no engine ran before it started."""

    def __init__(self, started_at: Instant) -> None:
        self._last_tick = self._resumed_at = started_at

    async def record_tick(self, now: Instant, gap_ms: Millis) -> Instant:
        if now - self._last_tick > gap_ms:
            self._resumed_at = now
        self._last_tick = now
        return self._resumed_at

    async def advertise(self, serves: Callable[[], bool]) -> None:
        """Do nothing: the process that checks deadlines is also the one that takes callbacks."""

    def callback_availability(self, now: Instant) -> CallbackAvailability:
        return CallbackAvailability()

    async def working_since(self, now: Instant, gap_ms: Millis) -> Instant:
        return now if now - self._last_tick > gap_ms else self._resumed_at

    def poll_backoff(self) -> float:
        return 1.0

    async def last_tick(self) -> Instant | None:
        return self._last_tick
