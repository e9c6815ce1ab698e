"""Shared cache of full caps, asked before the ledger so that most refusals need no commit."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from lucius.core.model.inputs import Cap

MARK_SECONDS = 1.0


class AdmissionCache(Protocol):
    """Marks of caps that the ledger found full, shared by all replicas. Only a hint: the ledger decides.

    A mark expires after MARK_SECONDS. One that can't be read, or not at once, counts as absent.
    """

    async def full(self, caps: Sequence[Cap]) -> Cap | None:
        """Return the first of these caps that is marked, if any.

        A mark made for a lower limit says nothing about a higher one.
        """

    def mark(self, cap: Cap) -> None:
        """Mark a cap after the ledger refused a job over it. Returns at once; the mark follows if it can be written."""

    def unmark(self, counters: Iterable[str]) -> None:
        """Remove the marks of counters that have room again. Returns at once, as `mark` does."""

    async def run_once(self) -> None:
        """Send the queued queries and marks to the shared store once; called in an endless loop."""

    async def close(self) -> None: ...
