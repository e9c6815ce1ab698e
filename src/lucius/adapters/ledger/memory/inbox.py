"""Inbox in a dictionary: messages that are not yet part of a job's history."""

from collections.abc import Collection, Sequence

from lucius.core.model.records import Instant
from lucius.ports.inbox import InboxMessage


class MemoryInbox:
    """Implements Inbox."""

    def __init__(self) -> None:
        self._messages: dict[str, InboxMessage] = {}

    async def put(self, messages: Sequence[InboxMessage]) -> list[bool]:
        return [self._messages.setdefault(message.message_id, message) is message for message in messages]

    async def delete(self, message_ids: Collection[str], *, lazily: bool = False) -> None:
        for message_id in message_ids:
            self._messages.pop(message_id, None)

    async def list_pending(self, before: Instant, limit: int, after: InboxMessage | None = None) -> list[InboxMessage]:
        position = (after.at, after.message_id) if after is not None else (-1, "")
        by_position = {(one.at, one.message_id): one for one in self._messages.values() if one.at < before}
        return [by_position[key] for key in sorted(by_position) if key > position][:limit]

    async def get_many(self, message_ids: Collection[str]) -> list[InboxMessage]:
        return [self._messages[message_id] for message_id in dict.fromkeys(message_ids) if message_id in self._messages]

    def announce(self, message_ids: Collection[str]) -> None:
        """Do nothing: there are no other processes."""
