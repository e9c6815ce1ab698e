"""Loops that must not die: each failure is logged, counted and backed off from."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

FIRST_BACKOFF = 0.1
MAX_BACKOFF = 10.0


async def supervised(name: str, turn: Callable[[], Awaitable[None]], on_failure: Callable[[str], None]) -> None:
    """Run `turn` for ever. Only cancellation ends it."""
    backoff = FIRST_BACKOFF
    while True:
        try:
            await turn()
            backoff = FIRST_BACKOFF
        except Exception:
            on_failure(name)
            log.exception("loop failed, will go on", loop=name, backoff_seconds=backoff)
            await asyncio.sleep(random.uniform(0, backoff))
            backoff = min(backoff * 2, MAX_BACKOFF)
