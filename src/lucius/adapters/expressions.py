"""Expressions in CEL, templates made of them, and JSON Schemas: the tools that the core is handed.

An evaluation is bounded: 4,096 characters, 32 levels, four loops inside each other, 10,000 passes of all loops
together, and an estimate of the work, made over the real values, that lies below a second. What is more is a
ToolError. Messages speak of names that the author wrote and never of values.

Beside the standard functions there are CEL's extensions for text, mathematics and optional values, and
`urlEncode(text)` for what is put into the path or the query of a URL.
"""

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote

import cel_expr_python.cel as cel
import jsonschema_rs
import msgspec
from cel_expr_python.ext import ext_math, ext_optional, ext_strings
from msgspec import Struct

from lucius.adapters.cel import templates
from lucius.adapters.cel.cost import MAX_WORK, Bound, Estimate, grows, measure, nesting
from lucius.adapters.cel.results import complaint, plain, syntax_fault
from lucius.adapters.cel.templates import Expression, Secret, Text
from lucius.adapters.cel.tree import Node, Path, is_plain_path, path_of, read_tree, reads
from lucius.core.schema_work import TooMuchWork, can_explain, visits
from lucius.core.tools import ToolError

MAX_LENGTH = 4096
MAX_LOOPS = 4
MAX_FAULTS = 5
_CACHED = 2048
_CACHED_SCHEMAS = 256

Wanted = dict[str, "Wanted | None"]


class _Program(Struct, frozen=True):
    """An expression, compiled. `wanted` says which parts of the values it needs, None for a part as a whole."""

    source: str
    tree: Node
    compiled: cel.Expression
    names: frozenset[str]
    paths: tuple[Path, ...]
    wanted: Wanted
    grows: bool


class _Schema(Struct, frozen=True):
    """`visits` is None for a schema from before there was a limit to it."""

    source: Mapping[str, Any]
    validator: jsonschema_rs.Validator
    visits: int | None


class CelTools:
    """Implements `lucius.core.tools.Tools`. Safe to share: it keeps nothing but what it has compiled."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[int, _Schema] = OrderedDict()

    def names(self, expression: str) -> frozenset[str]:
        return _program(expression).names

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

    def faults(self, schema: Mapping[str, Any], value: Any) -> list[str]:
        known = self._schema(schema)
        if known.validator.is_valid(value):
            return []
        if not can_explain(known.visits, value):
            return ["/: doesn't fit its schema; it is too large to say where"]
        errors = islice(known.validator.iter_errors(value), MAX_FAULTS)
        return [f"{_pointer(error.instance_path)}: {error.message}" for error in errors]

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
        """Kept by identity together with its schema, so that an id can't come to mean another one."""
        known = self._schemas.get(id(schema))
        if known is not None:
            return known
        try:
            validator = jsonschema_rs.validator_for(dict(schema), mask="the value", offline=True)
        except jsonschema_rs.ValidationError as error:
            raise ToolError(f"is not a JSON Schema: {error.message}") from None
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            raise ToolError(f"is not a JSON Schema: {error}") from None
        self._schemas[id(schema)] = made = _Schema(schema, validator, _visits(schema))
        if len(self._schemas) > _CACHED_SCHEMAS:
            self._schemas.popitem(last=False)
        return made


def _visits(schema: Mapping[str, Any]) -> int | None:
    try:
        return visits(dict(schema))
    except TooMuchWork:
        return None


@lru_cache(_CACHED)
def _program(source: str) -> _Program:
    """Raises ToolError."""
    if len(source) > MAX_LENGTH:
        raise ToolError(f"is longer than {MAX_LENGTH:,} characters")
    if "\0" in source:  # the binding would see what is before it only
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
    """What an expression can use. Whether a name means anything where it stands is not checked here."""
    text = cel.Type.STRING
    encode = cel.Overload("url_encode_string", return_type=text, parameters=[text], impl=lambda part: quote(part, ""))
    return cel.NewEnv(
        variables=dict.fromkeys(names, cel.Type.DYN),
        extensions=[ext_strings.ExtStrings(), ext_math.ExtMath(), ext_optional.ExtOptional()],
        functions=[cel.FunctionDecl("urlEncode", [encode])],
    )


def _wanted(paths: tuple[Path, ...]) -> Wanted:
    wanted: Wanted = {}
    for path in sorted(paths, key=len, reverse=True):  # a part as a whole goes in after its own parts
        level: Wanted = wanted
        for key in path[:-1]:
            inner = level.setdefault(key, {})
            assert inner is not None, "longer paths come first"
            level = inner
        level[path[-1]] = None
    return wanted


def _evaluate(program: _Program, values: Mapping[str, Any]) -> Any:
    """Raises ToolError."""
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
    """What is measured for a path: its value, or what is found on the way to it."""
    for key in path:
        if not isinstance(values, Mapping):
            return values
        values = values.get(key)
    return values


def _pick(values: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Only what is needed: handing a value over costs as much as it is large."""
    picked = {}
    for key, inner in wanted.items():
        if key in values:
            value = values[key]
            picked[key] = _pick(value, inner) if inner is not None and isinstance(value, dict) else value
    return picked


def _look_up(program: _Program, values: Mapping[str, Any]) -> Any:
    """A path needs no evaluation, and most expressions are one."""
    value: Any = values
    for key in path_of(program.tree) or ():
        if not isinstance(value, Mapping):
            raise ToolError(f"{key} is read of something that is not an object: {_shown(program.source)}")
        if key not in value:
            raise ToolError(f"there is no {key}: {_shown(program.source)}")
        value = value[key]
    return value


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
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path) or "/"
