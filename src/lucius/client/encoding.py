"""JSON encoding of request bodies."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lucius.client.errors import Misconfigured


def encode_body(body: Any) -> bytes:
    """Encode a request body. Raises Misconfigured for NaN and infinities, which would be sent as null."""
    encoded = msgspec.json.encode(body)
    if b"null" in encoded:
        for pointer, number in _find_non_finite(body, ""):
            raise Misconfigured(f"{pointer or 'the body'} is {number}, which JSON cannot carry; nothing was sent")
    return encoded


def _find_non_finite(value: Any, pointer: str) -> Iterator[tuple[str, float]]:
    """Yield the JSON pointer and value of each NaN and infinity."""
    match value:
        case float() if not math.isfinite(value):
            yield pointer, value
        case Mapping():
            for name, member in value.items():
                escaped = str(name).replace("~", "~0").replace("/", "~1")
                yield from _find_non_finite(member, f"{pointer}/{escaped}")
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(value):
                yield from _find_non_finite(item, f"{pointer}/{index}")
        case None | str() | bytes() | bool() | int() | float() | msgspec.Raw():
            pass
        case _:
            converted = msgspec.to_builtins(value)
            if isinstance(converted, dict | list):  # a struct or a dataclass
                yield from _find_non_finite(converted, pointer)
