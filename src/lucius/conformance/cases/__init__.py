"""The demands on a service: each an id, a sentence, and a function that plays it and raises what it found wrong.

A function gets a Stage of its own and returns what it saw, in a few words. Most use slow steps: see `evidence`.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from lucius.conformance.model import DOCS
from lucius.conformance.stage import Stage

Play = Callable[[Stage], Awaitable[str]]


class Case(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    play: Play
    seconds: float
    """About how long it takes: the longest are started first."""
    mostly_waits: bool = False
    """Takes nobody's place while it does."""
    about_pulls: bool = False
    """Over HTTP, so that there is nothing to see of it where a broker is asked."""

    @property
    def read(self) -> str:
        return f"{DOCS}#{self.id}"


def all_cases() -> list[Case]:
    """In the order in which they are shown."""
    from lucius.conformance.cases import (  # noqa: PLC0415 - they import Case from here
        basics,
        duplicates,
        failures,
        fencing,
        hostile,
        manners,
        outages,
        stopping,
    )

    modules = (basics, duplicates, failures, fencing, hostile, outages, stopping, manners)
    return [case for module in modules for case in module.CASES]
