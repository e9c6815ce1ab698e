"""Redaction of payload values that a protocol lists under `redact`.

Services get the real payload in their directives; every view and export of a job gets the redacted one.
"""

import re
from collections.abc import Iterable
from typing import Any

MASK = "[redacted]"

_VALID = re.compile(r"(?:/(?:[^~/]|~[01])*)*")


def parse_pointer(pointer: str) -> tuple[str, ...] | None:
    """Return the reference tokens of a JSON Pointer (RFC 6901), or None if it is none."""
    if not _VALID.fullmatch(pointer):
        return None
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


def redact_payload(payload: dict[str, Any], pointers: Iterable[str]) -> dict[str, Any]:
    """Return the payload with every value at a pointer masked; the argument is not changed.

    A pointer to a member of a value that is not an object masks that value: `/customer/iban` masks a whole list of
    customers. The empty pointer masks every member. So does an invalid pointer: a protocol with one is refused when it
    is published, so this is only a second line of defence.
    """
    redacted: Any = payload
    for pointer in pointers:
        tokens = parse_pointer(pointer)
        redacted = _mask(redacted, tokens) if tokens else dict.fromkeys(payload, MASK)
    return dict(redacted)


def _mask(value: Any, tokens: tuple[str, ...]) -> Any:
    if not tokens:
        return MASK
    first, rest = tokens[0], tokens[1:]
    if isinstance(value, dict):
        return {**value, first: _mask(value[first], rest)} if first in value else value
    if isinstance(value, list) and first.isascii() and first.isdigit():
        at = int(first)
        return [*value[:at], _mask(value[at], rest), *value[at + 1 :]] if at < len(value) else value
    return MASK
