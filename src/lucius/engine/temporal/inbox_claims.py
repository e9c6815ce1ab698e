"""Claims work by inserting its message into the inbox: the process whose insert is new owns the work."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lucius.ports.errors import LedgerError
from lucius.ports.inbox import Inbox, InboxMessage


async def claim(inbox: Inbox, message: InboxMessage, release: Callable[[], Awaitable[None]]) -> bool:
    """Insert the message; return whether it was new. If cancelled meanwhile, release the claim."""
    putting = asyncio.ensure_future(inbox.put([message]))
    try:
        return (await asyncio.shield(putting))[0]
    except asyncio.CancelledError:
        with suppress(LedgerError):
            if (await putting)[0]:
                await release()
        raise
