"""Polling for conditions without an event, such as those in another process or deep inside the product."""

import asyncio
from collections.abc import Awaitable, Callable

WITHIN = 10.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 - as the module says
            await asyncio.sleep(0.005)


async def until_async(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for a condition that must be queried, from another process for example."""
    async with asyncio.timeout(WITHIN):
        while not await condition():  # noqa: ASYNC110 - as the module says
            await asyncio.sleep(0.005)
