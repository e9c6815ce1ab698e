"""Where a call may go: hosts on the list, public addresses, never back to ourselves.

A name is resolved once, its addresses are checked, and the connection goes to one of these very addresses: a name that
answers differently a moment later changes nothing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from msgspec import Struct
from yarl import URL

from lucius.ports.config import CallPolicy
from lucius.ports.errors import CallFailed, CallRefused

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]

MAX_URL = 8192
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")


class Rules(Struct, frozen=True):
    """For one call. Without `hosts`, every host will do."""

    hosts: tuple[str, ...] | None
    allow_http: bool
    allow_private: bool


class Destination(Struct, frozen=True):
    url: URL
    host: str
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Destination:
    """The one reading of a URL, used for the checks and for the connection. Raises CallRefused."""
    try:
        url = URL(text) if len(text) <= MAX_URL else URL()
        host, port = (url.raw_host or "").rstrip(".").lower(), url.port or 0
    except (ValueError, UnicodeError):
        raise CallRefused("BAD_URL", "the URL is malformed") from None
    if url.scheme not in ("http", "https") or not host or not port:
        raise CallRefused("BAD_URL", "the URL needs the scheme https, a host, and at most 8,192 characters")
    if url.user is not None or url.password is not None:
        raise CallRefused("BAD_URL", "the URL must not carry a user name or password; use a header")
    return Destination(url, host, port)


def rules_for_protocols(policy: CallPolicy) -> Rules:
    return Rules(policy.hosts, policy.allow_http, policy.allow_private)


def rules_for_clients(destination: Destination, job_hosts: tuple[str, ...] | None, policy: CallPolicy) -> Rules:
    """What protocols may call is nothing that a client could name: only an entry of its own list opens more."""
    if job_hosts is not None and listed(destination, job_hosts):
        return Rules(job_hosts, allow_http=True, allow_private=policy.allow_private)
    return Rules(job_hosts, allow_http=False, allow_private=False)


def check(destination: Destination, rules: Rules, ourselves: Destination) -> None:
    """Raises CallRefused."""
    if destination.url.scheme != "https" and not rules.allow_http:
        raise CallRefused("BAD_URL", f"calls to {destination.host} must use https")
    if rules.hosts is not None and not listed(destination, rules.hosts):
        raise CallRefused("HOST_NOT_ALLOWED", f"the host {destination.authority} is not on the list of allowed hosts")
    if _is_ourselves(destination, ourselves):
        raise CallRefused("SELF_CALL", "a protocol must not call the orchestrator that runs it")


def listed(destination: Destination, hosts: Iterable[str]) -> bool:
    """Exact names, or `*.example.com` for every name below it; an entry without a port is good for every port."""
    return any(_matches(destination, entry) for entry in hosts)


def _matches(destination: Destination, entry: str) -> bool:
    name, colon, port = entry.rpartition(":")
    if not colon or not port.isdigit() or (":" in name and not name.endswith("]")):
        name, port = entry, ""
    name = name.removeprefix("[").removesuffix("]")
    if port and int(port) != destination.port:
        return False
    address = _literal(name)
    if address is not None:
        return address == _literal(destination.host)
    return destination.host == name or (name.startswith("*.") and destination.host.endswith(name[1:]))


def _is_ourselves(destination: Destination, ourselves: Destination) -> bool:
    """The same host and port, or the same port on this very machine under another of its names."""
    if destination.port != ourselves.port:
        return False
    return destination.host == ourselves.host or (_is_here(destination.host) and _is_here(ourselves.host))


def _is_here(host: str) -> bool:
    address = _literal(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


async def addresses(destination: Destination, rules: Rules, ourselves: Destination, resolve: Resolve) -> list[str]:
    """The addresses to connect to, all of them checked. Raises CallRefused or CallFailed."""
    literal = _literal(destination.host)
    found = [str(literal)] if literal is not None else await _resolved(destination, resolve)
    for text in found:
        address = ip_address(text.partition("%")[0])
        if not rules.allow_private and not is_public(address):
            raise CallRefused("PRIVATE_ADDRESS", f"{destination.host} has an address that is not public")
        if destination.port == ourselves.port and _is_here(str(_unwrapped(address))) and _is_here(ourselves.host):
            raise CallRefused("SELF_CALL", "a protocol must not call the orchestrator that runs it")
    return found


async def _resolved(destination: Destination, resolve: Resolve) -> list[str]:
    try:
        found = await resolve(destination.host, destination.port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise CallFailed("NAME_NOT_RESOLVED", f"the name {destination.host} could not be resolved", sent=False)
    return found


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, and not to us, our network, or everybody at once."""
    if address in _NAT64_LOCAL:  # where in it an IPv4 address stands, only that network knows
        return False
    address = _unwrapped(address)
    special = address.is_multicast or address.is_reserved or address.is_link_local or address.is_unspecified
    return address.is_global and not special and not (address.version == 6 and address.is_site_local)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, if it is one of the forms that do."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64 or address in _NAT64_LOCAL:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    return inner if inner is not None else address


async def resolve_by_system(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
