"""Slow start. After an outage everything that waited is ready at once, and must not fall on one that just came back."""

from collections.abc import Callable

FIRST = 8
STEP_SECONDS = 0.2


class Ramp:
    """How many may go in one turn: few after an outage, twice as many after each turn that went well, up to all."""

    def __init__(self, full: int, jitter: Callable[[], float], first: int = FIRST) -> None:
        self._full = full
        self._first = min(first, full)
        self._jitter = jitter
        self.window = full

    @property
    def is_full(self) -> bool:
        return self.window >= self._full

    def outage(self) -> None:
        self.window = self._first

    def went_well(self) -> None:
        self.window = min(self.window * 2, self._full)

    def pause(self) -> float:
        """Seconds until the next turn. Replicas that saw the same outage draw different ones, and drift apart."""
        return 0.0 if self.is_full else STEP_SECONDS * (0.5 + self._jitter())
