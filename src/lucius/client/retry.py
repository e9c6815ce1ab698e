"""Retry policy of requests: which failures are retried, and after which pause.

A request that was certainly not carried out (no connection, or Lucius refused it with 429 or 503) is always retried.
One that went unanswered may have been carried out, and is retried only where that does no harm. Everything else is
final. A long poll beyond the limit is not repeated here: the server would refuse it as long as others wait, so the
caller asks again later.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from lucius.backoff import full_jitter
from lucius.client.errors import LuciusError, NotLucius, RequestRefused, Unreachable

FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
NOT_EXECUTED_STATUSES = frozenset({429, 503})
LONG_POLL_LIMIT = "LONG_POLL_LIMIT"

log = logging.getLogger("lucius.client")


class Tries:
    """Counts failures since the last success. Clock, sleep and randomness are arguments, for tests."""

    def __init__(
        self,
        retry_for: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._retry_for = retry_for
        self._now = now
        self._sleep = sleep
        self._random = random_fraction
        self._failures = 0
        self._since = 0.0
        self._maybe_done = False

    def reset(self) -> None:
        self._failures = 0

    def restart_period(self) -> None:
        """Restart the retry period, since the server answers; pauses keep growing."""
        self._since = self._now()

    async def pause_or_raise(self, error: LuciusError, repeatable: bool) -> None:
        """Sleep until the next try. Raises the error if it must not be retried or the retry period is over."""
        now = self._now()
        if self._failures == 0:
            self._since = now
        self._failures += 1
        self._maybe_done |= error.maybe_done
        pause = pause_after(self._failures, _requested_pause(error), self._random())
        if not is_retryable(error, repeatable) or now + pause >= self._since + self._retry_for:
            error.tries = self._failures
            error.maybe_done = self._maybe_done
            raise error
        log.info("trying again in %.2f s: %s", pause, error)
        await self._sleep(pause)


def is_retryable(error: LuciusError, repeatable: bool) -> bool:
    match error:
        case Unreachable():
            return error.failure != "untrusted" and (repeatable or not error.maybe_done)
        case RequestRefused():
            if error.code == LONG_POLL_LIMIT:
                return False
            return error.status in NOT_EXECUTED_STATUSES or (repeatable and error.status in TEMPORARY_STATUSES)
        case NotLucius():
            return error.status in TEMPORARY_STATUSES and (repeatable or not error.maybe_done)
        case _:
            return False


def _requested_pause(error: LuciusError) -> float:
    return (error.retry_after or 0.0) if isinstance(error, RequestRefused | NotLucius) else 0.0


def pause_after(failures: int, asked: float, random_fraction: float) -> float:
    """Return the seconds the server asked for plus exponential backoff with full jitter, so clients don't align."""
    return asked + full_jitter(failures, FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, random_fraction)
