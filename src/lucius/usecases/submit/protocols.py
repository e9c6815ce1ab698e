"""Chooses the protocol that serves a request type."""

import difflib

from lucius.contract import Fault
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.protocols import ProtocolVersion
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.catalog.lifecycle import named
from lucius.usecases.errors import RejectCode, Rejected


def choose_protocol(catalog: Catalog, request_type: str, version: int | None = None) -> ProtocolDefinition:
    """Return the newest version, or the requested one.

    Raises Rejected: UNKNOWN_REQUEST_TYPE, UNKNOWN_PROTOCOL_VERSION, or PROTOCOL_DEPRECATED with the successor named.
    """
    protocol = catalog.resolve(request_type, version)
    if protocol is not None:
        return protocol
    retired = catalog.retired(request_type, version)
    if retired is not None:
        raise _deprecated(catalog, retired, "/request_type" if version is None else "/protocol_version")
    kind = catalog.request_type(request_type)
    if kind is None:
        raise _unknown_type(catalog, request_type)
    versions = [str(other.version) for other in catalog.list() if other.request_type == kind]
    message = f"{kind} has no version {version}; it has {', '.join(versions) or 'none in use'}"
    raise Rejected(RejectCode.UNKNOWN_PROTOCOL_VERSION, message, [Fault("/protocol_version", message)])


def _deprecated(catalog: Catalog, retired: ProtocolVersion, pointer: str) -> Rejected:
    successor = catalog.successor(retired)
    instead = f"use {successor.request_type} version {successor.version}" if successor else "it has no successor"
    reason = f" ({retired.deprecated.reason})" if retired.deprecated and retired.deprecated.reason else ""
    message = f"{named(retired)} is deprecated{reason}; {instead}"
    return Rejected(RejectCode.PROTOCOL_DEPRECATED, message, [Fault(pointer, message)])


def _unknown_type(catalog: Catalog, request_type: str) -> Rejected:
    known = sorted({protocol.request_type for protocol in catalog.list()})
    close = difflib.get_close_matches(request_type.upper(), known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    message = f"unknown request type; {hint}known: {', '.join(known) or 'none'}"
    return Rejected(RejectCode.UNKNOWN_REQUEST_TYPE, message, [Fault("/request_type", message)])
