"""Exponential backoff with jitter: pauses grow with each failure, and callers that failed together drift apart."""

import random
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

FIRST_SECONDS, MAX_SECONDS = 30.0, 600.0
MAX_NAMES = 5_000
_DOUBLINGS = 20


class MillisClock(Protocol):
    def now(self) -> int:
        """Return milliseconds since the epoch."""


def doubled(failures: int, first: float, most: float) -> float:
    """Return `first` seconds after one failure, doubled with each further one, at most `most`."""
    return min(most, first * 2.0 ** min(failures - 1, _DOUBLINGS))


def full_jitter(failures: int, first: float, most: float, chance: float) -> float:
    """Return a pause between 0 and the doubled one: it spreads callers most, and some of them retry at once."""
    return chance * doubled(failures, first, most)


class Backoff:
    """Pauses that double with each failure up to a maximum, until a success resets them."""

    def __init__(self, first: float, most: float, jitter: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._failures = 0

    def went_well(self) -> None:
        self._failures = 0

    def pause(self) -> float:
        """Count one more failure and return the seconds to wait."""
        self._failures = min(self._failures + 1, _DOUBLINGS)
        return _pause(self._failures, self._first, self._most, self._jitter())


class _Late(NamedTuple):
    until: int
    failures: int


class KeyedBackoff:
    """Backoff per name: each failure of a name postpones that name for longer, and delays no other.

    Beyond `most_names`, the least recently failed name is forgotten, and is only retried sooner for it.
    """

    def __init__(
        self,
        clock: MillisClock,
        jitter: Callable[[], float],
        *,
        first: float = FIRST_SECONDS,
        most: float = MAX_SECONDS,
        most_names: int = MAX_NAMES,
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
        """Count a failure of `name` and return the seconds for which it is postponed."""
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
        """Forget all names but these."""
        self._late = {name: late for name, late in self._late.items() if name in names}


def _pause(failures: int, first: float, most: float, chance: float) -> float:
    """Return a pause from `first` to `most` seconds (at least 1.5 × `first`), of which up to a third is jitter."""
    return max(first, doubled(failures, first, most / 1.5)) * (1 + 0.5 * chance)
