"""A quick answer before the ledger is asked: which caps it found full a moment ago, whichever replica asked it."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from lucius.core.inputs import Cap

MARK_SECONDS = 1.0


class Gate(Protocol):
    """Marks of caps that are full, shared by all replicas. Never the truth: that is the ledger's.

    A mark is gone after MARK_SECONDS, whatever happens. One that can't be read, or not at once, is not there.
    """

    async def full(self, caps: Sequence[Cap]) -> Cap | None:
        """The first of these that is marked. A mark made for a lower limit says nothing about a higher one."""

    def shut(self, cap: Cap) -> None:
        """The ledger refused one more job over this cap. Returns at once; the mark follows, if it can."""

    def reopen(self, counters: Iterable[str]) -> None:
        """There is room again. Returns at once, as `shut` does."""

    async def turn(self) -> None:
        """Carry over what was asked and said since the last turn; for a loop that never ends."""

    async def close(self) -> None: ...
