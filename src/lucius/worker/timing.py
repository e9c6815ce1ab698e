"""Clock, timers and randomness in one place, so that tests can control them."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from lucius.backoff import full_jitter

MIN_BACKOFF_SECONDS = 0.01


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timing:
    def now(self) -> float:
        """Return monotonic seconds, unrelated to wall-clock time."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return time.time()

    def random(self) -> float:
        return random.random()

    def call_later(self, delay: float, act: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, act)

    async def sleep(self, delay: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def backoff(self, failures: int, *, base: float = 0.25, cap: float = 30.0) -> float:
        """Return an exponential backoff in seconds, with full jitter so that services don't retry in step."""
        return max(MIN_BACKOFF_SECONDS, full_jitter(failures, base, cap, self.random()))


async def wait_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of the coroutines is done; cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
