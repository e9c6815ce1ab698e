"""The database's time: replicas share their deadlines, so they must agree on what time it is.

Read from the database now and then, and counted on from there by this process's own steady clock.
"""

import time
from collections.abc import Callable

import structlog

from lucius.core.model import Instant

log = structlog.get_logger(__name__)

SECONDS_TRUSTED = 0.25
SECONDS_WAITED_OUT = 5.0
"""A sample that took longer than this to come says too little about when it was taken."""


class DatabaseClock:
    """Implements Clock. Does not run backwards: what it gains on the database it waits out, unless that is long."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._offset: float | None = None
        self._last: Instant = 0

    def steady(self) -> float:
        return self._steady()

    def heard(self, at: Instant, asked: float, answered: float) -> None:
        """The database said `at`, somewhen between these two readings of `steady`."""
        offset = at / 1000 - (asked + answered) / 2
        if self._offset is None:
            self._offset = offset
        elif answered - asked <= SECONDS_TRUSTED:
            if offset < self._offset - SECONDS_WAITED_OUT:
                log.warning("the database's clock was set back, following it", seconds=self._offset - offset)
                self._last = 0
            self._offset = offset

    def now(self) -> Instant:
        assert self._offset is not None, "the database was never asked"
        self._last = max(self._last, round((self._steady() + self._offset) * 1000))
        return self._last
