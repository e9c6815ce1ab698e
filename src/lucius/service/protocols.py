"""From a request type to the protocol that serves it."""

import difflib

from lucius.contract import Fault
from lucius.core.protocol import Protocol
from lucius.ports.protocols import ProtocolSource
from lucius.service.errors import RejectCode, Rejected


def choose_protocol(source: ProtocolSource, request_type: str, version: int | None = None) -> Protocol:
    """The newest version, or the one asked for. Raises Rejected: UNKNOWN_REQUEST_TYPE or UNKNOWN_PROTOCOL_VERSION."""
    protocol = source.resolve(request_type, version)
    if protocol is not None:
        return protocol
    known = source.resolve(request_type)
    if known is None:
        raise _unknown_type(source, request_type)
    versions = [str(other.version) for other in source.list() if other.request_type == known.request_type]
    message = f"{known.request_type} has no version {version}; it has {', '.join(versions)}"
    raise Rejected(RejectCode.UNKNOWN_PROTOCOL_VERSION, message, [Fault("/protocol_version", message)])


def _unknown_type(source: ProtocolSource, request_type: str) -> Rejected:
    known = sorted({protocol.request_type for protocol in source.list()})
    close = difflib.get_close_matches(request_type.upper(), known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    message = f"unknown request type; {hint}known: {', '.join(known) or 'none'}"
    return Rejected(RejectCode.UNKNOWN_REQUEST_TYPE, message, [Fault("/request_type", message)])
