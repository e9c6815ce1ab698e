"""Downloads `https:` outputs, from checked addresses and without credentials or proxies of the environment."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_address
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from lucius.cli.errors import Unsuccessful
from lucius.contract.refs import DEFAULT_PORTS
from lucius.public_addresses import is_public

CHUNK_BYTES = 256 * 1024
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0


async def download(ref: str, *, allow_private: bool) -> AsyncIterator[bytes]:
    """Yield the bytes behind an `https:` ref. Raises Unsuccessful, also for an address that is not public."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    try:
        addresses = await _find_addresses(ref, allow_private)
        connector = aiohttp.TCPConnector(resolver=_CheckedAddresses(addresses), ssl=ssl.create_default_context())
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(ref, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise Unsuccessful(f"the output is {ref}, which answers {answer.status} {answer.reason or ''}")
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                yield chunk
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise Unsuccessful(f"the output is {ref}, which can't be read from here: {reason}") from error


async def _find_addresses(ref: str, allow_private: bool) -> list[ResolveResult]:
    """Look up the host of a ref. Raises Unsuccessful if one of its addresses is not public, and OSError."""
    parts = urlsplit(ref)
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS["https"]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    if not allow_private and not all(is_public(ip_address(address.partition("%")[0])) for _, address in addresses):
        raise Unsuccessful(
            f"the output is {ref}, and {host} has an address that is not public; --allow-private permits it"
        )
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return [
        ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=flags)
        for family, address in addresses
    ]


class _CheckedAddresses(AbstractResolver):
    """Resolves every name to the addresses that were checked."""

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        pass
