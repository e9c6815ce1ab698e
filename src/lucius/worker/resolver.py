"""Looks up hosts in threads of its own.

The event loop's own lookups wait in its default executor, behind whatever the steps do there: a few of them that block,
and neither an ACK nor a heartbeat finds its way.
"""

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from lucius.worker.threads import Threads

MOST_LOOKUPS = 64
_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


class Resolver(AbstractResolver):
    """One lookup a host at a time: whoever asks for it again meanwhile waits for the same, as aiohttp sees to."""

    def __init__(self) -> None:
        self._threads = Threads(lambda: None)
        self._room = asyncio.Semaphore(MOST_LOOKUPS)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        async with self._room:
            found: list[ResolveResult] = await self._threads.run(lambda: _look_up(host, port, family), f"host {host}")
        return found

    async def close(self) -> None:
        pass


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(
            hostname=host,
            host=socket.getnameinfo(address, _NUMERIC)[0],  # it knows the zone of a link-local address, too
            port=port,
            family=kind,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for kind, _, protocol, _, address in found
    ]
