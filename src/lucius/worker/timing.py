"""Time and chance, in one place so that tests own both."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

SHORTEST_PAUSE = 0.01


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timing:
    def now(self) -> float:
        """Seconds that only go forward; not related to the calendar."""
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
        """Exponential with full jitter, so that services that failed together do not return together."""
        ceiling = min(cap, base * 2.0 ** min(failures - 1, 30))
        return max(SHORTEST_PAUSE, ceiling * self.random())


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Until one of them is over; the others are dropped."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
