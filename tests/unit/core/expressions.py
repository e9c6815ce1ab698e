"""Expression tools for the core without a library: Python's own expressions over the names of the real ones."""

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from lucius.core.model.tools import ToolError

ROOTS = frozenset({"input", "job", "steps", "item", "item_index"})
_EXPRESSION = re.compile(r"\$\{([^}]*)\}")
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}


class Members(dict[str, Any]):
    """An object whose members are read as attributes."""

    def __getattr__(self, name: str) -> Any:
        return _wrapped(self[name])


def _wrapped(value: Any) -> Any:
    return Members(value) if isinstance(value, dict) else value


@lru_cache
def _compiled(expression: str) -> tuple[CodeType, frozenset[str]]:
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        raise ToolError(f"can't be parsed: {expression}") from None
    names = {".".join(path) for path in map(_path, ast.walk(tree)) if path and path[0] in ROOTS}
    return compile(tree, "expression", "eval"), frozenset(n for n in names if n != "steps")


def _path(node: ast.AST) -> tuple[str, ...]:
    """Return the root of a path: `steps.ocr` for `steps.ocr.result.pages`, `input` for `input.n`."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=ast.Name(id="steps"), attr=step):
            return "steps", step
        case _:
            return ()


class PythonTools:
    """Fails like the real tools: any error in an expression or its values is a ToolError."""

    def names(self, expression: str) -> frozenset[str]:
        return _compiled(expression)[1]

    def paths(self, expression: str) -> frozenset[tuple[str, ...]]:
        return frozenset(tuple(name.split(".")) for name in self.names(expression))

    def tested(self, expression: str) -> frozenset[tuple[str, ...]]:
        return frozenset()

    def expressions_in(self, template: Any) -> tuple[str, ...]:
        return tuple(self.names_in(template))

    def evaluate(self, expression: str, values: Mapping[str, Any]) -> Any:
        code, _ = _compiled(expression)
        visible = {name: _wrapped(value) for name, value in values.items()}
        try:
            return eval(code, {"__builtins__": {"len": len, "range": lambda n: list(range(n))}}, visible)
        except (LookupError, TypeError, ValueError, ArithmeticError, NameError, AttributeError) as error:
            raise ToolError(f"{type(error).__name__}: {expression}") from None

    def names_in(self, template: Any) -> frozenset[str]:
        match template:
            case str():
                found = (source for source in _EXPRESSION.findall(template) if not source.startswith("secrets."))
                return frozenset(name for source in found for name in self.names(source))
            case list() | dict():
                parts = template.values() if isinstance(template, dict) else template
                return frozenset(name for part in parts for name in self.names_in(part))
            case _:
                return frozenset()

    def render(self, template: Any, values: Mapping[str, Any]) -> Any:
        match template:
            case str():
                return self._text(template, values)
            case list():
                return [self.render(part, values) for part in template]
            case dict():
                return {name: self.render(part, values) for name, part in template.items()}
            case _:
                return template

    def _text(self, template: str, values: Mapping[str, Any]) -> Any:
        def value(found: re.Match[str]) -> Any:
            return found[0] if found[1].startswith("secrets.") else self.evaluate(found[1], values)

        if whole := _EXPRESSION.fullmatch(template):
            return value(whole)
        return _EXPRESSION.sub(lambda found: str(value(found)), template)

    def render_url(self, template: str, values: Mapping[str, Any]) -> str:
        return str(self._text(template, values))

    def url_fault(self, template: str) -> str | None:
        return None

    def faults(self, schema: Mapping[str, Any], value: Any) -> list[str]:
        if "type" in schema and not isinstance(value, _TYPES[schema["type"]]):
            return [f"/: is not of type {schema['type']}"]
        return [f"/: {name} is missing" for name in schema.get("required", ()) if name not in value]
