"""The canonical form of a command, whose SHA-256 distinguishes a repeated submission from a new one.

RFC 8785 after dropping null members at every depth. Values that RFC 8785 cannot carry exactly are refused
rather than rounded: two different commands must never share a fingerprint.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import rfc8785

from lucius.contract import CommandEnvelope, Fault
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import drop_nulls, short_pointer, walk

MAX_INTEGER = 2**53 - 1
MAX_FAULTS = 50

_encode_sorted = msgspec.json.Encoder(order="sorted").encode

# Where msgspec's output may differ from RFC 8785: floats, integers of 16 digits and more, and nulls (dropped
# members, and NaN, which msgspec writes as null). In an object, `:`, `[` or `,` comes before every number. It also
# matches inside strings, which only costs the slow path.
_DOUBTFUL_NUMBER = re.compile(rb"[:\[,]-?(?:[0-9]{16}|[0-9]+[.eE])")


def command_value(envelope: CommandEnvelope, request_type: str) -> dict[str, Any]:
    """Return the members that identify a command; `request_type` is the protocol's, not an alias of it."""
    return {
        "input_ref": envelope.input_ref,
        "output_ref": envelope.output_ref,
        "payload": envelope.payload,
        "request_type": request_type,
        "schema_version": envelope.schema_version,
        "tenant_id": envelope.tenant_id,
    }


def fingerprint(value: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical form, in hex. Raises Rejected (NUMBER_NOT_REPRESENTABLE)."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: dict[str, Any]) -> bytes:
    """Encode a value by RFC 8785, without null members.

    Raises Rejected (NUMBER_NOT_REPRESENTABLE) with pointers to the first faults.
    """
    try:
        encoded = _encode_sorted(value)
    except (UnicodeEncodeError, RecursionError):  # a lone surrogate, or nesting that the slow path reports
        return _canonical_slow(value)
    if b"null" not in encoded and _keys_in_order(encoded) and _DOUBTFUL_NUMBER.search(encoded) is None:
        return encoded
    return _canonical_slow(value)


def _keys_in_order(encoded: bytes) -> bool:
    """Return True if msgspec's key order (code points) is RFC 8785's (UTF-16 units): no character has four bytes."""
    return encoded.isascii() or max(encoded) < 0xF0


def _canonical_slow(value: dict[str, Any]) -> bytes:
    if faults := list(islice(_unrepresentable(value), MAX_FAULTS)):
        raise Rejected(
            RejectCode.NUMBER_NOT_REPRESENTABLE, f"{faults[0].pointer or 'the body'}: {faults[0].message}", faults
        )
    return rfc8785.dumps(drop_nulls(value))


def _unrepresentable(value: Any) -> Iterator[Fault]:
    for path, item in walk(value):
        message = _why_not(item)
        if message is None and path and isinstance(path[-1], str):
            message = _why_not(path[-1])
        if message is not None:
            yield Fault(short_pointer(path), message)


def _why_not(item: Any) -> str | None:
    match item:
        case bool():
            return None
        case int() if abs(item) > MAX_INTEGER:
            return "integers beyond ±(2^53 − 1) lose digits in JSON readers; send it as a string"
        case float() if not math.isfinite(item):
            return "JSON has no NaN and no infinity"
        case str() if not _encodable(item):
            return "the text holds half of a surrogate pair"
        case _:
            return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
