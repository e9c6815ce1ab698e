"""Prepares generated JSON Schemas for other people's tools: validators, documentation and client generators.

msgspec writes `default: null` for every optional field and leaves free-form objects without `additionalProperties`.
Client generators read the first as "always there", so that a field becomes required, and the second as "no members".
"""

import json
import re
from collections.abc import Callable
from typing import Any

Json = Any

SCHEMA_MAPS = ("$defs", "properties", "patternProperties")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SUBSCHEMAS = ("items", "additionalProperties", "propertyNames", "not")
DEFAULT_NOTE = "Default: "


def clarify_schema(schema: Json) -> Json:
    """Return the schema without defaults that mean "absent", its free-form objects marked as such."""
    return _rewrite(schema, _clarify)


def with_absent_fields(schema: Json) -> Json:
    """Return the schema of objects whose fields may be absent, with their defaults in the descriptions.

    Generators take the keyword for a promise that the field is there, and would make every client send it.
    """
    return _rewrite(clarify_schema(schema), _describe_default)


def _rewrite(schema: Json, change: Callable[[Json], Json]) -> Json:
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    for name in SCHEMA_MAPS:
        if name in changed:
            changed[name] = {key: _rewrite(value, change) for key, value in changed[name].items()}
    for name in SCHEMA_LISTS:
        if name in changed:
            changed[name] = [_rewrite(value, change) for value in changed[name]]
    for name in SUBSCHEMAS:
        if name in changed:
            changed[name] = _rewrite(changed[name], change)
    return change(changed)


def _clarify(schema: Json) -> Json:
    if "default" in schema and not has_usable_default(schema):
        schema = {name: value for name, value in schema.items() if name != "default"}
    if schema.get("type") == "object" and not {"properties", "additionalProperties"} & schema.keys():
        schema = {**schema, "additionalProperties": True}
    return schema


def has_usable_default(schema: Json) -> bool:
    """Return True if a client could send the default itself: null and texts that the schema refuses mean "absent"."""
    if "default" not in schema or schema["default"] is None:
        return False
    value = schema["default"]
    return not (isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value))


def _describe_default(schema: Json) -> Json:
    if "default" not in schema:
        return schema
    rest = {name: value for name, value in schema.items() if name != "default"}
    note = f"{DEFAULT_NOTE}`{json.dumps(schema['default'])}`"
    told = rest.get("description")
    return {**rest, "description": f"{told} {note}" if told else note}


def stated_default(schema: Json) -> Json:
    """Return the default that the keyword or the description names; None if there is none that a client could send."""
    if has_usable_default(schema):
        return schema["default"]
    found = re.search(f"{DEFAULT_NOTE}`(.+)`$", schema.get("description", ""))
    return json.loads(found[1]) if found else None
