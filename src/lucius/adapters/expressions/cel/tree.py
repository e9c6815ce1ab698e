"""Syntax tree of an expression, and the values it reads.

The library gives its tree as a serialised `cel.expr.ParsedExpr`. The few messages in it are decoded here from the wire
format, which needs no protobuf package or generated code.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

from msgspec import Struct

from lucius.core.model.tools import ITEM

Path = tuple[str, ...]
Bound = Mapping[str, Path | None]
"""Names that loops introduce: the path that each stands for, None for a value that has none."""

NAMESPACES = frozenset({"math", "strings", "optional"})
TYPES = frozenset(
    {"bool", "bytes", "double", "dyn", "google", "int", "list", "map", "null_type", "optional_type", "string", "type"}
    | {"uint"}
)
_NOTHING_BOUND: Bound = {}
_KEYED = {"_[_]": True, "_?._": False, "_[?_]": False}  # and whether a missing key is an error


class Const(Struct, frozen=True):
    value: Any


class Ident(Struct, frozen=True):
    name: str


class Select(Struct, frozen=True):
    """`operand.field`, also when written as `operand["field"]`. `strict` if the field must be there."""

    operand: "Node"
    field: str
    strict: bool


class FunctionCall(Struct, frozen=True):
    """A function or an operator. The value that a method is called on is its first argument."""

    function: str
    args: "tuple[Node, ...]"


class Literal(Struct, frozen=True):
    """Parts of a list, a map or a message. `items` counts list items or map entries."""

    parts: "tuple[Node, ...]"
    items: int


class Loop(Struct, frozen=True):
    """Expansion of `map`, `filter`, `exists` and similar macros."""

    variables: tuple[str, ...]
    over: "Node"
    result_name: str
    start: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Node = Const | Ident | Select | FunctionCall | Literal | Loop


def read_tree(serialised: bytes) -> Node:
    """Decode a serialised expression, as `Expression.serialize` returns it without type check."""
    parsed = _Message(_Message(serialised).bytes(2))
    return _node(parsed.bytes(2))


def reads(node: Node, bound: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the paths of everything an expression reads from outside: `input.a.b > 1` reads ("input", "a", "b")."""
    match node:
        case Const():
            return
        case Ident() | Select():
            path = path_of(node)
            if path is None and isinstance(node, Select):
                yield from reads(node.operand, bound)
            elif path is not None and path[0] not in bound and path[0] not in TYPES:
                yield path
        case FunctionCall(args=args):
            for arg in args[1:] if _is_namespace(args, bound) else args:
                yield from reads(arg, bound)
        case Literal(parts=parts):
            for part in parts:
                yield from reads(part, bound)
        case Loop():
            yield from reads(node.over, bound)
            yield from reads(node.start, bound)
            inner = bound | {*node.variables, node.result_name}
            for part in (node.condition, node.step, node.result):
                yield from reads(part, inner)


def member_reads(node: Node, bound: Bound = _NOTHING_BOUND) -> Iterator[Path]:
    """Yield the paths of everything an expression reads, with `ITEM` for an item of a list, also in a loop over it."""
    path = _member_path(node, bound)
    if path is None:
        for part, inner in _parts(node, bound):
            yield from member_reads(part, inner)
        return
    yield path
    while isinstance(node, Select | FunctionCall):  # an index may read more
        if isinstance(node, FunctionCall):
            yield from member_reads(node.args[1], bound)
        node = node.operand if isinstance(node, Select) else node.args[0]


def optional_reads(node: Node, bound: Bound = _NOTHING_BOUND) -> Iterator[Path]:
    """Yield the paths that may be absent where they are read: those in `has(…)`, and those written with `.?`."""
    if isinstance(node, Select) and not node.strict:
        path = _member_path(node, bound)
        if path is not None:
            yield path
    for part, inner in _parts(node, bound):
        yield from optional_reads(part, inner)


def _parts(node: Node, bound: Bound) -> Iterator[tuple[Node, Bound]]:
    """Yield the values that a node is made of, each with the names that are bound in it."""
    match node:
        case Const() | Ident():
            return
        case Select(operand=operand):
            yield operand, bound
        case FunctionCall(args=args):
            for arg in args[1:] if _is_namespace(args, bound) else args:
                yield arg, bound
        case Literal(parts=parts):
            for part in parts:
                yield part, bound
        case Loop(variables=variables):
            yield node.over, bound
            yield node.start, bound
            inner = {**bound, **dict.fromkeys(variables), node.result_name: None}
            over = _member_path(node.over, bound)
            if variables and over is not None:
                inner[variables[-1]] = (*over, ITEM)  # the first of two variables is the index
            for part in (node.condition, node.step, node.result):
                yield part, inner


def _member_path(node: Node, bound: Bound) -> Path | None:
    """Return the path of a value that is read from outside; None for any other."""
    match node:
        case Ident(name=name):
            return bound.get(name, None if name in TYPES else (name,))
        case Select(operand=operand, field=field):
            path = _member_path(operand, bound)
            return None if path is None else (*path, field)
        case FunctionCall(function="_[_]" | "_[?_]", args=(operand, _)):
            path = _member_path(operand, bound)
            return None if path is None else (*path, ITEM)
        case _:
            return None


def path_of(node: Node) -> Path | None:
    """Return the path of a name, or of members of members of a name; None for other nodes."""
    match node:
        case Ident(name=name):
            return (name,)
        case Select(operand=operand, field=field):
            path = path_of(operand)
            return None if path is None else (*path, field)
        case _:
            return None


def is_plain_path(node: Node) -> bool:
    match node:
        case Ident(name=name):
            return name not in TYPES
        case Select(operand=operand, strict=strict):
            return strict and is_plain_path(operand)
        case _:
            return False


def _is_namespace(args: tuple[Node, ...], bound: Container[str]) -> bool:
    """Return whether a call looks like `math.ceil(…)`, whose first part is not a value."""
    match args:
        case (Ident(name=name), *_):
            return name in NAMESPACES and name not in bound
        case _:
            return False


class _Message:
    """Fields of one protobuf message."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[Any]] = {}
        at = 0
        while at < len(data):
            tag, at = _varint(data, at)
            value, at = _value(data, at, tag & 7)
            self.fields.setdefault(tag >> 3, []).append(value)

    def bytes(self, number: int) -> bytes:
        found: bytes = self.fields.get(number, [b""])[0]
        return found

    def text(self, number: int) -> str:
        return self.bytes(number).decode()

    def nodes(self, number: int) -> tuple[Node, ...]:
        return tuple(_node(data) for data in self.fields.get(number, ()))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _value(data: bytes, at: int, wire_type: int) -> tuple[Any, int]:
    if wire_type == 0:
        return _varint(data, at)
    if wire_type == 1:
        return data[at : at + 8], at + 8
    if wire_type == 2:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    return data[at : at + 4], at + 4


def _node(data: bytes) -> Node:
    expr = _Message(data)
    for number, read in _KINDS.items():
        if number in expr.fields:
            return read(_Message(expr.bytes(number)))
    return Const(None)


def _const(message: _Message) -> Node:
    """Read a constant: only texts and bytes matter, for their length and as keys; others are all small."""
    return Const(message.text(6) if 6 in message.fields else message.bytes(7) if 7 in message.fields else None)


def _ident(message: _Message) -> Node:
    return Ident(message.text(1).removeprefix("."))


def _select(message: _Message) -> Node:
    return Select(_node(message.bytes(1)), message.text(2), strict=3 not in message.fields)


def _call(message: _Message) -> Node:
    function, args = message.text(2), (*message.nodes(1), *message.nodes(3))
    match args:
        case (operand, Const(value=str() as key)) if function in _KEYED:
            return Select(operand, key, _KEYED[function])
        case _:
            return FunctionCall(function, args)


def _list(message: _Message) -> Node:
    parts = message.nodes(1)
    return Literal(parts, len(parts))


def _struct(message: _Message) -> Node:
    entries = [_Message(data) for data in message.fields.get(2, ())]
    return Literal(tuple(part for entry in entries for number in (3, 4) for part in entry.nodes(number)), len(entries))


def _loop(message: _Message) -> Node:
    variables = tuple(message.text(number) for number in (1, 8) if number in message.fields)
    over, start, condition, step, result = (_node(message.bytes(number)) for number in (2, 4, 5, 6, 7))
    return Loop(variables, over, message.text(3), start, condition, step, result)


_KINDS = {3: _const, 4: _ident, 5: _select, 6: _call, 7: _list, 8: _struct, 9: _loop}
