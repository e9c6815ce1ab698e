"""Suggestions of a known name for a mistyped one."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], min_likeness: float = 0.6) -> str:
    """Return a suggestion to append to a message about an unknown name; empty if no known name is similar."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=min_likeness)
    return f"; did you mean {near[0]}?" if near else ""
