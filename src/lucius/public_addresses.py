"""Tells public internet addresses from private ones.

The engine's outgoing calls and the SDK's `https:` inputs both refuse to connect to addresses that are not public, so
ingress refuses hosts that are such addresses.
"""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_METADATA = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))
"""Cloud-internal services at addresses that look public: Azure's, and Oracle's in the protocol assignments block."""


def is_public(address: IPAddress) -> bool:
    """Return True if an address belongs to the public internet.

    Loopback, private, link-local (cloud metadata services), multicast and reserved addresses do not.
    """
    if address in _NAT64_LOCAL:  # the position of the IPv4 address inside it depends on the network
        return False
    address = unwrap_ipv4(address)
    if isinstance(address, IPv4Address) and any(address in network for network in _METADATA):
        return False
    special = address.is_multicast or address.is_reserved or address.is_link_local or address.is_unspecified
    return address.is_global and not special and not (address.version == 6 and address.is_site_local)


def is_private_host(host: str) -> bool:
    """Return True if a host is an address that is not public, or a name that always stands for this machine.

    IPv6 addresses are in brackets. No name is looked up, so any other name counts as public. Trailing dots, which end a
    fully qualified name, make no difference.
    """
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _parse_literal(name)
    return address is not None and not is_public(address)


def _parse_literal(host: str) -> IPAddress | None:
    """Return the address that a host is, in any spelling that resolvers read: 10.0.0.1, 10.1, 167772161, 0xa000001."""
    try:
        return IPv6Address(host[1:-1]) if host.startswith("[") else IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def unwrap_ipv4(address: IPAddress) -> IPAddress:
    """Return the IPv4 address embedded in an IPv6 address; return any other address unchanged."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64 or address in _NAT64_LOCAL:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    return inner if inner is not None else address
