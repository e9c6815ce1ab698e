"""How much work a JSON Schema can be, found before it is used: nobody's schema may keep the process busy.

A validator goes through every branch of `anyOf` and the like at every part of a value, and a few `$ref`s can make
that exponential. So it is counted, from above, how many subschemas can look at one part of any value. `$ref` is
followed; members of different names are different parts; a schema that goes round is followed as deep as values go.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

MAX_VISITS = 200
MAX_ERROR_WORK = 20_000
MAX_DEPTH = 100
MAX_EDGES = 20_000

_LISTS_HERE = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_MAPS_HERE = ("dependentSchemas", "dependencies")
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_MEMBERS = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_TWICE = ("unevaluatedProperties", "unevaluatedItems")  # these look once more at what is beside them

Node = dict[str, Any]


class TooMuchWork(Exception):
    """The message is for the schema's author."""


def visits(schema: Node) -> int:
    """How many subschemas can look at one part of a value. Raises TooMuchWork above MAX_VISITS."""
    return _Walk(schema).most()


def can_explain(looks: int | None, value: Any) -> bool:
    """Whether listing what is wrong with a value is little work; errors cost far more than the verdict does."""
    if looks is None:
        return False
    left, level = MAX_ERROR_WORK // max(looks, 1), [value]
    while level:
        left -= len(level)
        if left < 0:
            return False
        level = [part for item in level for part in _parts(item)]
    return True


def patterns(schema: Any) -> int:
    """How many regular expressions there are in it, at most."""
    count, level = 0, [schema]
    while level:
        for part in level:
            if isinstance(part, dict):
                count += isinstance(part.get("pattern"), str)
                count += len(_map(part.get("patternProperties")))
        level = [inner for part in level for inner in _parts(part)]
    return count


def _parts(value: Any) -> Iterator[Any]:
    match value:
        case dict():
            return iter(value.values())
        case list():
            return iter(value)
        case _:
            return iter(())


class _Descents:
    """Where a schema, with all that applies at the same place, goes on to: by member, by any member, by item."""

    def __init__(self) -> None:
        self.named: dict[str, Counter[int]] = {}
        self.members: Counter[int] = Counter()
        self.items: Counter[int] = Counter()


class _Walk:
    def __init__(self, root: Node) -> None:
        self._root = root
        self._nodes: dict[int, Node] = {}
        self._closures: dict[int, Counter[int]] = {}
        self._anchors: dict[str, Node] = {}
        self._edges = 0
        self._look_around()

    def most(self) -> int:
        """The largest count over all depths: what one level costs follows from the level below it."""
        below = self._reach()
        at = {key: self._closures[key].total() for key in below}
        most = max(at.values())
        for _ in range(MAX_DEPTH):
            at = {key: _deepest(descents, at) for key, descents in below.items()}
            most = max(most, *at.values())
            _require(most)
            if not any(at.values()):
                break
        return most

    def _reach(self) -> dict[int, _Descents]:
        found: dict[int, _Descents] = {}
        waiting = [self._known(self._root)]
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
            group[self._known(child)] += times
            self._edges += 1
            if self._edges > MAX_EDGES:
                raise TooMuchWork("it has too many parts")

    def _closure(self, key: int, around: tuple[int, ...]) -> Counter[int]:
        """All that looks at the same part of a value, and how often."""
        if key in around:
            raise TooMuchWork("a $ref leads back to itself without going deeper into the value")
        if key in self._closures:
            return self._closures[key]
        if len(around) >= MAX_VISITS:
            raise TooMuchWork(_MESSAGE)
        node, closure = self._nodes[key], Counter({key: 1})
        times = 2 if any(name in node for name in _TWICE) else 1
        for child in self._here(node):
            for inner, count in self._closure(self._known(child), (*around, key)).items():
                closure[inner] += count * times
            _require(closure.total())
        self._closures[key] = closure
        return closure

    def _here(self, node: Node) -> Iterator[Node]:
        listed = [child for name in _LISTS_HERE for child in _list(node.get(name))]
        _require(len(listed))
        single = [node.get(name) for name in _HERE]
        mapped = [child for name in _MAPS_HERE for child in _map(node.get(name)).values()]
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
            raise TooMuchWork(f"a $ref must point into the same schema, as in #/$defs/name: {ref[:100]}")
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

    def _look_around(self) -> None:
        """Anchors; and no second base for references, so that each means here what it means to the validator."""
        own = ("$id", "id") if "draft-04" in str(self._root.get("$schema")) else ("$id",)
        level: list[Any] = [self._root]
        while level:
            for node in level:
                if not isinstance(node, dict):
                    continue
                if node is not self._root and any(isinstance(node.get(name), str) for name in own):
                    raise TooMuchWork("only the whole schema can have an $id")
                self._anchors |= {node[name]: node for name in _ANCHORS if isinstance(node.get(name), str)}
            level = [part for node in level for part in _parts(node)]

    def _known(self, node: Node) -> int:
        self._nodes[id(node)] = node
        return id(node)


_MESSAGE = (
    f"more than {MAX_VISITS} subschemas could look at one part of a value, by anyOf, oneOf, allOf and $ref inside"
    " each other; use fewer alternatives"
)


def _require(count: float) -> None:
    if count > MAX_VISITS:
        raise TooMuchWork(_MESSAGE)


def _deepest(descents: _Descents, below: dict[int, int]) -> int:
    anyhow = _sum(descents.members, below)
    named = max((_sum(group, below) for group in descents.named.values()), default=0)
    return max(anyhow + named, _sum(descents.items, below))


def _sum(group: Counter[int], below: dict[int, int]) -> int:
    return sum(count * below[key] for key, count in group.items())


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
