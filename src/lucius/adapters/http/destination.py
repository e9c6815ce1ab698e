"""Checks where a call may go: listed hosts, public addresses, never back to the orchestrator.

A name is resolved once, its addresses are checked, and the connection goes to one of these addresses: a different DNS
answer a moment later changes nothing.
"""

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import quote

from msgspec import Struct
from yarl import URL

from lucius.adapters.http.lookups import Resolve
from lucius.ports.config import CallbackPolicy, CallPolicy
from lucius.ports.errors import CallFailed, CallRefused
from lucius.public_addresses import IPAddress, is_public, unwrap_ipv4

MAX_URL_CHARS = 8192
_IN_PATH = "/%:@!$&'()*+,;="
_IN_QUERY = _IN_PATH + "?"
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FOREIGN = {4: ip_address("203.0.113.113"), 6: ip_address("2001:db8:ffff::113")}  # documentation addresses


class Rules(Struct, frozen=True):
    """Rules for one call. Without `hosts`, every host is allowed."""

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
    """Parse a URL, for the checks and for the connection alike. Raises CallRefused."""
    try:
        url = _with_exact_target(text) if len(text) <= MAX_URL_CHARS else URL()
        host, port = (url.raw_host or "").rstrip(".").lower(), url.port or 0
    except (ValueError, UnicodeError):
        raise CallRefused("BAD_URL", "the URL is malformed") from None
    if url.scheme not in ("http", "https") or not host or not port:
        raise CallRefused("BAD_URL", "the URL needs the scheme https, a host, and at most 8,192 characters")
    if url.user is not None or url.password is not None:
        raise CallRefused("BAD_URL", "the URL must not carry a user name or password; use a header")
    return Destination(url, host, port)


def _with_exact_target(text: str) -> URL:
    """Read a URL, and keep what is encoded in its path and its query.

    The library would decode `%3B` and the like, and a peer takes what follows a plain `;` for parameters, or a plain
    `,` for the end of a list's item.
    """
    url = URL(text)
    if not url.absolute:
        return url
    written = URL(text, encoded=True)
    base = url.with_path(_encoded(written.raw_path, _IN_PATH), encoded=True)
    query = _encoded(written.raw_query_string, _IN_QUERY)
    return URL(f"{base}?{query}" if query else str(base), encoded=True)


def _encoded(text: str, safe: str) -> str:
    """Encode what can't stand in a URL; what is encoded already stays as it is."""
    return _LONE_PERCENT.sub("%25", quote(text, safe=safe))


def rules_for_protocols(policy: CallPolicy) -> Rules:
    return Rules(policy.hosts, policy.allow_http, policy.allow_private)


def rules_for_clients(destination: Destination, callbacks: CallbackPolicy, policy: CallPolicy) -> Rules:
    """Return the rules for a URL that a client gave.

    What protocols may call is not thereby open to clients: only an entry of `job_hosts` allows more.
    """
    job_hosts = callbacks.job_hosts
    if callbacks.allow_loopback and _is_here(destination.host):
        return Rules(None, allow_http=True, allow_private=True)
    if job_hosts is not None and listed(destination, job_hosts):
        return Rules(job_hosts, allow_http=True, allow_private=policy.allow_private)
    return Rules(job_hosts, allow_http=False, allow_private=False)


def check(destination: Destination, rules: Rules, ourselves: Destination) -> None:
    """Check a destination against the rules. Raises CallRefused."""
    if destination.url.scheme != "https" and not rules.allow_http:
        raise CallRefused("BAD_URL", f"calls to {destination.host} must use https")
    if rules.hosts is not None and not listed(destination, rules.hosts):
        raise CallRefused("HOST_NOT_ALLOWED", f"the host {destination.authority} is not on the list of allowed hosts")
    if _is_ourselves(destination, ourselves):
        raise CallRefused("SELF_CALL", "a protocol must not call the orchestrator that runs it")


def listed(destination: Destination, hosts: Iterable[str]) -> bool:
    """Return whether a host is listed: by exact name, or below `*.example.com`.

    An entry without a port is good for every port.
    """
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
    """Return whether this is our host and port, or our port on this machine under another name."""
    if destination.port != ourselves.port:
        return False
    return destination.host == ourselves.host or (_is_here(destination.host) and _is_here(ourselves.host))


def _is_here(host: str) -> bool:
    address = _literal(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


async def addresses(destination: Destination, rules: Rules, ourselves: Destination, resolve: Resolve) -> list[str]:
    """Return the addresses to connect to, all of them checked. Raises CallRefused or CallFailed."""
    found = await _resolved(destination, resolve)
    same_port = destination.port == ourselves.port
    ours = await _our_addresses(ourselves, resolve) if same_port else frozenset()
    for text in found:
        address = ip_address(text.partition("%")[0])
        if not rules.allow_private and not is_public(address):
            raise CallRefused("PRIVATE_ADDRESS", f"{destination.host} has an address that is not public")
        inner = unwrap_ipv4(address)
        if same_port and (inner in ours or _is_here(str(inner)) or is_own_address(inner)):
            message = f"{destination.host} has an address of the orchestrator: a protocol must not call it"
            raise CallRefused("SELF_CALL", message)
    return found


async def _our_addresses(ourselves: Destination, resolve: Resolve) -> frozenset[IPAddress]:
    """Resolve our own name; none if it can't be resolved from here."""
    try:
        found = await _resolved(ourselves, resolve)
    except CallFailed:
        found = []
    return frozenset(unwrap_ipv4(ip_address(text.partition("%")[0])) for text in found)


def is_own_address(address: IPAddress) -> bool:
    """Return whether a network interface of this machine has the address: only such an address can be bound.

    Where the system lets programs bind any address (`ip_nonlocal_bind`), none counts as ours. Addresses that others
    translate to ours (load balancers, port mappings) are not found, nor are link-local ones.
    """
    return _can_bind(address) and not _can_bind(_FOREIGN[address.version])


def _can_bind(address: IPAddress) -> bool:
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


async def _resolved(destination: Destination, resolve: Resolve) -> list[str]:
    literal = _literal(destination.host)
    if literal is not None:
        return [str(literal)]
    try:
        found = await resolve(destination.host, destination.port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise CallFailed("NAME_NOT_RESOLVED", f"the name {destination.host} could not be resolved", sent=False)
    return found


def _literal(host: str) -> IPAddress | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
