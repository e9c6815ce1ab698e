"""What was heard about jobs and has yet to become part of their histories."""

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from lucius.core.model import Instant


class Letter(Struct, frozen=True):
    """`letter_id` says what it is about, so that the same thing heard twice is one letter. `body` is for the engine."""

    letter_id: str
    job_id: str
    body: str
    at: Instant


class Inbox(Protocol):
    """Beside the versions of jobs: putting something in never waits for who changes the job."""

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        """Durably; which of them were not there before."""

    async def throw_away(self, letter_ids: Collection[str]) -> None:
        """They are in the histories, or were never true."""

    async def unread(self, before: Instant, limit: int, after: Letter | None = None) -> list[Letter]:
        """Those that came before then, the oldest first, behind the one that was read last."""
