"""An expression as the CEL library parsed it, and which values it reads.

The library gives its syntax tree as a serialised `cel.expr.ParsedExpr`. The few messages that make one up are read
here from the wire format, which needs no protobuf package and none of its generated code.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

Path = tuple[str, ...]

NAMESPACES = frozenset({"math", "strings", "optional"})
TYPES = frozenset(
    {"bool", "bytes", "double", "dyn", "google", "int", "list", "map", "null_type", "optional_type", "string", "type"}
    | {"uint"}
)
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


class Call(Struct, frozen=True):
    """A function or an operator. The value that a method is called on is its first argument."""

    function: str
    args: "tuple[Node, ...]"


class Literal(Struct, frozen=True):
    """A list, a map, or a message: what it is made of. `items` counts list items or map entries."""

    parts: "tuple[Node, ...]"
    items: int


class Loop(Struct, frozen=True):
    """What `map`, `filter`, `exists` and their like are made into."""

    variables: tuple[str, ...]
    over: "Node"
    result_name: str
    start: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Node = Const | Ident | Select | Call | Literal | Loop


def read_tree(serialised: bytes) -> Node:
    """The tree in a serialised expression, as `Expression.serialize` gives it without type check."""
    parsed = _Message(_Message(serialised).bytes(2))
    return _node(parsed.bytes(2))


def reads(node: Node, bound: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The paths of everything an expression reads from outside: `input.a.b > 1` reads ("input", "a", "b")."""
    match node:
        case Const():
            return
        case Ident() | Select():
            path = path_of(node)
            if path is None and isinstance(node, Select):
                yield from reads(node.operand, bound)
            elif path is not None and path[0] not in bound and path[0] not in TYPES:
                yield path
        case Call(args=args):
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


def path_of(node: Node) -> Path | None:
    """The path if the node is a name, or members of members of a name."""
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


def _is_namespace(args: tuple[Node, ...], bound: frozenset[str]) -> bool:
    """Whether a call looks like `math.ceil(…)`, whose first part is no value."""
    match args:
        case (Ident(name=name), *_):
            return name in NAMESPACES and name not in bound
        case _:
            return False


class _Message:
    """The fields of one protobuf message."""

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
    """Only text matters here, for its length and as a key; every other constant is as small as the next."""
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
            return Call(function, args)


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
