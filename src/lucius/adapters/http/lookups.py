"""Resolves host names in threads of its own, a few at a time for each party.

A lookup can take half a minute where the name's servers do not answer, and can't be stopped. Without a limit, the names
of one tenant's receivers would occupy every thread and delay the calls of all others.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

Resolve = Callable[[str, int], Awaitable[list[str]]]

MAX_LOOKUPS = 64
MAX_PARTY_LOOKUPS = 8

_threads = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="lucius-lookup")


async def resolve_by_system(host: str, port: int) -> list[str]:
    """Return the addresses of a name. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Lookups:
    """Limits how many lookups run at a time for a party: a tenant, or the host of a protocol."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def resolve(self, party: str, host: str, port: int) -> list[str]:
        """Resolve a name when the party has a free slot. A lookup that its caller gave up keeps its slot."""
        places = self._places.get(party) or asyncio.Semaphore(MAX_PARTY_LOOKUPS)
        self._places[party] = places
        await places.acquire()
        lookup = asyncio.ensure_future(self._resolve(host, port))

        def end(done: "asyncio.Future[list[str]]") -> None:
            places.release()
            if not done.cancelled():
                done.exception()  # the caller may be gone

        lookup.add_done_callback(end)
        return await asyncio.shield(lookup)
