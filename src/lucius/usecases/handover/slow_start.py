"""Slow start: after an outage, all work that waited is ready at once and must not overload a recovering system."""

from collections.abc import Callable

INITIAL_WINDOW = 8
STEP_SECONDS = 0.2


class Ramp:
    """Limits operations per turn: few after an outage, then twice as many after each success, up to `full`."""

    def __init__(self, full: int, jitter: Callable[[], float], initial: int = INITIAL_WINDOW) -> None:
        self._full = full
        self._initial = min(initial, full)
        self._jitter = jitter
        self.window = full

    @property
    def is_full(self) -> bool:
        return self.window >= self._full

    def outage(self) -> None:
        self.window = self._initial

    def note_success(self) -> None:
        self.window = min(self.window * 2, self._full)

    def pause(self) -> float:
        """Return the seconds until the next turn, with jitter so that replicas with the same outage drift apart."""
        return 0.0 if self.is_full else STEP_SECONDS * (0.5 + self._jitter())


class PacedRamp:
    """A ramp for callers with a timing of their own: each window lasts for one pause, however often they call."""

    def __init__(self, full: int, jitter: Callable[[], float], steady: Callable[[], float]) -> None:
        self._ramp = Ramp(full, jitter)
        self._steady = steady
        self._left = full
        self._ends_at: float | None = None
        self._has_succeeded = False

    @property
    def is_full(self) -> bool:
        return self._ramp.is_full

    def outage(self) -> None:
        """Start over with the smallest window, which begins with the next caller."""
        self._ramp.outage()
        self._left, self._ends_at = self._ramp.window, None

    def count_started(self, count: int) -> None:
        """Count operations that start now; a negative count returns those that did not start."""
        self._left = min(self._left - count, self._ramp.window)

    def note_success(self) -> None:
        self._has_succeeded = True

    def room(self) -> int:
        """Return how many operations may start now."""
        if not self._ramp.is_full and self._ends_in() <= 0:
            if self._has_succeeded:
                self._ramp.note_success()
            self._begin()
        return self._ramp.window if self._ramp.is_full else max(0, self._left)

    def wait(self) -> float:
        """Return the seconds until there is room; 0 if there is room."""
        return 0.0 if self.room() else max(0.001, self._ends_in())

    def _ends_in(self) -> float:
        if self._ends_at is None:
            self._begin()
        assert self._ends_at is not None
        return self._ends_at - self._steady()

    def _begin(self) -> None:
        self._left, self._has_succeeded = self._ramp.window, False
        self._ends_at = self._steady() + self._ramp.pause()
