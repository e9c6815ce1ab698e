"""Small helpers over decoded JSON: pointers, faults, walking, and dropping null members."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from lucius.contract import Fault

# Far deeper than any sensible payload, and far from every recursion limit on the way to the ledger and back.
MAX_DEPTH = 100

_PATH_PART = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]")


def pointer(path: Iterable[str | int]) -> str:
    """A JSON Pointer (RFC 6901). Half a surrogate pair, which no answer could carry, becomes a question mark."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    text = "".join(f"/{part}" for part in parts)
    return text if text.isascii() else text.encode(errors="replace").decode()


def fault_of(text: str, root: Iterable[str | int] = ()) -> Fault:
    """msgspec says ``Expected `str`, got `int` - at `$.type` ``: the path becomes the pointer, below `root`."""
    message, _, where = text.partition(" - at `$")
    path = [*root, *(key or int(index) for key, index in _PATH_PART.findall(where))]
    if unknown := re.search(r"unknown field `(.*)`$", message):
        return Fault(pointer([*path, unknown[1]]), "unknown field")
    if missing := re.search(r"missing required field `(.*)`$", message):
        return Fault(pointer([*path, missing[1]]), "required field is missing")
    return Fault(pointer(path), message.replace("`", ""))


def walk(value: Any) -> Iterator[tuple[list[str | int], Any]]:
    """Every value with its path, parents first, without recursion. The path is reused: copy what must last."""
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
    """The value without null members of objects, at every depth; null items of arrays stay."""
    match value:
        case dict():
            return {key: drop_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [drop_nulls(item) for item in value]
        case _:
            return value


def size_of(value: Any) -> int:
    """In bytes of JSON."""
    return len(msgspec.json.encode(value))


def too_deep(value: Any) -> bool:
    """Whether objects and arrays are nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for _, child in _children(item) if isinstance(child, dict | list)]
        if not level:
            return False
    return True
