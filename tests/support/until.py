"""Waiting for what has no event: it happens in another process, or deep inside of ours."""

import asyncio
from collections.abc import Callable

WITHIN = 10.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 - as the module says
            await asyncio.sleep(0.005)
