"""All that there is to say about a protocol, whether it came as a file or over HTTP: the core's checks, and schemas."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from lucius.core.check import Finding, check_protocol
from lucius.core.check_sites import Path, lay_out
from lucius.core.protocol import Protocol, payload_defaults
from lucius.core.tools import Tools


def findings(protocol: Protocol, tools: Tools) -> Iterator[Finding]:
    yield from check_protocol(protocol, tools)
    for path, schema in _schemas(protocol):
        yield from _faults(schema, path)


def _schemas(protocol: Protocol) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield ("input_schema",), protocol.input_schema
    yield ("output_schema",), protocol.output_schema
    for site in lay_out(protocol).sites:
        yield (*site.path, "payload_schema"), site.spec.payload_schema


def _faults(schema: dict[str, Any], path: Path) -> Iterator[Finding]:
    """A schema must compile without fetching anything, and its own defaults must satisfy it."""
    try:
        validator = jsonschema_rs.validator_for(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        yield Finding((*path, *error.instance_path), f"is not a JSON Schema: {error.message}")
        return
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        yield Finding(path, f"is not a JSON Schema: {error}")
        return
    for fault in validator.iter_errors(payload_defaults(schema)):
        if fault.instance_path:  # a required member without a default is no fault of the defaults
            name = fault.instance_path[0]
            yield Finding((*path, "properties", name), f"the default of {name} doesn't fit: {fault.message}")
