"""Estimates the work of an expression over given values before it is evaluated.

The library stops after 10,000 passes of all loops together, but each pass may double a text or copy a list, and
appending to a list copies it every time. So sizes are estimated from above, starting from the actual values.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from lucius.adapters.expressions.cel.patterns import MAX_POSITIONS_WORK, positions_work
from lucius.adapters.expressions.cel.tree import Const, FunctionCall, Ident, Literal, Loop, Node, Path, Select, path_of
from lucius.core.model.tools import ToolError

MAX_WORK = 16_000_000
"""At worst about a second and a hundred megabytes; most expressions need less than a hundred units."""

MAX_PASSES = 10_000
MAX_DEPTH = 100
_SEARCHING = frozenset({"contains", "indexOf", "lastIndexOf", "replace", "split"})
_GROWING = _SEARCHING | {"_+_", "join", "format", "urlEncode", "matches"}
_SCALAR = frozenset({"_&&_", "_||_", "!_", "_-_", "_*_", "_/_", "_%_", "-_", "@not_strictly_false", "type"})
_SMALL = 64  # longer than any number, date or boolean
_PATTERN = 700_000  # size of the largest pattern that the library accepts
_REPEATED = re.compile(r"\{(\d*),?(\d*)\}")
_PIECE = 24  # work for one piece of a split text, where copying a character is 1
_COUNTED = 1 / 32  # work for counting one character of a text
_COMPARED = 1 / 256  # work for comparing two characters in a search
_FLOAT = 1400  # longest number that `format` writes, at its highest precision


class Bound(Struct, frozen=True):
    """Upper bound of a value's size, with texts counted by character, and of the items in any list or map in it.

    `width` is the latter. `text` is the value itself if it is a text from outside.
    """

    size: float
    width: float
    text: str | None = None


NOTHING = Bound(0, 0)
SCALAR = Bound(_SMALL, 0)


def measure(value: Any) -> Bound:
    """Return the size of a JSON value. Raises ToolError for one that the library can't take."""
    size, width, level = 0, 0, [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for part in level:
            if isinstance(part, str):
                size += _length(part)
            elif isinstance(part, list):
                width = max(width, len(part))
                below += part
            elif isinstance(part, dict):
                width = max(width, len(part))
                size += sum(map(_length, part))
                below += part.values()
        size += len(level)
        if not below:
            return Bound(size, width, value if isinstance(value, str) else None)
        level = below
    raise ToolError(f"a value is nested deeper than {MAX_DEPTH} levels")


def _length(text: str) -> int:
    if "\0" in text:  # the binding would cut the text off there
        raise ToolError("a text has a zero character in it, which expressions can't read")
    return len(text)


def grows(node: Node) -> bool:
    """Return whether the work can exceed going through the values once."""
    match node:
        case Const() | Ident():
            return False
        case Select(operand=operand):
            return grows(operand)
        case FunctionCall(function=function, args=args):
            return function in _GROWING or any(map(grows, args))
        case Literal(parts=parts):
            return any(map(grows, parts))
        case Loop():
            return True


class Estimate:
    """Work of one evaluation, in `work`."""

    def __init__(self, tree: Node, measured: Mapping[Path, Bound]) -> None:
        self.work = 0.0
        self._measured = measured
        self._widest_inside = 0.0
        self.of(tree, {})
        # All passes together are limited, so this holds however often inner loops are entered.
        self.work += 1.5 * self._widest_inside * MAX_PASSES

    def of(self, node: Node, scope: Mapping[str, Bound]) -> Bound:
        """Return a bound of the node's value and add its work to `work`."""
        match node:
            case Const(value=value):
                return Bound(1 + len(value), 0) if value else Bound(1, 0)
            case Ident() | Select():
                return self._member(node, scope)
            case FunctionCall():
                return self._call(node, scope)
            case Literal(parts=parts, items=items):
                bounds = [self.of(part, scope) for part in parts]
                size = items + sum(bound.size for bound in bounds)
                return Bound(1 + size, max([items, *(bound.width for bound in bounds)]))
            case Loop():
                return self._loop(node, scope)

    def _member(self, node: Ident | Select, scope: Mapping[str, Bound]) -> Bound:
        path = path_of(node)
        if path is None:
            return self.of(node.operand, scope) if isinstance(node, Select) else SCALAR
        return scope[path[0]] if path[0] in scope else self._measured.get(path, SCALAR)

    def _call(self, node: FunctionCall, scope: Mapping[str, Bound]) -> Bound:
        args = [self.of(arg, scope) for arg in node.args]
        match node.function, args:
            case "_+_", [a, b]:
                self.work += 1 if _is_result(node.args[0]) else a.size + b.size
                return Bound(a.size + b.size, a.width + b.width)
            case (("_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_"), [a, b]):
                self.work += min(a.size, b.size)
                return SCALAR
            case "@in", [a, b]:
                self.work += b.width * (1 + min(a.size, b.size))
                return SCALAR
            case function, _ if function in _SCALAR:
                return SCALAR
            case "_?_:_", [_, a, b]:
                return Bound(max(a.size, b.size), max(a.width, b.width))
            case "_[_]", [a, *_]:
                return a
            case "size", [a, *_]:
                self.work += a.size * _COUNTED
                return SCALAR
            case "matches", [text, pattern]:
                known = _text_of(node.args[1], pattern)
                each = MAX_POSITIONS_WORK if known is None else positions_work(known)
                self.work += text.size * each + _compile_work(known)
                return SCALAR
            case _:
                return self._function(node.function, args)

    def _function(self, function: str, args: list[Bound]) -> Bound:
        size = _SMALL + sum(bound.size for bound in args)
        width = max((bound.width for bound in args), default=0)
        if function in _SEARCHING and len(args) > 1:
            self.work += args[0].size * args[1].size * _COMPARED
        match function, args:
            case "replace", [text, _, new, *_]:
                size = (1 + text.size) * (1 + new.size)
            case "join", [parts, glue]:
                size = parts.size + parts.width * glue.size
            case "format", [_, parts]:
                size += _FLOAT * parts.size
            case "urlEncode", _:
                size *= 12  # four bytes a character, three characters a byte
            case "split", [text, *_]:
                width = text.size
                self.work += _PIECE * text.size
            case _:
                pass
        self.work += size
        return Bound(size, width)

    def _loop(self, node: Loop, scope: Mapping[str, Bound]) -> Bound:
        """Bound a loop by one pass over everything and the rest over nothing: sizes add up over items."""
        over, start = self.of(node.over, scope), self.of(node.start, scope)
        passes = min(over.width, MAX_PASSES)
        empty, work_empty = self._pass(node, scope, NOTHING)
        full, work_full = self._pass(node, scope, over)
        self.work += passes * (1 + work_empty) + work_full
        size = start.size + passes * empty.size + full.size
        width = max(start.width, full.width)
        if full.width:  # a list is built, and every append copies it
            width = max(width, passes)
            if scope:
                self._widest_inside = max(self._widest_inside, passes)
            else:
                self.work += 3 * passes**2
        return self.of(node.result, {**scope, node.result_name: Bound(size, width)})

    def _pass(self, node: Loop, scope: Mapping[str, Bound], item: Bound) -> tuple[Bound, float]:
        inner = {**scope, **dict.fromkeys(node.variables, item), node.result_name: NOTHING}
        before, self.work = self.work, 0.0
        self.of(node.condition, inner)
        added = self.of(node.step, inner)
        work, self.work = self.work, before
        return added, work


def _is_result(node: Node) -> bool:
    """Return whether the node is what a loop has gathered; what is appended to that is not copied."""
    return isinstance(node, Ident) and node.name.startswith("@")


def _text_of(node: Node, bound: Bound) -> str | None:
    """Return a text that is known before the evaluation: one that the author wrote, or one from outside."""
    value = node.value if isinstance(node, Const) else bound.text
    return value if isinstance(value, str) else None


def _compile_work(pattern: str | None) -> float:
    """Return the work of compiling a pattern, done for every match; `x{50}` counts as fifty times x."""
    if pattern is None:
        return _PATTERN
    counts = [max(int(count[:9] or 1) for count in found.groups()) for found in _REPEATED.finditer(pattern)]
    return min(30 * (1 + len(pattern)) * math.prod(counts), _PATTERN)


def nesting(node: Node) -> int:
    """Return how deep loops are nested."""
    match node:
        case Const() | Ident():
            return 0
        case Select(operand=operand):
            return nesting(operand)
        case FunctionCall(args=parts) | Literal(parts=parts):
            return max(map(nesting, parts), default=0)
        case Loop():
            inside = max(nesting(part) for part in (node.condition, node.step, node.result))
            return max(nesting(node.over), nesting(node.start), 1 + inside)
