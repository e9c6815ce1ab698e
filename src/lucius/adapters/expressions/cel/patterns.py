"""Estimates the work of a regular expression per character of text.

The engine's time is linear in the text. A small pattern is run by an automaton that looks at each byte once; one with
many positions by following all of them at the same time.
"""

import re
from functools import lru_cache

MAX_POSITIONS_WORK = 600_000.0
"""More than the largest accepted pattern was measured to need, in units of 10 ns."""

_MAX_AUTOMATON = 10  # positions, whose sets are few enough for an automaton
_MAX_PATTERN_CHARS = 4096
_UNIT = 2  # following one position is about 20 ns
_UNICODE_CLASS = 200  # byte ranges of a class such as \p{L}
_OTHER_CLASS = 4  # a class with characters of several bytes, at most four

_TOKEN = re.compile(
    r"""
    (?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:?))?)
    | (?P<close>\))
    | (?P<count>\{(?P<least>\d+)(?P<comma>,)?(?P<most>\d*)\})
    | (?P<repeat>[*+?])
    | (?P<bar>\|)
    | (?P<atom>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\\x\{\w+\}|\\[pP](?:\{[^}]*\}|.)|\\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache(1024)
def positions_work(pattern: str) -> float:
    """Return the work for one character of a text, where 1 is copying it."""
    if len(pattern) > _MAX_PATTERN_CHARS or r"\Q" in pattern:
        return MAX_POSITIONS_WORK
    size = _Size()
    for token in _TOKEN.finditer(pattern):
        size.read(token)
    atoms, weight = size.total()
    return 1.0 if atoms <= _MAX_AUTOMATON else min(_UNIT * weight, MAX_POSITIONS_WORK)


class _Size:
    """Adds up positions and their weights, group by group."""

    def __init__(self) -> None:
        self._groups: list[list[float]] = [[0.0, 0.0]]
        self._last = (0.0, 0.0)

    def total(self) -> tuple[float, float]:
        return sum(group[0] for group in self._groups), sum(group[1] for group in self._groups)

    def read(self, token: re.Match[str]) -> None:
        match token.lastgroup:
            case "open":
                self._groups.append([0.0, 1.0])
            case "close" if len(self._groups) > 1:
                atoms, weight = self._groups.pop()
                self._add(atoms, weight)
            case "count":
                times = max(int(token["least"][:9]) + bool(token["comma"]), int(token["most"][:9] or 0), 1)
                self._repeat(times, times)
            case "repeat":
                self._repeat(1, 1)
            case "bar":
                self._groups[-1][1] += 1
            case _:
                self._add(1, _weight(token[0]))

    def _add(self, atoms: float, weight: float) -> None:
        self._groups[-1][0] += atoms
        self._groups[-1][1] += weight
        self._last = atoms, weight

    def _repeat(self, times: int, branches: int) -> None:
        atoms, weight = self._last
        self._add((times - 1) * atoms, (times - 1) * weight + branches)
        self._last = times * atoms, times * weight + branches


def _weight(atom: str) -> float:
    """Weigh one character or class."""
    unicode_classes = len(re.findall(r"\\[pP]", atom))
    if unicode_classes:
        return unicode_classes * _UNICODE_CLASS
    if atom == "." or atom.startswith("[^") or atom in (r"\W", r"\D", r"\S"):
        return _OTHER_CLASS
    if atom.startswith("["):
        return 1 if atom.isascii() and not re.search(r"\\[xWDS]|\[:\^", atom) else _OTHER_CLASS * len(atom)
    return _OTHER_CLASS if atom.startswith(r"\x") else len(atom.encode(errors="replace"))
