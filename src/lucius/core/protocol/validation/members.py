"""Checks that the members which expressions read can exist: by input_schema, or by what Lucius provides."""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from lucius.core.model.tools import ITEM
from lucius.core.protocol.definition import StepSpec
from lucius.core.protocol.validation.suggestions import did_you_mean

Shape = Mapping[str, "Shape | None"]
"""Members of an object. None stands for a value of unknown shape."""

_ANY: Shape | None = None
_ERROR: Shape = dict.fromkeys(("code", "message"))
_REFS = ("input_ref", "output_ref", "workspace_ref")
_JOB: Shape = dict.fromkeys(("id", "tenant_id", "request_type", *_REFS, "doc_id", "correlation_id", "target", "run_no"))
_RESPONSE: Shape = dict.fromkeys(("status", "headers", "body"))
_COUNTS = ("total", "succeeded", "failed", "omitted")
_OUTCOME: Shape = {"status": None, "result": None, "artifact_refs": None, "error": _ERROR}
_MAX_NODES = 1000

_COMBINATORS = ("allOf", "anyOf", "oneOf")
_CONDITIONALS = ("if", "then", "else", "not")
_OPEN_ENDED = ("patternProperties", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
_NON_UNIFORM_ITEMS = (*_OPEN_ENDED, "properties", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
"""Keywords by which the value may be an object, or items differ by position."""
_ADDITIONAL_MEMBERS = ("additionalProperties", "unevaluatedProperties")


class Members:
    """Members that the expressions of one protocol can read."""

    def __init__(self, specs: Iterable[StepSpec], input_schema: dict[str, Any]) -> None:
        self._specs = {spec.step_id: spec for spec in specs}
        self._input_schema = input_schema

    def fault(self, path: tuple[str, ...], tested: Container[tuple[str, ...]] = ()) -> str | None:
        """Return the reason why a path reads a member that can't exist; None if it can.

        `tested` are the paths that the same expression tests with `has(…)`. For these an object can have any member
        that its schema doesn't exclude.
        """
        root, *keys = path
        match root:
            case "input":
                return self._input_fault(keys, tested)
            case "job":
                return _shape_fault(_JOB, root, keys)
            case "response":
                return _shape_fault(_RESPONSE, root, keys)
            case "steps" if keys and keys[0] in self._specs:
                return _shape_fault(_step_shape(self._specs[keys[0]]), f"steps.{keys[0]}", keys[1:])
            case _:
                return None

    def _input_fault(self, keys: list[str], tested: Container[tuple[str, ...]]) -> str | None:
        """Follow the schema as far as it names members; if it explicitly allows others, any member may exist."""
        at, schemas, root = "input", [self._input_schema], self._input_schema
        for number, key in enumerate(keys, 1):
            if key == ITEM:
                items = _items(schemas, root)
                if items is None:
                    return None
                at, schemas = f"{at}{ITEM}", items
                continue
            known = _properties(schemas, root) if at != "input" or self._input_schema else None
            if known is None:
                return None
            if at == "input":
                known = {**{name: [] for name, spec in self._specs.items() if spec.kind == "task"}, **known}
            if key not in known:
                if ("input", *keys[:number]) in tested and not _is_closed(schemas, root):
                    return None
                where = "input_schema" if at == "input" else f"its schema for {at}"
                advice = f"declare it in {where}, or say additionalProperties: true there"
                return f"there is no {key} in {at}{did_you_mean(key, known) or f'; {advice}'}"
            at, schemas = f"{at}.{key}", known[key]
            if not schemas and key in self._specs:
                root = self._specs[key].payload_schema
                schemas = [root]
        return None


def _shape_fault(shape: Shape | None, at: str, keys: Iterable[str]) -> str | None:
    for key in keys:
        if shape is None or key == ITEM:
            return None
        if key not in shape:
            return f"there is no {key} in {at}{did_you_mean(key, shape)}; it has {', '.join(shape)}"
        at, shape = f"{at}.{key}", shape[key]
    return None


def _step_shape(spec: StepSpec) -> Shape:
    result: Shape | None = _ANY
    if spec.parallel is not None:
        result = {**dict.fromkeys(_COUNTS), "branches": dict.fromkeys(spec.parallel.branches, _OUTCOME)}
    elif spec.map is not None:
        result = {**dict.fromkeys(_COUNTS), "items": None}
    return {**_OUTCOME, "result": result}


def _properties(schemas: list[Any], root: dict[str, Any]) -> dict[str, list[Any]] | None:
    """Return the members that schemas name, with the schemas of each; None if others are allowed or none is named."""
    found: dict[str, list[Any]] = {}
    for node in _nodes(schemas, root):
        if not isinstance(node, dict) or any(name in node for name in _OPEN_ENDED):
            return None
        if any(node.get(name, False) is not False for name in _ADDITIONAL_MEMBERS):
            return None
        properties = node.get("properties")
        for name, inner in properties.items() if isinstance(properties, dict) else ():
            found.setdefault(name, []).append(inner)
    return found or None


def _items(schemas: list[Any], root: dict[str, Any]) -> list[Any] | None:
    """Return the schemas of all items of a list; None if there is none or the value may not be a list."""
    found: list[Any] = []
    for node in _nodes(schemas, root):
        if not isinstance(node, dict) or any(name in node for name in _NON_UNIFORM_ITEMS):
            return None
        if node.get("type", "array") not in ("array", ["array"], ["array", "null"], ["null", "array"]):
            return None
        if not isinstance(node.get("items", {}), dict):  # True, or a list with a schema for each position
            return None
        found += [node["items"]] if "items" in node else []
    return found or None


def _is_closed(schemas: list[Any], root: dict[str, Any]) -> bool:
    nodes = (node for node in _nodes(schemas, root) if isinstance(node, dict))
    return any(node.get(name) is False for node in nodes for name in _ADDITIONAL_MEMBERS)


def _nodes(schemas: list[Any], root: dict[str, Any]) -> Iterator[Any]:
    """Yield all subschemas that apply to the same value; None for an unresolved $ref or beyond _MAX_NODES."""
    todo, seen = list(schemas), 0
    while todo:
        node = todo.pop()
        seen += 1
        if seen > _MAX_NODES:
            yield None
            return
        yield node
        if not isinstance(node, dict):
            continue
        for name in _COMBINATORS:
            todo += node[name] if isinstance(node.get(name), list) else []
        todo += [node[name] for name in _CONDITIONALS if name in node]
        if "$ref" in node:
            todo.append(_target(node["$ref"], root))


def _target(ref: Any, root: dict[str, Any]) -> Any:
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return root if ref == "#" else None
    at: Any = root
    for part in ref[2:].split("/"):
        at = at.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(at, dict) else None
    return at
