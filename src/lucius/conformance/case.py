"""A conformance case: an id, a title, and a function that plays it and raises a Verdict if it did not pass.

The function gets a CaseEnv of its own and returns a short description of what it saw.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from lucius.conformance.case_env import CaseEnv
from lucius.conformance.model import DOCS

Play = Callable[[CaseEnv], Awaitable[str]]


class Case(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    play: Play
    seconds: float
    """Approximate duration: the longest cases are started first."""
    mostly_waits: bool = False
    """True if it mostly waits: it does not count towards the concurrent cases."""
    about_pulls: bool = False
    """True if it is about pulls over HTTP: skipped on other buses."""

    @property
    def read(self) -> str:
        return f"{DOCS}#{self.id}"
