"""Warnings about mistyped keywords in a protocol's JSON Schemas: validators ignore unknown keywords."""

from collections.abc import Iterator
from typing import Any

from lucius.core.protocol.validation.locations import Finding, Path
from lucius.core.protocol.validation.suggestions import did_you_mean

MAX_COMPARED_NAMES = 100
MAX_NAME_CHARS = 40
MIN_LIKENESS = 0.75
"""High enough to accept keywords of other vocabularies, such as enumNames and nullable."""

_SCHEMA = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_SCHEMA_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
_PLAIN = (
    *("$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$ref"),
    *("$schema", "$vocabulary", "id", "const", "enum", "type", "required", "dependentRequired"),
    *("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"),
    *("maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties"),
    *("maxLength", "minLength", "pattern", "format", "contentEncoding", "contentMediaType"),
    *("title", "description", "default", "deprecated", "examples", "readOnly", "writeOnly"),
)
KEYWORDS = frozenset((*_SCHEMA, *_SCHEMA_LISTS, *_SCHEMA_MAPS, *_PLAIN))
"""Keywords of drafts 4 to 2020-12."""


def check_keywords(schema: dict[str, Any], path: Path) -> Iterator[Finding]:
    """Warn of unknown schema members whose name is similar to a keyword."""
    hints: dict[str, str] = {}
    waiting: list[tuple[Path, Any]] = [(path, schema)]
    while waiting:
        at, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        for name in sorted(node.keys() - KEYWORDS):
            if name not in hints and len(hints) < MAX_COMPARED_NAMES and len(name) <= MAX_NAME_CHARS:
                hints[name] = did_you_mean(name, KEYWORDS, MIN_LIKENESS)
            if hints.get(name):
                reason = f"{name} is no keyword of JSON Schema and has no effect{hints[name]}"
                yield Finding((*at, name), reason, fatal=False)
        waiting += (((*at, *inner), child) for inner, child in _subschemas(node))


def _subschemas(node: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    for name in _SCHEMA:
        yield (name,), node.get(name)
    for name in _SCHEMA_LISTS:
        listed = node.get(name)
        for number, child in enumerate(listed if isinstance(listed, list) else ()):
            yield (name, number), child
    for name in _SCHEMA_MAPS:
        mapped = node.get(name)
        for key, child in mapped.items() if isinstance(mapped, dict) else ():
            yield (name, key), child
