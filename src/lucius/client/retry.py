"""When a request is sent again, and after which pause.

What surely was not carried out (no connection, or Lucius refused it with 429 or 503) may always be sent again. What
went unanswered may have been carried out, and is sent again only where that does no harm. All else is an answer.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime

from lucius.client.errors import LuciusError, NotLucius, RequestRefused, Unreachable

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
NOT_NOW = frozenset({429, 502, 503, 504})
REFUSED_UNDONE = frozenset({429, 503})

log = logging.getLogger("lucius.client")


class Tries:
    """How often something failed since it last went well. Time and chance can be given, for tests."""

    def __init__(
        self,
        retry_for: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._retry_for = retry_for
        self._now = now
        self._sleep = sleep
        self._chance = chance
        self._failures = 0
        self._since = 0.0
        self._maybe_done = False

    def went_well(self) -> None:
        self._failures = 0

    def alive(self) -> None:
        """The server answers, if not as hoped: patience begins anew, and pauses go on growing."""
        self._since = self._now()

    async def again(self, error: LuciusError, repeatable: bool) -> None:
        """Pause until the next try; raises the error if there is to be none."""
        now = self._now()
        if self._failures == 0:
            self._since = now
        self._failures += 1
        self._maybe_done |= error.maybe_done
        pause = pause_after(self._failures, _asked_to_wait(error), self._chance())
        if not worth_it(error, repeatable) or now + pause >= self._since + self._retry_for:
            error.tries = self._failures
            error.maybe_done = self._maybe_done
            raise error
        log.info("trying again in %.2f s: %s", pause, error)
        await self._sleep(pause)


def worth_it(error: LuciusError, repeatable: bool) -> bool:
    match error:
        case Unreachable():
            return error.failure != "untrusted" and (repeatable or not error.maybe_done)
        case RequestRefused():
            return error.status in REFUSED_UNDONE or (repeatable and error.status in NOT_NOW)
        case NotLucius():
            return error.status in NOT_NOW and (repeatable or not error.maybe_done)
        case _:
            return False


def _asked_to_wait(error: LuciusError) -> float:
    return (error.retry_after or 0.0) if isinstance(error, RequestRefused | NotLucius) else 0.0


def pause_after(failures: int, asked: float, chance: float) -> float:
    """At least what the server asked for, plus a random part of a time that doubles: nobody comes back in step."""
    return asked + chance * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 16))


def retry_after_of(header: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds from a Retry-After header: a number, or a date as some proxies send."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now())
    except (ValueError, OverflowError):
        return None
