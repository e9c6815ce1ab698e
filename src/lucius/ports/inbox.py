"""What was heard about jobs and has yet to become part of their histories."""

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from lucius.core.model import Instant


class Letter(Struct, frozen=True):
    """`letter_id` is the job's, a slash, and what it is about, so that the same thing heard twice is one letter. `body`
    is for the engine."""

    letter_id: str
    job_id: str
    body: str
    at: Instant


class Inbox(Protocol):
    """Beside the versions of jobs: putting something in never waits for who changes the job."""

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        """Durably; which of them were not there before."""

    async def throw_away(self, letter_ids: Collection[str], *, lazily: bool = False) -> None:
        """They are in the histories, or were never true. If `lazily`, a crash may bring them back."""

    async def unread(self, before: Instant, limit: int, after: Letter | None = None) -> list[Letter]:
        """Those that came before then, the oldest first, behind the one that was read last."""

    async def letters(self, letter_ids: Collection[str]) -> list[Letter]:
        """Those of them that are still there, in this order, each once."""

    def announce(self, letter_ids: Collection[str]) -> None:
        """To other processes, which may then read them: that their workflows will hear of them. It may get lost."""
