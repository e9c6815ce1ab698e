"""Idempotency store port: which attempts have been run by any process of a service, and an in-memory adapter.

An attempt is `(jobId, stepId, attempt_no, lease_id)`. The process that claims it first runs it; a directive delivered
twice finds it claimed, or finished with its RESULT, which is sent again instead of doing the work again.

A claim belongs to a store object and lasts for the requested seconds, or, if the store can detect it, as long as its
process lives; its owner renews it while it works. Finished attempts are kept for a limited time and up to a limited
number: duplicates arrive soon or never.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from lucius.contract import Directive
from lucius.ports.errors import ExpectedError

MAX_FINISHED_ATTEMPTS = 10_000
RETENTION_SECONDS = 48 * 3600.0
MAX_FINISHED_BYTES = 64 * 1024 * 1024


class StoreDown(ExpectedError):
    """The store is temporarily unavailable: take on no more work until it is back."""


class StoreTooNew(ExpectedError):
    """The store was written by a newer version of Lucius."""


class AttemptKey(NamedTuple):
    jobId: str
    stepId: str
    attempt_no: int
    lease_id: str


def attempt_key(directive: Directive) -> AttemptKey:
    return AttemptKey(directive.jobId, directive.stepId, directive.attempt_no, directive.lease_id)


class New(msgspec.Struct, frozen=True):
    """The attempt was free and is now claimed by the caller."""


class Running(msgspec.Struct, frozen=True):
    """A live owner, perhaps the caller, has claimed the attempt."""


class Finished(msgspec.Struct, frozen=True):
    result: bytes


ClaimOutcome = New | Running | Finished

NEW = New()
RUNNING = Running()


class IdempotencyStore(Protocol):
    """Store of claims and results. Each call may raise StoreDown; it is then without effect and may be repeated."""

    async def claim(self, keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
        """Return each attempt's state and claim the new ones for `seconds`. Without keys, a health check."""

    async def renew(self, keys: Sequence[AttemptKey], seconds: float) -> None:
        """Extend the claims of attempts that run here to at least `seconds` from now.

        An expired claim is taken again, unless another owner has claimed the attempt.
        """

    async def finish(self, key: AttemptKey, result: bytes) -> bytes:
        """Store the RESULT regardless of the claim's owner; return the one to send. The first stored one is kept."""

    async def release(self, key: AttemptKey) -> None:
        """Free the claim of an attempt that ended without a RESULT, if the caller still owns it."""

    async def close(self) -> None: ...


class MemoryIdempotency:
    """Idempotency store of one process, lost when it ends."""

    def __init__(
        self,
        capacity: int = MAX_FINISHED_ATTEMPTS,
        retention: float = RETENTION_SECONDS,
        max_bytes: int = MAX_FINISHED_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._retention = retention
        self._most_bytes = max_bytes
        self._now = now
        self._until: dict[AttemptKey, float] = {}
        self._finished: OrderedDict[AttemptKey, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    async def claim(self, keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
        now = self._now()
        self._forget(now)
        return [self._claim(key, now, seconds) for key in keys]

    async def renew(self, keys: Sequence[AttemptKey], seconds: float) -> None:
        until = self._now() + seconds
        renewed = {key: max(until, self._until.get(key, until)) for key in keys if key not in self._finished}
        self._until.update(renewed)

    async def finish(self, key: AttemptKey, result: bytes) -> bytes:
        now = self._now()
        self._until.pop(key, None)
        if key not in self._finished:
            self._finished[key] = now, result
            self._bytes += len(result)
        kept = self._finished[key][1]
        self._forget(now)
        return kept

    async def release(self, key: AttemptKey) -> None:
        self._until.pop(key, None)

    async def close(self) -> None:
        pass

    def _claim(self, key: AttemptKey, now: float, seconds: float) -> ClaimOutcome:
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
