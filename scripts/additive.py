"""Checks that a change of a published schema is additive for its readers and writers.

What we accept may be widened: every valid request stays valid. What we send may gain fields and enum values: every
reader of the old form can read the new one. Each function returns descriptions of what breaks; none means additive.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

from lucius.api.json_schemas import stated_default

Json = Any
Direction = Literal["accepts", "sends"]

LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
DEEPEST = 40


def schema_breaks(old: Json, new: Json, direction: Direction) -> list[str]:
    """Return what a change of one JSON Schema breaks. References are resolved within each document."""
    return list(Comparison(old, new, direction).breaks(old, new, ""))


class Comparison:
    """Compares schemas of two documents."""

    def __init__(self, old_document: Json, new_document: Json, direction: Direction) -> None:
        self._old = old_document
        self._new = new_document
        self._direction = direction
        self._open: set[tuple[int, int]] = set()

    def breaks(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if where.count("/") > DEEPEST:  # a recursive schema
            return
        old, new = resolve(self._old, old), resolve(self._new, new)
        old_kinds, new_kinds = _kinds(self._old, old), _kinds(self._new, new)
        if self._direction == "accepts":
            yield from self._each(old_kinds, new_kinds, where, "is no longer accepted", self._pair)
            yield from _default(old, new, where)
        else:
            yield from self._each(new_kinds, old_kinds, where, "was never sent before", self._reversed_pair)

    def _each(
        self,
        needed: list[Json],
        offered: list[Json],
        where: str,
        otherwise: str,
        compare: Callable[[Json, Json, str], list[str]],
    ) -> Iterator[str]:
        """Yield each needed alternative without counterpart, or its differences from the closest one offered."""
        for kind in needed:
            found = [compare(kind, other, where) for other in offered if self._alike(kind, other)]
            if not found:
                yield f"{where}: {_name(kind)} {otherwise}"
            elif all(found):
                yield from min(found, key=len)

    def _alike(self, needed: Json, offered: Json) -> bool:
        """Return True if the offered type covers the needed one; members are compared later."""
        if "type" not in offered:
            return True
        return offered["type"] == needed.get("type") or (offered["type"], needed.get("type")) == ("number", "integer")

    def _pair(self, old: Json, new: Json, where: str) -> list[str]:
        return [
            *self._values(old, new, where),
            *self._limits(old, new, where),
            *self._members(old, new, where),
            *self._elements(old, new, where),
        ]

    def _reversed_pair(self, new: Json, old: Json, where: str) -> list[str]:
        return self._pair(old, new, where)

    def _values(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if self._direction == "sends":
            return  # readers must tolerate unknown values
        old_values, new_values = _enum(old), _enum(new)
        if new_values is None:
            return
        if old_values is None:
            yield f"{where}: is limited to {new_values} now"
        else:
            yield from (f"{where}: {value!r} is no longer accepted" for value in old_values if value not in new_values)

    def _limits(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if self._direction == "sends":
            if "format" in old and new.get("format") != old["format"]:
                yield f"{where}: format {old['format']} is gone"
            return
        for name in (*LOWER_BOUNDS, *UPPER_BOUNDS):
            if _is_stricter(name, old.get(name), new.get(name)):
                yield f"{where}: {name} is {new[name]} now, was {old.get(name, 'open')}"
        for name in ("pattern", "format", "uniqueItems", "multipleOf"):
            if name in new and new[name] != old.get(name):
                yield f"{where}: {name} is {new[name]!r} now, was {old.get(name, 'open')!r}"

    def _members(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if "object" not in (old.get("type"), new.get("type")):
            return
        before, after = old.get("properties", {}), new.get("properties", {})
        yield from (f"{where}/{name}: the field was removed" for name in before if name not in after)
        yield from self._required(old, new, where)
        pair = id(before), id(after)
        if pair not in self._open:  # otherwise an outer call compares this recursive schema
            self._open.add(pair)
            for name in before:
                if name in after:
                    yield from self.breaks(before[name], after[name], f"{where}/{name}")
            self._open.discard(pair)
        yield from self._others(old.get("additionalProperties", True), new.get("additionalProperties", True), where)

    def _required(self, old: Json, new: Json, where: str) -> Iterator[str]:
        before, after = set(old.get("required", ())), set(new.get("required", ()))
        if self._direction == "accepts":
            yield from (f"{where}/{name}: is required now" for name in sorted(after - before))
        else:
            yield from (f"{where}/{name}: may be missing now" for name in sorted(before - after))

    def _others(self, old: Json, new: Json, where: str) -> Iterator[str]:
        """Compare members that the schema does not name."""
        if isinstance(old, dict) and isinstance(new, dict):
            yield from self.breaks(old, new, f"{where}/*")
        elif self._direction == "accepts" and old is not False and new is not True and old != new:
            yield f"{where}: members without a name in the schema are no longer accepted as they were"
        elif self._direction == "sends" and isinstance(old, dict) and new is True:
            yield f"{where}: other members may be anything now"

    def _elements(self, old: Json, new: Json, where: str) -> Iterator[str]:
        if "array" in (old.get("type"), new.get("type")):
            yield from self.breaks(old.get("items", {}), new.get("items", {}), f"{where}/[]")


def resolve(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        target: Json = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = {**target, **{name: value for name, value in schema.items() if name != "$ref"}}
    return schema


def _kinds(document: Json, schema: Json) -> list[Json]:
    """Return the alternatives of a schema, resolved, one type in each."""
    if "anyOf" in schema:
        return [kind for one in schema["anyOf"] for kind in _kinds(document, resolve(document, one))]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": kind} for kind in schema["type"]]
    if "type" not in schema and (values := _enum(schema)):
        return [{**schema, "type": _TYPES.get(type(value), "object")} for value in values[:1]]
    return [schema]


_TYPES = {str: "string", int: "integer", bool: "boolean", float: "number", type(None): "null"}


def _enum(schema: Json) -> list[Json] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _is_stricter(name: str, old: float | None, new: float | None) -> bool:
    if new is None or new == old:
        return False
    return old is None or (new > old if name in LOWER_BOUNDS else new < old)


def _default(old: Json, new: Json, where: str) -> Iterator[str]:
    """Compare defaults, which may move to the description; null or what the schema refuses never was one."""
    before, after = stated_default(old), stated_default(new)
    if before != after:
        yield f"{where}: the default was {before!r} and is {after!r} now"


def _name(schema: Json) -> str:
    return str(schema.get("type", "anything"))
