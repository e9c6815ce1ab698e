"""All that there is to say about a protocol, whether it came as a file or over HTTP: the core's checks, and schemas."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec

from lucius.core.check import Finding, check_protocol
from lucius.core.check_sites import Path, lay_out
from lucius.core.protocol import Protocol, payload_defaults
from lucius.core.schema_work import TooMuchWork, can_explain, patterns, visits
from lucius.core.tools import Tools

MAX_SCHEMA_BYTES = 256 * 1024
MAX_PATTERNS = 100
MAX_PATTERN_SIZE = 500_000  # when it is compiled: a few milliseconds' work


def findings(protocol: Protocol, tools: Tools) -> Iterator[Finding]:
    yield from check_protocol(protocol, tools)
    size = regular = 0
    for path, schema in _schemas(protocol):
        size += len(msgspec.json.encode(schema))
        regular += patterns(schema)
        if size > MAX_SCHEMA_BYTES:
            yield Finding(path, f"the schemas of a protocol can have {MAX_SCHEMA_BYTES // 1024} KiB of JSON in all")
            return
        if regular > MAX_PATTERNS:
            yield Finding(path, f"the schemas of a protocol can have {MAX_PATTERNS} patterns in all")
            return
        yield from _faults(schema, path)


def _schemas(protocol: Protocol) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield ("input_schema",), protocol.input_schema
    yield ("output_schema",), protocol.output_schema
    for site in lay_out(protocol).sites:
        yield (*site.path, "payload_schema"), site.spec.payload_schema


def _faults(schema: dict[str, Any], path: Path) -> Iterator[Finding]:
    """A schema must compile without fetching anything, and its own defaults must satisfy it."""
    regex = jsonschema_rs.FancyRegexOptions(size_limit=MAX_PATTERN_SIZE)
    try:
        validator = jsonschema_rs.validator_for(schema, offline=True, pattern_options=regex)
        looks = visits(schema)
    except jsonschema_rs.ValidationError as error:
        large = (
            " or is too large for one; maxLength costs less than a count" if error.message.endswith('"regex"') else ""
        )
        yield Finding((*path, *error.instance_path), f"is not a JSON Schema: {error.message}{large}")
        return
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        yield Finding(path, f"is not a JSON Schema: {error}")
        return
    except TooMuchWork as error:
        yield Finding(path, f"can't be used: {error}")
        return
    yield from _unfit(validator, looks, payload_defaults(schema), path)


def _unfit(validator: jsonschema_rs.Validator, looks: int, defaults: dict[str, Any], path: Path) -> Iterator[Finding]:
    if validator.is_valid(defaults):
        return
    if not can_explain(looks, defaults):
        yield Finding(path, "the defaults are too large to be checked")
        return
    for fault in validator.iter_errors(defaults):
        if fault.instance_path:  # a required member without a default is no fault of the defaults
            name = fault.instance_path[0]
            yield Finding((*path, "properties", name), f"the default of {name} doesn't fit: {fault.message}")
