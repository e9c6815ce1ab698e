"""Estimates the validation cost of a JSON Schema, so that schemas which are too expensive can be refused.

A validator visits every branch of `anyOf` and the like for every part of a value, and a few `$ref`s can make that
exponential. The estimate is an upper bound of how many subschemas apply to one part of any value. `$ref` is followed;
members with different names are different parts; a recursive schema is followed as deep as values go.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

MAX_VISITS = 200  # subschemas that may apply to one part of a value
MAX_DEPTH = 100  # levels of a value
MAX_EDGES = 20_000  # links from a schema to subschemas for members and items
MAX_COMPARE_WORK = 10_000_000  # about half a second of comparisons, while the validator holds the GIL
MAX_INTEGER = 2**63 - 1
MAX_MATCH_WORK = 10_000_000_000  # bytes of compiled pattern times characters: about a second at the very worst

_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_MEMBERS = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_VISITING_TWICE = ("unevaluatedProperties", "unevaluatedItems")  # these visit sibling subschemas a second time

Node = dict[str, Any]


class SchemaTooExpensive(Exception):
    """Raised for a schema that is too expensive; the message is for its author."""


def visits(schema: Node) -> int:
    """Return how many subschemas can apply to one part of a value. Raises SchemaTooExpensive above MAX_VISITS."""
    return SchemaWalk(schema).visits


def patterns(schema: Any) -> list[str]:
    """List the regular expressions of a schema, possibly with false positives."""
    found: list[str] = []
    level = [schema]
    while level:
        for part in level:
            if isinstance(part, dict):
                found += _patterns_of(part)
        level = [inner for part in level for inner in _parts(part)]
    return found


class Cost(Struct, frozen=True):
    """Maximum work of a schema's expensive keywords for each part, and for each character, of a value."""

    per_part: int
    per_character: int


def cost_of(schema: Any, visit_count: int | None, pattern_bytes: Callable[[str], int]) -> Cost | None:
    """Return an upper bound of a schema's cost; None if it has no expensive keyword.

    Expensive are regular expressions, and comparisons that the validator makes one by one: with values of an
    `enum` that are not all strings or all integers, with fractions, and with the members of `dependentRequired`.
    """
    per_part = per_character = 0
    costs: dict[int, int] = {}
    for level in reversed(levels(schema)):
        for part in level:
            if isinstance(part, dict | list):
                costs[id(part)] = 8 + sum(_comparison_cost(inner, costs) for inner in _parts(part))
            if isinstance(part, dict):
                per_part = max(per_part, _compare_work(part, costs))
                per_character = max(per_character, sum(map(pattern_bytes, _patterns_of(part))))
    times = MAX_VISITS if visit_count is None else max(visit_count, 1)
    return Cost(per_part * times, per_character * times) if per_part or per_character else None


def has_costly_keyword(schema: Any) -> bool:
    """Return whether `cost_of` would not be None, without computing the cost."""
    return any(
        any(True for _ in _patterns_of(part)) or _compare_work(part, {}) > 0
        for level in levels(schema)
        for part in level
        if isinstance(part, dict)
    )


def levels(value: Any) -> list[list[Any]]:
    """List the parts of a value by depth: the value itself, then its members or items, then theirs."""
    found, level = [], [value]
    while level:
        found.append(level)
        level = parts_of(level)
    return found


def parts_of(level: list[Any]) -> list[Any]:
    """List the members and items of several values."""
    below: list[Any] = []
    for part in level:
        if isinstance(part, dict):
            below += part.values()
        elif isinstance(part, list):
            below += part
    return below


def is_affordable(cost: Cost | None, value: Any) -> bool:
    """Return whether a value is small enough for a schema's expensive keywords."""
    if cost is None:
        return True
    parts, characters, level = 0, 0, [value]
    while level:
        parts += len(level)
        characters += sum(map(_characters, level))
        if parts * cost.per_part > MAX_COMPARE_WORK or characters * cost.per_character > MAX_MATCH_WORK:
            return False
        level = [part for item in level for part in _parts(item)]
    return True


def _characters(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case dict():
            return sum(map(len, value))
        case _:
            return 0


def _patterns_of(node: Node) -> Iterator[str]:
    if isinstance(pattern := node.get("pattern"), str):
        yield pattern
    yield from _map(node.get("patternProperties"))


def _compare_work(node: Node, costs: dict[int, int]) -> int:
    """Return the work of comparing one subschema with one part of a value; one unit is about 50 ns.

    `costs` has the costs of lists and objects, by identity.
    """
    work = len(_map(node.get("dependentRequired"))) + len(_map(node.get("dependencies")))
    values = _list(node.get("enum"))
    if len({type(value) for value in values}) > 1 or not all(map(_is_hashed, values)):
        work += sum(_comparison_cost(value, costs) for value in values)
    if not _is_hashed(const := node.get("const", "")) and const is not None:
        work += _comparison_cost(const, costs)
    if isinstance(divisor := node.get("multipleOf"), float):
        work += 30 if abs(divisor) > 1e-20 else 500
    return work


def _is_hashed(value: Any) -> bool:
    """Return whether the validator looks a value up by hash instead of comparing: strings and 64-bit integers."""
    return isinstance(value, str) or (isinstance(value, int) and abs(value) <= MAX_INTEGER)


def _comparison_cost(value: Any, costs: dict[int, int]) -> int:
    match value:
        case float():
            return 80
        case dict() | list():
            return costs.get(id(value), 8)
        case int() if not _is_hashed(value):
            return 20
        case _:
            return 1


def _parts(value: Any) -> Iterator[Any]:
    match value:
        case dict():
            return iter(value.values())
        case list():
            return iter(value)
        case _:
            return iter(())


class _Descents:
    """Subschemas for the members and items of a value, of a schema and all that apply to the same value."""

    def __init__(self) -> None:
        self.named: dict[str, Counter[int]] = {}
        self.members: Counter[int] = Counter()
        self.items: Counter[int] = Counter()


class SchemaWalk:
    """Follows a schema to every subschema and counts `visits`. Raises SchemaTooExpensive above MAX_VISITS."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._nodes: dict[int, Node] = {}
        self._closures: dict[int, Counter[int]] = {}
        self._anchors: dict[str, Node] = {}
        self._edges = 0
        self._collect_anchors()
        self._below = self._descents_by_node()
        self.visits = self._max_visits()

    @property
    def root(self) -> Node:
        return self._root

    def _max_visits(self) -> int:
        """Return the largest number of visits over all depths."""
        at: dict[int, float] = {key: self._closures[key].total() for key in self._below}
        most = max(at.values())
        for _ in range(MAX_DEPTH):
            before, at = at, {key: _deepest(descents, at) for key, descents in self._below.items()}
            most = max(most, *at.values())
            _check_visits(most)
            if at == before:
                break
        return int(most)

    def cost_by_depth(self, cost_of_node: Callable[[Node], float]) -> tuple[float, ...]:
        """Sum the costs of all subschemas that can apply to one part of a value, for each depth.

        The last number holds for every greater depth too.
        """
        root = id(self._root)
        costs = {key: cost_of_node(node) for key, node in self._nodes.items()}
        at = {key: _sum(self._closures[key], costs) for key in self._below}
        by_depth = [at[root]]
        false_schemas = {key: float(_false_schemas(node)) for key, node in self._nodes.items()}
        false_schemas = {key: _sum(self._closures[key], false_schemas) for key in self._below}
        for _ in range(MAX_DEPTH):
            before, at = (
                at,
                {key: _deepest(below, at) + false_schemas.get(key, 0) for key, below in self._below.items()},
            )
            if at == before:
                return tuple(by_depth)
            by_depth.append(at[root])
            false_schemas = {}
        return (*by_depth, max(by_depth))

    def _descents_by_node(self) -> dict[int, _Descents]:
        found: dict[int, _Descents] = {}
        waiting = [self._register(self._root)]
        while waiting:
            key = waiting.pop()
            if key not in found:
                found[key] = descents = self._descents(key)
                for group in (descents.members, descents.items, *descents.named.values()):
                    waiting += group
        return found

    def _descents(self, key: int) -> _Descents:
        made = _Descents()
        for here, times in self._closure(key, ()).items():
            node = self._nodes[here]
            for name, child in _map(node.get("properties")).items():
                self._add(made.named.setdefault(name, Counter()), child, times)
            for child in (*_map(node.get("patternProperties")).values(), *(node.get(name) for name in _MEMBERS)):
                self._add(made.members, child, times)
            for name in _ITEMS:
                given = node.get(name)
                for child in given if isinstance(given, list) else (given,):
                    self._add(made.items, child, times)
        return made

    def _add(self, group: Counter[int], child: Any, times: int) -> None:
        if isinstance(child, dict):
            group[self._register(child)] += times
            self._edges += 1
            if self._edges > MAX_EDGES:
                raise SchemaTooExpensive("it has too many parts")

    def _closure(self, key: int, around: tuple[int, ...]) -> Counter[int]:
        """Count all subschemas that apply to the same part of a value, by identity."""
        if key in around:
            raise SchemaTooExpensive("a $ref leads back to itself without going deeper into the value")
        if key in self._closures:
            return self._closures[key]
        if len(around) >= MAX_VISITS:
            raise SchemaTooExpensive(_TOO_MANY_VISITS)
        node, closure = self._nodes[key], Counter({key: 1})
        times = 2 if any(name in node for name in _VISITING_TWICE) else 1
        for child in self._in_place_subschemas(node):
            for inner, count in self._closure(self._register(child), (*around, key)).items():
                closure[inner] += count * times
            _check_visits(closure.total())
        self._closures[key] = closure
        return closure

    def _in_place_subschemas(self, node: Node) -> Iterator[Node]:
        listed = [child for name in _IN_PLACE_LISTS for child in _list(node.get(name))]
        _check_visits(len(listed))
        single = [node.get(name) for name in _IN_PLACE]
        mapped = [child for name in _IN_PLACE_MAPS for child in _map(node.get(name)).values()]
        for child in (*listed, *single, *mapped):
            if isinstance(child, dict):
                yield child
        for name in _REFS:
            if isinstance(ref := node.get(name), str):
                target = self._target(ref)
                if isinstance(target, dict):
                    yield target

    def _target(self, ref: str) -> Any:
        if not ref.startswith("#"):
            raise SchemaTooExpensive(f"a $ref must point into the same schema, as in #/$defs/name: {ref[:100]}")
        if ref != "#" and not ref.startswith("#/"):
            return self._anchors.get(ref[1:])
        at: Any = self._root
        for part in ref[2:].split("/") if ref != "#" else ():
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, list):
                at = at[int(key)] if key.isdecimal() and int(key) < len(at) else None
            else:
                at = _map(at).get(key)
        return at

    def _collect_anchors(self) -> None:
        """Collect anchors; refuse a nested $id, which would change what references resolve to."""
        own = ("$id", "id") if "draft-04" in str(self._root.get("$schema")) else ("$id",)
        level: list[Any] = [self._root]
        while level:
            for node in level:
                if not isinstance(node, dict):
                    continue
                if node is not self._root and any(isinstance(node.get(name), str) for name in own):
                    raise SchemaTooExpensive("only the whole schema can have an $id")
                self._anchors |= {node[name]: node for name in _ANCHORS if isinstance(node.get(name), str)}
            level = [part for node in level for part in _parts(node)]

    def _register(self, node: Node) -> int:
        self._nodes[id(node)] = node
        return id(node)


_TOO_MANY_VISITS = (
    f"more than {MAX_VISITS} subschemas could look at one part of a value, by anyOf, oneOf, allOf and $ref inside"
    " each other; use fewer alternatives"
)


def _check_visits(count: float) -> None:
    if count > MAX_VISITS:
        raise SchemaTooExpensive(_TOO_MANY_VISITS)


def _deepest(descents: _Descents, below: dict[int, float]) -> float:
    anyhow = _sum(descents.members, below)
    named = max((_sum(group, below) for group in descents.named.values()), default=0.0)
    return max(anyhow + named, _sum(descents.items, below))


def _false_schemas(node: Node) -> int:
    """Count the `false` schemas that can apply to one member or item; each costs 1."""
    named = any(child is False for child in _map(node.get("properties")).values())
    mapped = sum(child is False for child in _map(node.get("patternProperties")).values())
    single = sum(node.get(name) is False for name in (*_MEMBERS, *_ITEMS))
    return named + mapped + single + any(child is False for child in _list(node.get("prefixItems")))


def _sum(group: Counter[int], below: dict[int, float]) -> float:
    return sum(count * below[key] for key, count in group.items())


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
