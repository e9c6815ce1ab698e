"""Helpers for decoded JSON: pointers, faults, traversal, and dropping null members."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from lucius.contract import Fault
from lucius.core.protocol.validation.structure import allowed_hint

# Deeper than any sensible payload, and far below every recursion limit on the way to the ledger and back.
MAX_DEPTH = 100
MAX_POINTER_CHARACTERS = 1_024

_PATH_PART = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]")


def pointer(path: Iterable[str | int]) -> str:
    """Return a JSON Pointer (RFC 6901). Lone surrogates, which no response could carry, become question marks."""
    return _encodable("".join(map(_token, path)))


def short_pointer(path: Iterable[str | int]) -> str:
    """Return a JSON Pointer cut after 1,024 characters, as each fault in a list may repeat the same long name."""
    text = ""
    for part in path:
        text += _token(part[:MAX_POINTER_CHARACTERS] if isinstance(part, str) else part)
        if len(text) > MAX_POINTER_CHARACTERS:
            text = text[: MAX_POINTER_CHARACTERS - 1] + "…"
            break
    return _encodable(text)


def _token(part: str | int) -> str:
    return "/" + str(part).replace("~", "~0").replace("/", "~1")


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def fault_of(text: str, root: Iterable[str | int] = (), kind: Any = None) -> Fault:
    """Convert a msgspec error such as ``Expected `str`, got `int` - at `$.type` `` to a fault.

    Its path becomes a JSON Pointer below `root`. `kind` is the type that did not fit: a wrong enum value is then told
    with those that it allows.
    """
    message, _, where = text.partition(" - at `$")
    below = [key or int(index) for key, index in _PATH_PART.findall(where)]
    path = [*root, *below]
    # The client chose the name, and a regular expression would take quadratic time in its length.
    if (name := _quoted_after(message, "unknown field `")) is not None:
        return Fault(pointer([*path, name]), "unknown field")
    if (name := _quoted_after(message, "missing required field `")) is not None:
        return Fault(pointer([*path, name]), "required field is missing")
    message = message.replace("`", "")
    if (value := _quoted_after(message, "Invalid enum value '", "'")) is not None:
        message += allowed_hint(value, kind, below)
    return Fault(pointer(path), message)


def _quoted_after(message: str, words: str, quote: str = "`") -> str | None:
    _, found, rest = message.partition(words)
    return rest[:-1] if found and rest.endswith(quote) else None


def walk(value: Any) -> Iterator[tuple[list[str | int], Any]]:
    """Yield every value with its path, parents first, without recursion. The path is reused: copy it to keep it."""
    path: list[str | int] = []
    yield path, value
    stack = [_children(value)]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            del path[-1:]
            continue
        key, child = entry
        path.append(key)
        yield path, child
        stack.append(_children(child))


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    match value:
        case dict():
            return iter(value.items())
        case list():
            return iter(enumerate(value))
        case _:
            return iter(())


def drop_nulls(value: Any) -> Any:
    """Return the value without null members of objects, at every depth; null items of arrays are kept."""
    match value:
        case dict():
            return {key: drop_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [drop_nulls(item) for item in value]
        case _:
            return value


def size_of(value: Any) -> int:
    """Return the size of the value as JSON, in bytes."""
    return len(msgspec.json.encode(value))


def too_deep(value: Any) -> bool:
    """Return True if objects and arrays are nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for _, child in _children(item) if isinstance(child, dict | list)]
        if not level:
            return False
    return True
