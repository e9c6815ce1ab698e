"""Clock that follows the database's time: replicas share deadlines, so they must agree on the time.

Samples are taken with each poll; between them the process's monotonic clock is used.
"""

import time
from collections.abc import Callable

import structlog

from lucius.core.model.records import Instant

log = structlog.get_logger(__name__)

MAX_SAMPLE_SECONDS = 0.25
"""A sample with a longer round trip is too imprecise and ignored."""
MAX_ABSORBED_STEP_SECONDS = 5.0
"""If the database's clock is set back by more than this, the clock jumps back instead of standing still."""


class DatabaseClock:
    """Implements Clock. Stands still rather than run backwards, except for steps over MAX_ABSORBED_STEP_SECONDS."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._offset: float | None = None
        self._last: Instant = 0

    def steady(self) -> float:
        """Return the process's monotonic time in seconds."""
        return self._steady()

    def add_sample(self, at: Instant, asked_at: float, answered_at: float) -> None:
        """Use the database's time `at`, read between these two values of `steady`."""
        offset = at / 1000 - (asked_at + answered_at) / 2
        if self._offset is None:
            self._offset = offset
        elif answered_at - asked_at <= MAX_SAMPLE_SECONDS:
            if offset < self._offset - MAX_ABSORBED_STEP_SECONDS:
                log.warning("the database's clock was set back, following it", seconds=self._offset - offset)
                self._last = 0
            self._offset = offset

    def now(self) -> Instant:
        assert self._offset is not None, "no sample of the database's time yet"
        self._last = max(self._last, round((self._steady() + self._offset) * 1000))
        return self._last
