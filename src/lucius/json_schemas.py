"""Compiles JSON Schemas with a regular expression engine that runs in linear time.

Schemas come from protocols, values from clients and services. With a backtracking engine, a few characters of either
could take hours, and the validator holds the GIL meanwhile.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import jsonschema_rs
from msgspec import Struct

from lucius.core.protocol.validation.schema_cost import Cost, SchemaTooExpensive, SchemaWalk, cost_of, is_affordable
from lucius.core.protocol.validation.schema_error_cost import ErrorWork, Explanation, error_work, explain
from lucius.core.protocol.validation.suggestions import did_you_mean

_KIB = 1024
MAX_PATTERN_BYTES = 8 * 1024 * _KIB  # 0.1 s to compile; room for ^\p{L}{1,100}$
MAX_PATTERNS_BYTES = 16 * 1024 * _KIB
_SIZES_BYTES = tuple(size * _KIB for size in (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192))
_MAX_TRIED_BYTES = 16 * 1024 * _KIB
_MAX_FULL_WORK_BYTES, _LARGE_SHARE = 128 * _KIB, 8

MAX_FORM_FAULTS = 20
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

LINEAR = "write it without look-around ((?=…), (?!…), (?<=…), (?<!…)) and back-references (\\1)"


class InvalidSchema(Exception):
    """A schema can't be compiled; `path` locates the fault in it."""

    def __init__(self, reason: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(reason)
        self.path = path


class SchemaErrors(Struct, frozen=True):
    """Errors of a value. `remark` applies to the whole value and says why the list of errors is incomplete."""

    errors: Sequence[jsonschema_rs.ValidationError] = ()
    remark: str | None = None


_TOO_COSTLY = SchemaErrors(remark="is too large for the patterns and values that its schema compares")
_UNEXPLAINED = SchemaErrors(remark="doesn't fit its schema; it is too large to say where")


class BoundedValidator(Struct, frozen=True):
    """Validates values in bounded time: a value that is too large is refused, or not all its errors are listed."""

    source: Mapping[str, Any]
    validator: jsonschema_rs.Validator
    cost: Cost | None
    work: ErrorWork | None

    def check(self, value: Any) -> SchemaErrors | None:
        """Return the errors of a value; None if it is valid."""
        if not is_affordable(self.cost, value):
            return _TOO_COSTLY
        if self.validator.is_valid(value):
            return None
        match explain(self.work, value):
            case Explanation.ALL:
                return SchemaErrors(tuple(self.validator.iter_errors(value)))
            case Explanation.FIRST:
                return self._first(value)
            case Explanation.NONE:
                return _UNEXPLAINED

    def _first(self, value: Any) -> SchemaErrors | None:
        try:
            self.validator.validate(value)
        except jsonschema_rs.ValidationError as first:
            return SchemaErrors((first,), "is too large to say what else doesn't fit its schema")
        return None


def bounded_validator(schema: dict[str, Any]) -> BoundedValidator:
    """Compile a schema for untrusted values, which are left out of error messages. Raises InvalidSchema.

    A schema that exceeds the visit limit (it may predate the limit) is accepted, but its errors are not listed.
    """
    validator = compile_schema(schema, mask="the value")
    try:
        walk = SchemaWalk(schema)
    except SchemaTooExpensive:
        return BoundedValidator(schema, validator, schema_cost(schema, None), None)
    return BoundedValidator(schema, validator, schema_cost(schema, walk.visits), error_work(walk))


def compile_schema(schema: dict[str, Any], mask: str | None = None) -> jsonschema_rs.Validator:
    """Compile a schema without fetching anything. Raises InvalidSchema.

    `mask` replaces values in error messages, because those end up in logs.
    """
    options = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
    try:
        return jsonschema_rs.validator_for(schema, mask=mask, offline=True, pattern_options=options)
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        reason = _pattern_fault(schema, path) if error.message.endswith('"regex"') else _type_fault(schema, error)
        raise InvalidSchema(f"is not a JSON Schema: {reason or error.message}", path) from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise InvalidSchema(f"is not a JSON Schema: {error}") from None


def find_form_faults(schema: dict[str, Any]) -> list[InvalidSchema]:
    """List what keeps a schema from being compiled, up to MAX_FORM_FAULTS; an empty list if it compiles.

    The compiler stops at the first fault, so each is removed from a copy to find the next. Of several faults in one
    list only one is found, and only one faulty pattern, because trying patterns is expensive.
    """
    found: list[InvalidSchema] = []
    rest = deepcopy(schema)
    while len(found) < MAX_FORM_FAULTS:
        try:
            compile_schema(rest)
        except InvalidSchema as error:
            if found and not error.path:  # perhaps a reference to a part that was removed
                break
            found.append(error)
            if _pattern_at(rest, error.path) is not None or not _take_out(rest, error.path):
                break
        else:
            break
    return found


def _take_out(schema: Any, path: tuple[str | int, ...]) -> bool:
    """Remove the member that a path leads to or into; return False if there is none."""
    holder, name = None, ""
    for key in path:
        if isinstance(schema, dict) and key in schema:
            holder, name, schema = schema, str(key), schema[key]
        elif isinstance(schema, list) and isinstance(key, int) and key < len(schema):
            schema = schema[key]
        else:
            break
    if holder is None:
        return False
    del holder[name]
    return True


def schema_cost(schema: dict[str, Any], looks: int | None) -> Cost | None:
    """Estimate the cost of applying a compiled schema; `looks` is its number of visits, None if over the limit."""
    return cost_of(schema, looks, _pattern_work)


def _pattern_work(pattern: str) -> int:
    """Return an upper bound of a pattern's work per character of text: its compiled size.

    Large patterns are large because of classes such as `\\p{L}`, of which one character meets few states. As measured,
    they cost less than a fifteenth per byte of what small patterns can cost.
    """
    size = pattern_bytes(pattern) or MAX_PATTERN_BYTES
    return size if size <= _MAX_FULL_WORK_BYTES else max(_MAX_FULL_WORK_BYTES, size // _LARGE_SHARE)


@lru_cache(4096)
def pattern_bytes(pattern: str) -> int | None:
    """Return an upper bound of a pattern's compiled size; None if it can't be compiled or exceeds the limit."""
    for size in _SIZES_BYTES:
        if _takes(pattern, jsonschema_rs.RegexOptions(size_limit=size)):
            return size
    return None


def _takes(pattern: str, options: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def _type_fault(schema: Any, error: jsonschema_rs.ValidationError) -> str | None:
    """Return a reason that lists the known types if the fault is in `type`; None otherwise."""
    *around, last = error.instance_path or ("",)
    if last != "type" or list(error.schema_path)[-2:] != ["type", "anyOf"]:
        return None
    for key in around:
        schema = schema[key]
    given = schema[last]
    unknown = [name for name in (given if isinstance(given, list) else [given]) if name not in TYPES]
    if not unknown:
        return None
    name = str(unknown[0])[:100]
    return f"there is no type {name!r}; it can be {', '.join(TYPES)}{did_you_mean(name, TYPES)}"


def _pattern_fault(schema: dict[str, Any], path: tuple[str | int, ...]) -> str | None:
    pattern = _pattern_at(schema, path)
    if pattern is None:
        return None
    shown = pattern if len(pattern) <= 100 else f"{pattern[:99]}…"
    if _takes(pattern, jsonschema_rs.RegexOptions(size_limit=_MAX_TRIED_BYTES)):
        limit = MAX_PATTERN_BYTES // (1024 * _KIB)
        advice = "maxLength costs less than a count such as {1,500}"
        return f"the pattern {shown} has more than {limit} MiB when compiled; {advice}"
    if _takes(pattern, jsonschema_rs.FancyRegexOptions(size_limit=_MAX_TRIED_BYTES)):
        return f"the pattern {shown} can't be matched in linear time; {LINEAR}"
    return f"the pattern {shown} is no regular expression, or is far too large for one"


def _pattern_at(schema: Any, path: tuple[str | int, ...]) -> str | None:
    """Return the pattern at a path: the value of `pattern`, or a key of `patternProperties`; None if there is none."""
    for key in path[:-1]:
        schema = schema.get(key) if isinstance(schema, dict) else schema[key]
    last = path[-1] if path else None
    found = schema.get(last) if isinstance(schema, dict) else None
    if last == "pattern" and isinstance(found, str):
        return found
    return last if isinstance(last, str) and len(path) > 1 and path[-2] == "patternProperties" else None
