"""Limits how often the Temporal engine repeats a request about one job or message."""

from lucius.core.model.records import Instant, Millis

MAX_PAUSE_MS: Millis = 300_000
MAX_REMEMBERED_NAMES = 100_000


class RepeatLimiter:
    """Limits how often something is repeated: the pause doubles each time."""

    def __init__(self, first_ms: Millis = 5_000) -> None:
        self._first_ms = first_ms
        self._next: dict[str, tuple[Instant, Millis]] = {}

    def is_due(self, name: str, now: Instant, *, mark: bool = True) -> bool:
        """Return whether the pause is over; if so, begin the next one, unless `mark` is False."""
        at, pause = self._next.get(name, (0, self._first_ms // 2))
        due = now >= at
        if not mark:
            return due
        self._next.pop(name, None)
        self._next[name] = (now + 2 * pause, min(2 * pause, MAX_PAUSE_MS)) if due else (at, pause)
        while len(self._next) > MAX_REMEMBERED_NAMES:
            del self._next[next(iter(self._next))]
        return due
