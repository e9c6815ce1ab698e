"""Estimates the cost of listing the errors of a value, before the validator computes them.

The validator creates every error before it returns the first. An error holds a copy of the faulty part, of the names
that lead to it and of the schema's statement about it, so a few kilobytes of value can become seconds of work and
gigabytes of errors.
"""

from enum import Enum
from typing import Any

from msgspec import Struct

from lucius.core.protocol.validation.schema_cost import Node, SchemaWalk, levels, parts_of

MAX_ERROR_WORK = 4_000  # of about 10 µs each, while the validator holds the GIL
MAX_EXPLAINED_PARTS = 100_000  # parts that are copied into one error in about 50 ms
_COPY_COST = 1 / 20  # cost of copying one part, relative to creating an error
_CHARACTERS_PER_PART = 64  # length of a string that costs as much to copy as one more part

_ANY_TYPE = ("enum", "const", "not", "anyOf", "oneOf")
_BY_TYPE = {
    "number": ("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    "string": ("maxLength", "minLength", "pattern", "format", "contentEncoding", "contentMediaType"),
    "array": ("maxItems", "minItems", "uniqueItems", "contains", "additionalItems", "unevaluatedItems"),
    "object": ("maxProperties", "minProperties", "additionalProperties", "unevaluatedProperties"),
}
_QUOTED = ("enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class ErrorWork(Struct, frozen=True):
    """Cost of a schema's errors for each part of a value, by its depth.

    `has_context` if one error can hold many others, as those of `anyOf` do; `has_names` if member names are
    checked, whose errors hold a copy of the whole object.
    """

    by_depth: tuple[float, ...]
    has_context: bool
    has_names: bool


class Explanation(Enum):
    """How many errors of an invalid value can be listed."""

    ALL = "all errors"
    FIRST = "the first error"
    NONE = "no error"


def error_work(walk: SchemaWalk) -> ErrorWork:
    """Return an upper bound of the cost of a schema's errors."""
    keys = {key for level in levels(walk.root) for part in level if isinstance(part, dict) for key in part}
    return ErrorWork(walk.cost_by_depth(_error_cost), not keys.isdisjoint(("anyOf", "oneOf")), "propertyNames" in keys)


def explain(work: ErrorWork | None, value: Any) -> Explanation:
    """Return which errors of a value are cheap to list; without an estimate, none."""
    sizes = None if work is None else _sizes(value)
    if work is None or sizes is None:
        return Explanation.NONE
    if _work(work, sizes) <= MAX_ERROR_WORK:
        return Explanation.ALL
    return Explanation.NONE if work.has_context else Explanation.FIRST


class _Level(Struct, frozen=True):
    """The parts of a value at one depth. `path` is the size of the longest names that can lead to one of them."""

    parts: int
    size: float
    path: float


def _sizes(value: Any) -> list[_Level] | None:
    """Count and measure the parts of each depth; None if the value is too large to be copied even once."""
    found, total, path, level = list[_Level](), 0.0, 0.0, [value]
    while level:
        total += len(level)
        if total > MAX_EXPLAINED_PARTS:
            return None
        found.append(_Level(len(level), _size(level), path))
        path += (
            max((len(name) for part in level if isinstance(part, dict) for name in part), default=0)
            / _CHARACTERS_PER_PART
        )
        level = parts_of(level)
    return found if sum(one.size for one in found) <= MAX_EXPLAINED_PARTS else None


def _work(work: ErrorWork, sizes: list[_Level]) -> float:
    """Return the total cost if every part has every possible error."""
    total = inside = parts_below = 0.0
    for depth, level in reversed(list(enumerate(sizes))):
        inside += level.size  # of all parts at this depth, with what is in them
        total += max(_at(work, depth), 1) * (level.parts + (inside + level.parts * level.path) * _COPY_COST)
        if work.has_names:
            total += max(_at(work, depth + 1), 1) * parts_below * (inside + level.path) * _COPY_COST
        parts_below = level.parts
    return total


def _at(work: ErrorWork, depth: int) -> float:
    return work.by_depth[min(depth, len(work.by_depth) - 1)]


def _error_cost(node: Node) -> float:
    """Return the cost of the errors that one subschema can make for one part of a value."""
    quoted = sum(_size(level) for name in _QUOTED if name in node for level in levels(node[name]))
    names = _required_names(node)
    never = sum(child is False for name in ("allOf", "anyOf", "oneOf") for child in _list(node.get(name)))
    errors = never + sum(name in node for name in _ANY_TYPE)
    of_type = {kind: sum(name in node for name in keywords) for kind, keywords in _BY_TYPE.items()}
    of_type["object"] += len(names)
    kind = "number" if node.get("type") == "integer" else node.get("type")
    if isinstance(kind, str):  # keywords of other types do not apply
        other = [1 + count for name, count in of_type.items() if name != kind]
        errors += max(of_type.get(kind, 0), *other)
    else:
        errors += max(of_type.values()) + ("type" in node)
    return errors + (quoted + _size(names)) * _COPY_COST


def _required_names(node: Node) -> list[Any]:
    names = [*_list(node.get("required"))]
    for needed in (node.get("dependentRequired"), node.get("dependencies")):
        for listed in needed.values() if isinstance(needed, dict) else ():
            names += _list(listed)
    return names


def _size(level: list[Any]) -> float:
    characters = 0
    for part in level:
        if isinstance(part, str):
            characters += len(part)
        elif isinstance(part, dict):
            characters += sum(map(len, part))
        elif isinstance(part, int):
            characters += part.bit_length() // 3
    return len(level) + characters / _CHARACTERS_PER_PART


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
