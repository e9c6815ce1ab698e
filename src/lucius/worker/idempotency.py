"""Has this attempt been run, by anyone? The port behind which a service remembers, and its simplest adapter.

An attempt is `(jobId, stepId, attempt_no, lease_id)`. Whoever claims one first runs it; a directive delivered twice
finds it claimed, or finished with its RESULT, which is sent again instead of doing the work again.

A claim belongs to a store object and lasts for the seconds asked for, or, where a store can tell, as long as its
process lives; its owner renews it while it works. What has been finished is kept for a while, and only so many of
them: duplicates come soon or never.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from lucius.contract import Directive
from lucius.ports.errors import LuciusError

CAPACITY = 10_000
RETENTION_SECONDS = 48 * 3600.0
MEMORY_BYTES = 64 * 1024 * 1024


class StoreDown(LuciusError):
    """A store can't be used just now: take on no more work until it can."""


class StoreTooNew(LuciusError):
    """A store was written by a newer version than this one."""


class Key(NamedTuple):
    jobId: str
    stepId: str
    attempt_no: int
    lease_id: str


def key_of(directive: Directive) -> Key:
    return Key(directive.jobId, directive.stepId, directive.attempt_no, directive.lease_id)


class New(msgspec.Struct, frozen=True):
    """Nobody runs it: it is ours now."""


class Running(msgspec.Struct, frozen=True):
    """Someone alive has claimed it, perhaps we ourselves."""


class Finished(msgspec.Struct, frozen=True):
    result: bytes


Standing = New | Running | Finished

NEW = New()
RUNNING = Running()


class IdempotencyStore(Protocol):
    """Each call may raise StoreDown. Then it has changed nothing that counts, and may be made again."""

    async def claim(self, keys: Sequence[Key], seconds: float) -> list[Standing]:
        """Where each attempt stands. The new ones are ours for so long. None at all: are you there?"""

    async def renew(self, keys: Sequence[Key], seconds: float) -> None:
        """For attempts that run here, for so long at least. One whose time ran out is ours again, unless another has
        claimed it."""

    async def finish(self, key: Key, result: bytes) -> bytes:
        """Remember the RESULT, whoever holds the claim by now. The first one stays; it is returned, to be sent."""

    async def release(self, key: Key) -> None:
        """It ended without a RESULT: our claim, if it still is ours, is free for anyone."""

    async def close(self) -> None: ...


class MemoryIdempotency:
    """For one process, for as long as it lives."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        retention: float = RETENTION_SECONDS,
        most_bytes: int = MEMORY_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._retention = retention
        self._most_bytes = most_bytes
        self._now = now
        self._until: dict[Key, float] = {}
        self._finished: OrderedDict[Key, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    async def claim(self, keys: Sequence[Key], seconds: float) -> list[Standing]:
        now = self._now()
        self._forget(now)
        return [self._claim(key, now, seconds) for key in keys]

    async def renew(self, keys: Sequence[Key], seconds: float) -> None:
        until = self._now() + seconds
        renewed = {key: max(until, self._until.get(key, until)) for key in keys if key not in self._finished}
        self._until.update(renewed)

    async def finish(self, key: Key, result: bytes) -> bytes:
        now = self._now()
        self._until.pop(key, None)
        if key not in self._finished:
            self._finished[key] = now, result
            self._bytes += len(result)
        kept = self._finished[key][1]
        self._forget(now)
        return kept

    async def release(self, key: Key) -> None:
        self._until.pop(key, None)

    async def close(self) -> None:
        pass

    def _claim(self, key: Key, now: float, seconds: float) -> Standing:
        found = self._finished.get(key)
        if found is not None:
            return Finished(found[1])
        if self._until.get(key, now) > now:
            return RUNNING
        self._until[key] = now + seconds
        return NEW

    def _forget(self, now: float) -> None:
        while self._finished:
            oldest, (finished, result) = next(iter(self._finished.items()))
            too_many = len(self._finished) > self._capacity or self._bytes > self._most_bytes
            if not too_many and finished + self._retention > now:
                return
            del self._finished[oldest]
            self._bytes -= len(result)
