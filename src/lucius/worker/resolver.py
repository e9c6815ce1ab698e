"""DNS resolver with threads of its own.

The event loop's lookups share its default executor with the steps: a few blocking steps there would hold up every ACK
and heartbeat.
"""

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from lucius.worker.threads import Threads

MAX_CONCURRENT_LOOKUPS = 64
_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


class Resolver(AbstractResolver):
    """Resolver for aiohttp, which joins concurrent lookups of the same host."""

    def __init__(self) -> None:
        self._threads = Threads(lambda: None)
        self._room = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

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
            host=socket.getnameinfo(address, _NUMERIC)[0],  # keeps the zone of a link-local address
            port=port,
            family=kind,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for kind, _, protocol, _, address in found
    ]
