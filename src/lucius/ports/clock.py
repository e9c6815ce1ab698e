"""Clock port, so that the current time is an argument."""

import time
from typing import Protocol

from lucius.core.model.records import Instant


class Clock(Protocol):
    def now(self) -> Instant: ...


class SystemClock:
    """Wall time that never runs backwards within a process: a clock set back must not reorder our records."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> Instant:
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last
