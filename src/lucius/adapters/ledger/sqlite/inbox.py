"""Inbox: messages that are not yet part of a job's history."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.inbox_queue import InboxQueue
from lucius.core.model.records import Instant
from lucius.ports.errors import LedgerError
from lucius.ports.inbox import InboxMessage

_SQL = load_statements(__package__, "inbox")
_KNOWN = _SQL["known"]
_PENDING = _SQL["pending"]
_BY_ID = _SQL["by_id"]
MAX_LAZY_DELETES = 1_000


class SqliteInbox:
    """Implements Inbox. `schedule` schedules a write at the end of this turn of the loop."""

    def __init__(
        self, file: SqliteFile, queue: InboxQueue, schedule: Callable[[asyncio.AbstractEventLoop], None]
    ) -> None:
        self._file = file
        self._queue = queue
        self._schedule = schedule

    async def put(self, messages: Sequence[InboxMessage]) -> list[bool]:
        new: dict[str, InboxMessage] = {}
        for message in messages:
            if self._is_new(message.message_id):
                new.setdefault(message.message_id, message)
        if new:
            self._queue.insert(list(new.values()))
            self._schedule(asyncio.get_running_loop())
        for written in self._queue.pending_writes(message.message_id for message in messages):
            await asyncio.shield(written)
        return [new.get(message.message_id) is message for message in messages]

    def _is_new(self, message_id: str) -> bool:
        if self._queue.is_queued(message_id):
            return False
        return self._queue.is_deleted(message_id) or self._file.fetch_row(_KNOWN, (message_id,)) is None

    async def delete(self, message_ids: Collection[str], *, lazily: bool = False) -> None:
        self._queue.delete(message_ids)
        if not lazily or self._queue.deletions > MAX_LAZY_DELETES:
            self._queue.write_with(())

    async def list_pending(self, before: Instant, limit: int, after: InboxMessage | None = None) -> list[InboxMessage]:
        position = (after.at, after.message_id) if after is not None else (-1, "")
        with suppress(LedgerError):  # reads work even if writes fail
            self._queue.write_with(())
        found = self._file.fetch_rows(_PENDING, (before, *position, limit + self._queue.deletions))
        messages = (InboxMessage(*row) for row in found)
        return [message for message in messages if not self._queue.is_deleted(message.message_id)][:limit]

    async def get_many(self, message_ids: Collection[str]) -> list[InboxMessage]:
        wanted = (message_id for message_id in dict.fromkeys(message_ids) if not self._queue.is_deleted(message_id))
        found = (self._file.fetch_row(_BY_ID, (message_id,)) for message_id in wanted)
        return [InboxMessage(*row) for row in found if row is not None]

    def announce(self, message_ids: Collection[str]) -> None:
        """Do nothing: there are no other processes."""
