"""Checks protocols, from files and from HTTP alike: the core's checks, and their JSON Schemas."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec

from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition, payload_defaults
from lucius.core.protocol.validation.keywords import check_keywords
from lucius.core.protocol.validation.locations import Path, lay_out
from lucius.core.protocol.validation.protocol import Finding, check_protocol
from lucius.core.protocol.validation.schema_cost import (
    SchemaTooExpensive,
    SchemaWalk,
    has_costly_keyword,
    is_affordable,
    patterns,
)
from lucius.core.protocol.validation.schema_error_cost import Explanation, error_work, explain
from lucius.json_schemas import (
    MAX_PATTERNS_BYTES,
    InvalidSchema,
    compile_schema,
    find_form_faults,
    pattern_bytes,
    schema_cost,
)

MAX_SCHEMA_BYTES = 256 * 1024
MAX_CHEAP_BYTES = 16 * 1024
MAX_PATTERNS = 100


def findings(protocol: ProtocolDefinition, tools: Tools) -> Iterator[Finding]:
    yield from check_protocol(protocol, tools)
    size, regular = 0, list[str]()
    for path, schema in _schemas(protocol):
        size += len(msgspec.json.encode(schema))
        if size > MAX_SCHEMA_BYTES:
            yield Finding(path, f"the schemas of a protocol can have {MAX_SCHEMA_BYTES // 1024} KiB of JSON in all")
            return
        regular += patterns(schema)
        if len(regular) > MAX_PATTERNS:
            yield Finding(path, f"the schemas of a protocol can have {MAX_PATTERNS} patterns in all")
            return
        if _are_too_large(regular):
            limit = MAX_PATTERNS_BYTES // (1024 * 1024)
            reason = f"the patterns of a protocol can have {limit} MiB in all when compiled"
            yield Finding(path, f"{reason}; maxLength costs less than a count such as {{1,500}}")
            return
        yield from _faults(schema, path)
        yield from check_keywords(schema, path)


def _are_too_large(regular: list[str]) -> bool:
    total = 0
    for pattern in regular:
        size = pattern_bytes(pattern)
        if size is None:
            return False  # compiling the schema says why
        total += size
        if total > MAX_PATTERNS_BYTES:
            return True
    return False


def is_costly(protocol: ProtocolDefinition) -> bool:
    """Return whether checking the schemas, with their defaults, could keep the GIL for long.

    That is so if they are large, have regular expressions, or values that the validator compares one after the other.
    """
    schemas = [schema for _, schema in _schemas(protocol) if schema]
    if sum(len(msgspec.json.encode(schema)) for schema in schemas) > MAX_CHEAP_BYTES:
        return True
    return any(map(has_costly_keyword, schemas))


def _schemas(protocol: ProtocolDefinition) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield ("input_schema",), protocol.input_schema
    yield ("output_schema",), protocol.output_schema
    for site in lay_out(protocol).sites:
        yield (*site.path, "payload_schema"), site.spec.payload_schema


def _faults(schema: dict[str, Any], path: Path) -> Iterator[Finding]:
    """Yield faults of a schema: it must compile without fetching anything, and its own defaults must satisfy it."""
    try:
        validator = compile_schema(schema)
        walk = SchemaWalk(schema)
    except InvalidSchema as error:
        is_small = len(msgspec.json.encode(schema)) <= MAX_CHEAP_BYTES
        for fault in find_form_faults(schema) if is_small else [error]:
            yield Finding((*path, *fault.path), str(fault))
        return
    except SchemaTooExpensive as error:
        yield Finding(path, f"can't be used: {error}")
        return
    defaults = payload_defaults(schema)
    if is_affordable(schema_cost(schema, walk.visits), defaults):
        yield from _unfit(walk, validator, defaults, path)
    else:
        yield Finding(path, "the defaults are too large to be checked against these patterns and values")


def _unfit(
    walk: SchemaWalk, validator: jsonschema_rs.Validator, defaults: dict[str, Any], path: Path
) -> Iterator[Finding]:
    if validator.is_valid(defaults):
        return
    if explain(error_work(walk), defaults) is not Explanation.ALL:
        yield Finding(path, "the defaults are too large to be checked")
        return
    for fault in validator.iter_errors(defaults):
        if fault.instance_path:  # a required member without a default is no fault of the defaults
            name = fault.instance_path[0]
            yield Finding((*path, "properties", name), f"the default of {name} doesn't fit: {fault.message}")
