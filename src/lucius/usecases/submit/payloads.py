"""Validates a command's payload against the steps of its protocol, and fills in defaults."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema_rs
from msgspec import Struct
from msgspec.structs import replace

from lucius.contract import Fault
from lucius.core.protocol.definition import ProtocolDefinition, digest, payload_defaults
from lucius.core.protocol.validation.suggestions import did_you_mean
from lucius.json_schemas import BoundedValidator, InvalidSchema, SchemaErrors, bounded_validator
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import pointer, short_pointer

MAX_FAULTS = 50
MAX_COMPARED_NAMES = 500  # up to 0.2 ms each, to suggest the intended name
_CACHE_SIZE = 256

Kind = jsonschema_rs.ValidationErrorKind


class _Step(Struct, frozen=True):
    step_id: str
    defaults: dict[str, Any]
    schema: BoundedValidator | None


class _Whole(Struct, frozen=True):
    """The protocol's input_schema, compiled."""

    defaults: dict[str, Any]
    schema: BoundedValidator


class _Compiled(Struct, frozen=True):
    protocol: ProtocolDefinition
    digest: str
    steps: tuple[_Step, ...]
    step_ids: frozenset[str]
    whole: _Whole | None


class _Faults:
    """Keeps the first faults and counts all of them: a payload can have a hundred thousand."""

    def __init__(self) -> None:
        self.first: list[Fault] = []
        self.count = 0

    def add(self, found: Iterable[Fault]) -> None:
        for fault in found:
            self.count += 1
            if len(self.first) < MAX_FAULTS:
                self.first.append(fault)


class Payloads:
    """Validates payloads. Schemas are compiled once for each content of a protocol."""

    def __init__(self) -> None:
        # By identity first, because a digest costs more than a validation; by digest so that reloading the same
        # content compiles nothing. The entry keeps its protocol alive, so that its id can't be reused.
        self._by_id: OrderedDict[int, _Compiled] = OrderedDict()
        self._by_digest: OrderedDict[str, _Compiled] = OrderedDict()

    def fill(self, protocol: ProtocolDefinition, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the payload with top-level defaults: the input_schema's, then in each task's member its schema's.

        Expects null members dropped. Raises Rejected (INVALID_PAYLOAD) with a pointer, rooted at the body, for each
        fault.
        """
        compiled = self._compiled(protocol)
        faults = _Faults()
        filled: dict[str, Any] = {}
        if compiled.whole is not None:
            filled = payload = {**compiled.whole.defaults, **payload}
            if found := compiled.whole.schema.check(payload):
                faults.add(_faults(found, compiled.whole.schema.source, ["payload"]))
        for step in compiled.steps:
            given = payload.get(step.step_id, {})
            if not isinstance(given, dict):
                faults.add((Fault(pointer(["payload", step.step_id]), "must be an object"),))
                continue
            filled[step.step_id] = value = {**step.defaults, **given}
            if step.schema is not None and (found := step.schema.check(value)):
                faults.add(_faults(found, step.schema.source, ["payload", step.step_id]))
        if compiled.whole is None and not payload.keys() <= compiled.step_ids:
            faults.add(_strangers(compiled, payload))
        if faults.count:
            first, more = faults.first[0], faults.count - 1
            detail = f"{first.pointer}: {first.message}" + (f" (and {more} more)" if more else "")
            raise Rejected(RejectCode.INVALID_PAYLOAD, detail, faults.first)
        return filled

    def digest(self, protocol: ProtocolDefinition) -> str:
        """Return the protocol's content digest, cached with its compiled schemas."""
        return self._compiled(protocol).digest

    @property
    def cached_count(self) -> int:
        """Number of cached protocols, by identity or by content, whichever is more."""
        return max(len(self._by_id), len(self._by_digest))

    def _compiled(self, protocol: ProtocolDefinition) -> _Compiled:
        compiled = self._by_id.get(id(protocol))
        if compiled is not None:
            return compiled
        address = digest(protocol)
        known = self._by_digest.get(address)
        compiled = replace(known, protocol=protocol) if known else _compile_or_reject(protocol, address)
        self._by_digest[address] = compiled
        self._by_id[id(protocol)] = compiled
        for cache in (self._by_id, self._by_digest):
            if len(cache) > _CACHE_SIZE:
                cache.popitem(last=False)
        return compiled


def _compile_or_reject(protocol: ProtocolDefinition, address: str) -> _Compiled:
    """Compile a protocol. Raises Rejected (INVALID_PROTOCOL) if its schemas are no longer accepted."""
    try:
        return compile_schemas(protocol, address)
    except InvalidSchema as error:
        name = f"{protocol.request_type} version {protocol.version}"
        message = f"{name} has a schema that is not taken any more: {error}; publish a version without it"
        raise Rejected(RejectCode.INVALID_PROTOCOL, message) from None


def compile_schemas(protocol: ProtocolDefinition, address: str) -> _Compiled:
    tasks = [place.spec for place in protocol.plan.places.values() if place.spec.kind == "task"]
    steps = tuple(
        _Step(spec.step_id, payload_defaults(spec.payload_schema), _schema(spec.payload_schema)) for spec in tasks
    )
    step_ids = frozenset(step.step_id for step in steps)
    return _Compiled(protocol, address, steps, step_ids, _compile_whole(protocol.input_schema, step_ids))


def _compile_whole(schema: dict[str, Any], step_ids: frozenset[str]) -> _Whole | None:
    """Compile the input_schema with the ids of all task steps as permitted members.

    If it forbids additional members, that means those besides the steps'. `{}` permits any value in every draft.
    """
    made = _schema({**schema, "properties": {**{name: {} for name in step_ids}, **schema.get("properties", {})}})
    return _Whole(payload_defaults(schema), made) if schema and made else None


def _schema(schema: dict[str, Any]) -> BoundedValidator | None:
    return bounded_validator(schema) if schema else None


def _faults(found: SchemaErrors, schema: Mapping[str, Any], root: list[str]) -> Iterator[Fault]:
    left = MAX_COMPARED_NAMES
    for error in found.errors:
        path = [*root, *error.instance_path]
        match error.kind:
            case Kind.Required(name):
                yield Fault(short_pointer([*path, name]), "required member is missing")
            case Kind.AdditionalProperties(names) | Kind.UnevaluatedProperties(names):
                known = _members(schema, error.schema_path)
                for name in names:
                    short = name[:128]
                    left -= len(known) * (1 + (len(short) // 32) ** 2)  # comparing takes time quadratic in the length
                    hint = did_you_mean(short, known) if left >= 0 else ""
                    yield Fault(short_pointer([*path, name]), f"unknown member{hint}")
            case _:
                yield Fault(short_pointer(path), error.message)
    if found.remark is not None:
        yield Fault(short_pointer(root), found.remark)


def _members(schema: Any, keyword: list[str | int]) -> list[str]:
    """Return the members that a subschema names; `keyword` is the path of one of its keywords."""
    for key in keyword[:-1]:
        match schema, key:
            case dict(), _:
                schema = schema.get(key)
            case list(), int():
                schema = schema[key]
            case _:
                return []
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties) if isinstance(properties, dict) else []


def _strangers(compiled: _Compiled, payload: dict[str, Any]) -> Iterator[Fault]:
    steps = ", ".join(step.step_id for step in compiled.steps)
    message = f"{compiled.protocol.request_type} has no such step; its steps: {steps}"
    return (Fault(short_pointer(["payload", name]), message) for name in payload if name not in compiled.step_ids)
