"""Durable inbox of messages that are not yet part of their jobs' histories."""

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from lucius.core.model.records import Instant


class InboxMessage(Struct, frozen=True):
    """A message for a job's workflow; `body` is for the engine.

    `message_id` is the job's id, a slash and a digest of the content, so that a repeated message has the same id.
    """

    message_id: str
    job_id: str
    body: str
    at: Instant


class Inbox(Protocol):
    """Stores messages apart from the versions of jobs: `put` never waits for a change of the job."""

    async def put(self, messages: Sequence[InboxMessage]) -> list[bool]:
        """Store messages durably; return for each if it was new."""

    async def delete(self, message_ids: Collection[str], *, lazily: bool = False) -> None:
        """Delete messages that are in the histories or must not be applied.

        If `lazily`, a crash may bring them back.
        """

    async def list_pending(self, before: Instant, limit: int, after: InboxMessage | None = None) -> list[InboxMessage]:
        """Return messages older than `before`, oldest first, that come after the one that was read last."""

    async def get_many(self, message_ids: Collection[str]) -> list[InboxMessage]:
        """Return those of these messages that are still stored, in this order, each once."""

    def announce(self, message_ids: Collection[str]) -> None:
        """Notify other processes of messages that will reach their workflows, so that they can read them.

        The notification may be lost.
        """
