"""The known name that a mistyped one was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """To be put after a sentence that says that the name is unknown; empty if nothing comes near."""
    near = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
