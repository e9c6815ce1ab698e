"""Evaluates CEL expressions, renders templates and validates by JSON Schemas: the tools given to the core.

An evaluation is bounded: 4,096 characters, 32 levels, four nested loops, 10,000 passes of all loops together, and an
estimate of the work over the actual values that lies below a second. Anything more is a ToolError. Messages name what
the author wrote and never values.

Beside the standard functions there are CEL's extensions for text, mathematics and optional values, and
`urlEncode(text)` for a URL inside a text or a body; values in a call's own URL are encoded without it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import cel_expr_python.cel as cel
import msgspec
from cel_expr_python.ext import ext_math, ext_optional, ext_strings
from msgspec import Struct

from lucius.adapters.expressions.cel import templates, urls
from lucius.adapters.expressions.cel.cost import MAX_WORK, Bound, Estimate, grows, measure, nesting
from lucius.adapters.expressions.cel.results import complaint, plain, syntax_fault
from lucius.adapters.expressions.cel.templates import Expression, Secret, Text
from lucius.adapters.expressions.cel.tree import (
    Const,
    FunctionCall,
    Ident,
    Literal,
    Loop,
    Node,
    Path,
    Select,
    is_plain_path,
    member_reads,
    optional_reads,
    path_of,
    read_tree,
    reads,
)
from lucius.core.model.tools import ToolError
from lucius.json_schemas import BoundedValidator, InvalidSchema, bounded_validator

MAX_EXPRESSION_CHARS = 4096
MAX_LOOPS = 4
MAX_FAULTS = 5
MAX_SHOWN_POINTER_CHARS = 256
_CACHED = 2048
_CACHED_SCHEMAS = 256

Wanted = dict[str, "Wanted | None"]


class _Program(Struct, frozen=True):
    """Compiled expression. `wanted` has the parts of the values it needs, None for a part as a whole."""

    source: str
    tree: Node
    compiled: cel.Expression
    names: frozenset[str]
    paths: tuple[Path, ...]
    wanted: Wanted
    grows: bool


class _Schema(Struct, frozen=True):
    """Compiled schema. `source` is the same object that the validator was made of."""

    source: Mapping[str, Any]
    validator: BoundedValidator


class CelTools:
    """Implements `lucius.core.model.tools.Tools`. Safe to share: it keeps only what it has compiled."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[int, _Schema] = OrderedDict()

    @property
    def cached_schema_count(self) -> int:
        """Number of schemas whose validators are cached."""
        return len(self._schemas)

    def names(self, expression: str) -> frozenset[str]:
        return _program(expression).names

    def paths(self, expression: str) -> frozenset[Path]:
        return frozenset(member_reads(_program(expression).tree))

    def expressions_in(self, template: Any) -> tuple[str, ...]:
        parts = (part for text in templates.strings(template) for part in templates.parse(text))
        return tuple(part.source for part in parts if isinstance(part, Expression))

    def tested(self, expression: str) -> frozenset[Path]:
        return frozenset(optional_reads(_program(expression).tree))

    def evaluate(self, expression: str, values: Mapping[str, Any]) -> Any:
        program = _program(expression)
        if is_plain_path(program.tree):
            return _look_up(program, values)
        try:
            return _evaluate(program, values)
        except ToolError as error:
            raise ToolError(f"{error}: {_shown(expression)}") from None

    def names_in(self, template: Any) -> frozenset[str]:
        parts = (part for text in templates.strings(template) for part in templates.parse(text))
        return frozenset(name for part in parts if isinstance(part, Expression) for name in self.names(part.source))

    def render(self, template: Any, values: Mapping[str, Any]) -> Any:
        match template:
            case str():
                return self._rendered(template, values)
            case list() | tuple():
                return [self.render(item, values) for item in template]
            case dict():
                return {key: self.render(item, values) for key, item in template.items()}
            case _:
                return template

    def render_url(self, template: str, values: Mapping[str, Any]) -> str:
        def text_of(part: Expression) -> str:
            text = _as_text(self.evaluate(part.source, values), part.source)
            return text if _is_encoded(part.source) else urls.encode(text)

        return urls.render_url(templates.parse(template), text_of)

    def url_fault(self, template: str) -> str | None:
        parts = templates.parse(template)
        for part in parts:
            if isinstance(part, Expression) and not _is_encoded(part.source) and _encodes(_program(part.source).tree):
                return "values in a URL are encoded of themselves: leave urlEncode out"
        literal = "".join(part.text if isinstance(part, Text) else "x" for part in parts)
        return urls.origin_fault(parts) or urls.path_fault(literal)

    def faults(self, schema: Mapping[str, Any], value: Any) -> list[str]:
        found = self._schema(schema).validator.check(value)
        if found is None:
            return []
        said = [f"{_pointer(error.instance_path)}: {error.message}" for error in found.errors[:MAX_FAULTS]]
        return said if found.remark is None else [*said, f"/: {found.remark}"]

    def _rendered(self, template: str, values: Mapping[str, Any]) -> Any:
        if "${" not in template:
            return template
        parts = templates.parse(template)
        if len(parts) == 1 and isinstance(parts[0], Expression):
            return templates.escaped(self.evaluate(parts[0].source, values))
        done = text = ""
        for part in parts:
            match part:
                case Text():
                    text += part.text
                case Expression():
                    text += _as_text(self.evaluate(part.source, values), part.source)
                case Secret():
                    if text.endswith("$"):
                        raise ToolError(f"text that ends in $ can't stand before ${{secrets.{part.name}}}")
                    done, text = f"{done}{templates.escaped(text)}${{secrets.{part.name}}}", ""
        return f"{done}{templates.escaped(text)}"

    def _schema(self, schema: Mapping[str, Any]) -> _Schema:
        """Return the compiled schema, cached by identity. The cache keeps the schema, so that its id is not reused."""
        known = self._schemas.get(id(schema))
        if known is not None:
            return known
        try:
            made = _Schema(schema, bounded_validator(dict(schema)))
        except InvalidSchema as error:
            raise ToolError(str(error)) from None
        self._schemas[id(schema)] = made
        if len(self._schemas) > _CACHED_SCHEMAS:
            self._schemas.popitem(last=False)
        return made


@lru_cache(_CACHED)
def _program(source: str) -> _Program:
    """Compile an expression. Raises ToolError."""
    if len(source) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"is longer than {MAX_EXPRESSION_CHARS:,} characters")
    if "\0" in source:  # the binding would read only up to it
        raise ToolError("has a zero character in it")
    tree = read_tree(_compile(source, frozenset(), checked=False).serialize())
    if nesting(tree) > MAX_LOOPS:
        raise ToolError(f"has more than {MAX_LOOPS} loops inside each other: {_shown(source)}")
    paths = tuple(dict.fromkeys(reads(tree)))
    compiled = _compile(source, frozenset(path[0] for path in paths), checked=True)
    names = frozenset(".".join(path[: 2 if path[0] == "steps" else 1]) for path in paths)
    return _Program(source, tree, compiled, names, paths, _wanted(paths), grows(tree))


def _compile(source: str, names: frozenset[str], *, checked: bool) -> cel.Expression:
    try:
        return _env(names).compile(source, disable_check=not checked)
    except (RuntimeError, TypeError) as error:  # TypeError for half a surrogate pair, which is no text
        raise ToolError(f"{syntax_fault(str(error))}: {_shown(source)}") from None


@lru_cache(64)
def _env(names: frozenset[str]) -> cel.Env:
    """Return the environment of an expression that uses `names`. Does not check that they exist where it is used."""
    text = cel.Type.STRING
    encode = cel.Overload("url_encode_string", return_type=text, parameters=[text], impl=lambda part: quote(part, ""))
    return cel.NewEnv(
        variables=dict.fromkeys(names, cel.Type.DYN),
        extensions=[ext_strings.ExtStrings(), ext_math.ExtMath(), ext_optional.ExtOptional()],
        functions=[cel.FunctionDecl("urlEncode", [encode])],
    )


def _wanted(paths: tuple[Path, ...]) -> Wanted:
    wanted: Wanted = {}
    for path in sorted(paths, key=len, reverse=True):  # shorter paths last: a whole part replaces its own parts
        level: Wanted = wanted
        for key in path[:-1]:
            inner = level.setdefault(key, {})
            assert inner is not None, "longer paths come first"
            level = inner
        level[path[-1]] = None
    return wanted


def _evaluate(program: _Program, values: Mapping[str, Any]) -> Any:
    """Evaluate a program. Raises ToolError."""
    for name in program.wanted:
        if name not in values:
            raise ToolError(f"there is no {name} here")
    measured = {path: measure(_part(values, path)) for path in program.paths}
    if program.grows:
        _require_little_work(program.tree, measured)
    try:
        value = program.compiled.eval(data=_pick(values, program.wanted))
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ToolError(complaint(str(error), program.source)) from None
    return plain(value, program.source)


def _require_little_work(tree: Node, measured: Mapping[Path, Bound]) -> None:
    if Estimate(tree, measured).work > MAX_WORK:
        raise ToolError("it would be too much work over values as large as these")


def _part(values: Any, path: Path) -> Any:
    """Return what is measured for a path: its value, or what is found on the way to it."""
    for key in path:
        if not isinstance(values, Mapping):
            return values
        values = values.get(key)
    return values


def _pick(values: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return only the values that are needed: passing a value costs time in proportion to its size."""
    picked = {}
    for key, inner in wanted.items():
        if key in values:
            value = values[key]
            picked[key] = _pick(value, inner) if inner is not None and isinstance(value, dict) else value
    return picked


def _look_up(program: _Program, values: Mapping[str, Any]) -> Any:
    """Return the value at a plain path without evaluation; most expressions are one. Raises ToolError."""
    value: Any = values
    for key in path_of(program.tree) or ():
        if not isinstance(value, Mapping):
            raise ToolError(f"{key} is read of something that is not an object: {_shown(program.source)}")
        if key not in value:
            raise ToolError(f"there is no {key}: {_shown(program.source)}")
        value = value[key]
    return value


def _is_encoded(source: str) -> bool:
    """Return whether an expression is one call of urlEncode, whose value needs no encoding."""
    tree = _program(source).tree
    return isinstance(tree, FunctionCall) and tree.function == "urlEncode"


def _encodes(node: Node) -> bool:
    """Return whether urlEncode is called anywhere in an expression."""
    match node:
        case Const() | Ident():
            return False
        case Select(operand=operand):
            return _encodes(operand)
        case FunctionCall(function=function, args=args):
            return function == "urlEncode" or any(map(_encodes, args))
        case Literal(parts=parts):
            return any(map(_encodes, parts))
        case Loop():
            return any(map(_encodes, (node.over, node.start, node.condition, node.step, node.result)))


def _as_text(value: Any, source: str) -> str:
    match value:
        case str():
            return value
        case None:
            raise ToolError(f"has no value to write into a text: {_shown(source)}")
        case _:
            return msgspec.json.encode(value).decode()


def _shown(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 100 else f"{line[:99]}…"


def _pointer(path: list[str | int]) -> str:
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path) or "/"
    return pointer if len(pointer) <= MAX_SHOWN_POINTER_CHARS else f"{pointer[: MAX_SHOWN_POINTER_CHARS - 1]}…"
