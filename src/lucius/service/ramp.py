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


class Pace:
    """A ramp for those who come by themselves: each of its windows lasts for a pause, however often they come."""

    def __init__(self, full: int, jitter: Callable[[], float], steady: Callable[[], float]) -> None:
        self._ramp = Ramp(full, jitter)
        self._steady = steady
        self._left = full
        self._ends_at: float | None = None
        self._goes_well = False

    @property
    def is_full(self) -> bool:
        return self._ramp.is_full

    def outage(self) -> None:
        """The first who comes begins it."""
        self._ramp.outage()
        self._left, self._ends_at = self._ramp.window, None

    def began(self, count: int) -> None:
        """So many go now; a negative number of them did not after all."""
        self._left = min(self._left - count, self._ramp.window)

    def went_well(self) -> None:
        self._goes_well = True

    def room(self) -> int:
        """How many may go now."""
        if not self._ramp.is_full and self._ends_in() <= 0:
            if self._goes_well:
                self._ramp.went_well()
            self._begin()
        return self._ramp.window if self._ramp.is_full else max(0, self._left)

    def wait(self) -> float:
        """Seconds until there is room, if there is none."""
        return 0.0 if self.room() else max(0.001, self._ends_in())

    def _ends_in(self) -> float:
        if self._ends_at is None:
            self._begin()
        assert self._ends_at is not None
        return self._ends_at - self._steady()

    def _begin(self) -> None:
        self._left, self._goes_well = self._ramp.window, False
        self._ends_at = self._steady() + self._ramp.pause()
