"""Waiting after a failure: longer each time, and not for as long as others who saw the same one."""

from collections.abc import Callable, Collection

from msgspec import Struct

from lucius.core.model import Instant
from lucius.ports.clock import Clock

FIRST_SECONDS, MOST_SECONDS = 30.0, 600.0
MOST_NAMES = 5_000
_DOUBLINGS = 20


class Backoff:
    """Pauses that double up to a maximum, until something goes well."""

    def __init__(self, first: float, most: float, jitter: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._failures = 0

    def went_well(self) -> None:
        self._failures = 0

    def pause(self) -> float:
        """Seconds to wait after one more failure."""
        self._failures = min(self._failures + 1, _DOUBLINGS)
        return _pause(self._failures, self._first, self._most, self._jitter())


class _Late(Struct):
    until: Instant
    failures: int


class PutOff:
    """What could not be dealt with, by name: each waits for longer after every failure, and holds up nobody else.

    Of more than `most_names` the first are forgotten, which only means that they are tried sooner.
    """

    def __init__(
        self,
        clock: Clock,
        jitter: Callable[[], float],
        *,
        first: float = FIRST_SECONDS,
        most: float = MOST_SECONDS,
        most_names: int = MOST_NAMES,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._first = first
        self._most = most
        self._most_names = most_names
        self._late: dict[str, _Late] = {}

    def __len__(self) -> int:
        return len(self._late)

    def waits(self, name: str) -> bool:
        return name in self._late and self._late[name].until > self._clock.now()

    def failed(self, name: str) -> float:
        """Put off, for so many seconds."""
        late = self._late.pop(name, None)
        failures = min(late.failures + 1, _DOUBLINGS) if late else 1
        seconds = _pause(failures, self._first, self._most, self._jitter())
        self._late[name] = _Late(self._clock.now() + round(seconds * 1000), failures)
        if len(self._late) > self._most_names:
            del self._late[next(iter(self._late))]
        return seconds

    def forget(self, name: str) -> None:
        self._late.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """All others are no longer there."""
        self._late = {name: late for name, late in self._late.items() if name in names}


def _pause(failures: int, first: float, most: float, chance: float) -> float:
    """Up to half of it is chance. Never less than the first, nor more than the most that is allowed."""
    return max(first, min(first * 2.0 ** (failures - 1), most / 1.5)) * (1 + 0.5 * chance)
