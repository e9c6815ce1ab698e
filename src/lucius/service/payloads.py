"""Whether a command's payload fits the steps of its protocol, and what each step gets of it."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from msgspec import Struct
from msgspec.structs import replace

from lucius.contract import Fault
from lucius.core.protocol import Protocol, digest, payload_defaults
from lucius.core.schema_work import TooMuchWork, can_explain, visits
from lucius.service.errors import RejectCode, Rejected
from lucius.service.json_values import pointer

MAX_FAULTS = 50
_CACHE_SIZE = 256

Kind = jsonschema_rs.ValidationErrorKind


class _Schema(Struct, frozen=True):
    """`visits` is None for a schema from before there was a limit to it."""

    validator: jsonschema_rs.Validator
    visits: int | None

    def faults(self, value: Any, root: list[str]) -> Iterator[Fault]:
        if self.validator.is_valid(value):
            return iter(())
        if not can_explain(self.visits, value):
            return iter([Fault(pointer(root), "doesn't fit its schema; it is too large to say where")])
        return _faults(self.validator, value, root)


class _Step(Struct, frozen=True):
    step_id: str
    defaults: dict[str, Any]
    schema: _Schema | None


class _Whole(Struct, frozen=True):
    """The protocol's input_schema."""

    defaults: dict[str, Any]
    schema: _Schema


class _Compiled(Struct, frozen=True):
    protocol: Protocol
    digest: str
    steps: tuple[_Step, ...]
    step_ids: frozenset[str]
    whole: _Whole | None


class Payloads:
    """Validates payloads. Schemas are compiled once for each content of a protocol."""

    def __init__(self) -> None:
        # By identity first, because a digest costs more than a validation; by digest so that a reload of the same
        # content compiles nothing. The entry holds its protocol, so that an id can't come to mean another one.
        self._by_id: OrderedDict[int, _Compiled] = OrderedDict()
        self._by_digest: OrderedDict[str, _Compiled] = OrderedDict()

    def fill(self, protocol: Protocol, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with top-level defaults: the input_schema's, then in each task's member its own schema's.

        Expects null members dropped. Raises Rejected (INVALID_PAYLOAD) with a pointer, rooted at the body, for each
        fault.
        """
        compiled = self._compiled(protocol)
        faults: list[Fault] = []
        filled: dict[str, Any] = {}
        if compiled.whole is not None:
            filled = payload = {**compiled.whole.defaults, **payload}
            faults.extend(compiled.whole.schema.faults(payload, ["payload"]))
        for step in compiled.steps:
            given = payload.get(step.step_id, {})
            if not isinstance(given, dict):
                faults.append(Fault(pointer(["payload", step.step_id]), "must be an object"))
                continue
            filled[step.step_id] = value = {**step.defaults, **given}
            if step.schema is not None:
                faults.extend(step.schema.faults(value, ["payload", step.step_id]))
        if compiled.whole is None and not payload.keys() <= compiled.step_ids:
            faults.extend(_strangers(compiled, payload))
        if faults:
            first, more = faults[0], len(faults) - 1
            detail = f"{first.pointer}: {first.message}" + (f" (and {more} more)" if more else "")
            raise Rejected(RejectCode.INVALID_PAYLOAD, detail, faults[:MAX_FAULTS])
        return filled

    def digest(self, protocol: Protocol) -> str:
        """The protocol's content address, remembered with its compiled schemas."""
        return self._compiled(protocol).digest

    def _compiled(self, protocol: Protocol) -> _Compiled:
        compiled = self._by_id.get(id(protocol))
        if compiled is not None:
            return compiled
        address = digest(protocol)
        known = self._by_digest.get(address)
        compiled = replace(known, protocol=protocol) if known else _compile(protocol, address)
        self._by_digest[address] = compiled
        self._by_id[id(protocol)] = compiled
        for cache in (self._by_id, self._by_digest):
            if len(cache) > _CACHE_SIZE:
                cache.popitem(last=False)
        return compiled


def _compile(protocol: Protocol, address: str) -> _Compiled:
    tasks = [place.spec for place in protocol.plan.places.values() if place.spec.kind == "task"]
    steps = tuple(
        _Step(spec.step_id, payload_defaults(spec.payload_schema), _schema(spec.payload_schema)) for spec in tasks
    )
    step_ids = frozenset(step.step_id for step in steps)
    return _Compiled(protocol, address, steps, step_ids, _compile_whole(protocol.input_schema, step_ids))


def _compile_whole(schema: dict[str, Any], step_ids: frozenset[str]) -> _Whole | None:
    """A schema that forbids further members means those beside the steps' own. Any draft takes `{}` for anything."""
    made = _schema({**schema, "properties": {**{name: {} for name in step_ids}, **schema.get("properties", {})}})
    return _Whole(payload_defaults(schema), made) if schema and made else None


def _schema(schema: dict[str, Any]) -> _Schema | None:
    if not schema:
        return None
    try:
        looks = visits(schema)
    except TooMuchWork:
        looks = None
    # The mask keeps a client's values out of messages, which end up in logs.
    return _Schema(jsonschema_rs.validator_for(schema, mask="the value", offline=True), looks)


def _faults(validator: jsonschema_rs.Validator, value: Any, root: list[str]) -> Iterator[Fault]:
    for error in validator.iter_errors(value):
        path = [*root, *error.instance_path]
        match error.kind:
            case Kind.Required(name):
                yield Fault(pointer([*path, name]), "required member is missing")
            case Kind.AdditionalProperties(names) | Kind.UnevaluatedProperties(names):
                yield from (Fault(pointer([*path, name]), "unknown member") for name in names)
            case _:
                yield Fault(pointer(path), error.message)


def _strangers(compiled: _Compiled, payload: dict[str, Any]) -> Iterator[Fault]:
    steps = ", ".join(step.step_id for step in compiled.steps)
    message = f"{compiled.protocol.request_type} has no such step; its steps: {steps}"
    return (Fault(pointer(["payload", name]), message) for name in payload if name not in compiled.step_ids)
