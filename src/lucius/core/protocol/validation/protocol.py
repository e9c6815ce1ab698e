"""Validates a protocol as a whole, so that faults are found before any job runs."""

from collections.abc import Iterator
from typing import Any

from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.redaction import parse_pointer
from lucius.core.protocol.validation.flow import check_flows
from lucius.core.protocol.validation.locations import Finding, Path, lay_out
from lucius.core.protocol.validation.names import check_names
from lucius.core.protocol.validation.shape import check_shapes, check_size, check_waits

__all__ = ["Finding", "check_protocol"]

MAX_FATAL_FINDINGS = 100


def check_protocol(protocol: ProtocolDefinition, tools: Tools) -> tuple[Finding, ...]:
    """Return all findings on a protocol in the order of the checks, up to MAX_FATAL_FINDINGS fatal ones.

    Schemas are checked by their compiler.
    """
    found: list[Finding] = []
    fatal = 0
    for finding in _findings(protocol, tools):
        found.append(finding)
        fatal += finding.fatal
        if fatal == MAX_FATAL_FINDINGS:
            break
    return tuple(found)


def _findings(protocol: ProtocolDefinition, tools: Tools) -> Iterator[Finding]:
    layout = lay_out(protocol)
    yield from check_shapes(layout)
    yield from check_size(layout)
    yield from check_flows(layout)
    yield from check_names(layout, tools, protocol.input_schema)
    yield from check_waits(layout, protocol.policies)
    yield from _check_redact(protocol)


def _check_redact(protocol: ProtocolDefinition) -> Iterator[Finding]:
    """Refuse pointers that are malformed or can't match anything; warn of those that no schema mentions.

    A mistyped pointer would reveal a secret value.
    """
    for number, pointer in enumerate(protocol.redact):
        path: Path = ("redact", number)
        tokens = parse_pointer(pointer)
        if tokens is None:
            yield Finding(path, f"{pointer!r} is no JSON Pointer (RFC 6901), as in /ocr/password")
        elif "*" in tokens:
            reason = f"{pointer!r}: * stands for no member or element; a pointer to the list or object hides all of it"
            yield Finding(path, reason)
        elif tokens:
            yield from _reachable(protocol, tokens, path)


def _reachable(protocol: ProtocolDefinition, tokens: tuple[str, ...], path: Path) -> Iterator[Finding]:
    tasks = {name: place.spec for name, place in protocol.plan.places.items() if place.spec.kind == "task"}
    declared = protocol.input_schema.get("properties")
    if protocol.input_schema and (tokens[0] not in tasks or (isinstance(declared, dict) and tokens[0] in declared)):
        yield from _follow(protocol.input_schema, tokens, "payload", path)
    elif not protocol.input_schema and tokens[0] not in tasks:
        yield Finding(path, f"the payload has no member {tokens[0]}: its members are {', '.join(tasks) or 'none'}")
    if tokens[0] in tasks and len(tokens) > 1:
        yield from _follow(tasks[tokens[0]].payload_schema, tokens[1:], f"payload of {tokens[0]}", path)


def _follow(schema: Any, tokens: tuple[str, ...], where: str, path: Path) -> Iterator[Finding]:
    """Follow `properties` for as long as the schemas name members."""
    for token in tokens:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            return
        if token not in properties:
            closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
            reason = f"the schema of the {where} knows no {token}; it has {', '.join(properties) or 'no properties'}"
            yield Finding(path, reason, fatal=closed)
            return
        schema = properties[token]
