"""What belongs to whoever puts its letter into the inbox."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lucius.ports.errors import LedgerError
from lucius.ports.inbox import Inbox, Letter


async def claim(inbox: Inbox, letter: Letter, release: Callable[[], Awaitable[None]]) -> bool:
    """Whether it is ours. Whoever is cut off meanwhile gives it back: nobody would ever see to it."""
    putting = asyncio.ensure_future(inbox.put([letter]))
    try:
        return (await asyncio.shield(putting))[0]
    except asyncio.CancelledError:
        with suppress(LedgerError):
            if (await putting)[0]:
                await release()
        raise
