"""Whether a command's payload fits the steps of its protocol, and what each step gets of it."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from msgspec import Struct

from lucius.contract import Fault
from lucius.core.protocol import Protocol, digest, payload_defaults
from lucius.service.errors import RejectCode, Rejected
from lucius.service.json_values import pointer

MAX_FAULTS = 50
_CACHE_SIZE = 256

Kind = jsonschema_rs.ValidationErrorKind


class _Step(Struct, frozen=True):
    step_id: str
    defaults: dict[str, Any]
    validator: jsonschema_rs.Validator | None


class _Compiled(Struct, frozen=True):
    protocol: Protocol
    digest: str
    steps: tuple[_Step, ...]
    step_ids: frozenset[str]


class Payloads:
    """Validates payloads. Schemas are compiled once for each content of a protocol."""

    def __init__(self) -> None:
        # By identity first, because a digest costs more than a validation; by digest so that a reload of the same
        # content compiles nothing. The entry holds its protocol, so that an id can't come to mean another one.
        self._by_id: OrderedDict[int, _Compiled] = OrderedDict()
        self._by_digest: OrderedDict[str, _Compiled] = OrderedDict()

    def fill(self, protocol: Protocol, payload: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Each step's payload with its schema's top-level defaults. Expects null members dropped.

        Raises Rejected (INVALID_PAYLOAD) with a pointer, rooted at the body, for each fault.
        """
        compiled = self._compiled(protocol)
        faults: list[Fault] = []
        filled: dict[str, dict[str, Any]] = {}
        for step in compiled.steps:
            given = payload.get(step.step_id, {})
            if not isinstance(given, dict):
                faults.append(Fault(pointer(["payload", step.step_id]), "must be an object"))
                continue
            filled[step.step_id] = value = {**step.defaults, **given}
            if step.validator is not None and not step.validator.is_valid(value):
                faults.extend(_faults(step, value))
        if not payload.keys() <= compiled.step_ids:
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
        compiled = _Compiled(protocol, address, known.steps, known.step_ids) if known else _compile(protocol, address)
        self._by_digest[address] = compiled
        self._by_id[id(protocol)] = compiled
        for cache in (self._by_id, self._by_digest):
            if len(cache) > _CACHE_SIZE:
                cache.popitem(last=False)
        return compiled


def _compile(protocol: Protocol, address: str) -> _Compiled:
    steps = []
    for spec in protocol.steps:
        schema = spec.payload_schema
        # The mask keeps a client's values out of messages, which end up in logs.
        validator = jsonschema_rs.validator_for(schema, mask="the value", offline=True) if schema else None
        steps.append(_Step(spec.step_id, payload_defaults(schema), validator))
    return _Compiled(protocol, address, tuple(steps), frozenset(step.step_id for step in steps))


def _faults(step: _Step, value: dict[str, Any]) -> Iterator[Fault]:
    if step.validator is None:
        return
    for error in step.validator.iter_errors(value):
        path = ["payload", step.step_id, *error.instance_path]
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
