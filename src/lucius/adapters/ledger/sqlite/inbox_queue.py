"""Messages of the inbox that the next write inserts or deletes.

Messages become durable together with all decisions of the same turn of the event loop: a flush for each of them would
block the loop longer than anything else does.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from lucius.adapters.ledger.group_commit import set_outcome
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import Row, SqliteFile, Write
from lucius.ports.errors import LedgerBusy
from lucius.ports.inbox import InboxMessage

_SQL = load_statements(__package__, "inbox_queue")
_PUT = _SQL["put"]
_DELETE = _SQL["delete"]


class _Insertion(Struct, frozen=True, eq=False):
    """Messages that are inserted together or not at all."""

    messages: Sequence[InboxMessage]
    written: asyncio.Future[None]

    @property
    def rows(self) -> list[Row]:
        return [(message.message_id, message.job_id, message.at, message.body) for message in self.messages]


class InboxQueue:
    """Queued insertions and deletions, which every write of the ledger includes."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._deleted_ids: dict[str, None] = {}
        """Ids of messages that the next write deletes."""
        self._queued: dict[str, _Insertion] = {}
        """Messages that the next write inserts, by id."""

    def insert(self, messages: Sequence[InboxMessage]) -> None:
        """Queue messages that are inserted together or not at all."""
        insertion = _Insertion(messages, asyncio.get_running_loop().create_future())
        insertion.written.add_done_callback(lambda done: done.exception())  # all callers may have been cancelled
        self._queued |= {message.message_id: insertion for message in messages}

    def pending_writes(self, message_ids: Iterable[str]) -> list[asyncio.Future[None]]:
        """Return the outcomes of those of these messages that are queued."""
        return [self._queued[message_id].written for message_id in message_ids if message_id in self._queued]

    def is_queued(self, message_id: str) -> bool:
        return message_id in self._queued

    def is_deleted(self, message_id: str) -> bool:
        return message_id in self._deleted_ids

    @property
    def deletions(self) -> int:
        """Number of messages that the next write deletes."""
        return len(self._deleted_ids)

    def delete(self, message_ids: Collection[str]) -> None:
        """Queue deletions."""
        if not self._queued.keys().isdisjoint(message_ids):
            self.write_queued_messages()  # a write deletes before it inserts
        self._deleted_ids |= dict.fromkeys(message_ids)

    def write_with(self, writes: Sequence[Write]) -> None:
        """Write, together with queued deletions and insertions; without the insertions if these fail."""
        insertions = self._insertions()
        try:
            self._write(writes, insertions)
        except LedgerBusy as busy:  # callers that have waited once need not wait again
            for insertion in insertions:
                self._resolve(insertion, busy)
            raise
        except Exception:
            if not insertions:
                raise
            self._write(writes, ())

    def write_queued_messages(self) -> None:
        """Write messages that no other write included; if need be one by one, so that each fails alone."""
        insertions = self._insertions()
        refusal = self._refusal(insertions) if insertions else None
        if refusal is None:
            return
        apart = len(insertions) > 1 and not isinstance(refusal, LedgerBusy)
        for insertion in insertions:
            error = self._refusal([insertion]) if apart else refusal
            if error is not None:
                self._resolve(insertion, error)

    def _refusal(self, insertions: Sequence[_Insertion]) -> Exception | None:
        try:
            self._write((), insertions)
        except Exception as error:  # noqa: BLE001 - the waiting callers get every error
            return error
        return None

    def _write(self, writes: Sequence[Write], insertions: Sequence[_Insertion]) -> None:
        deleted_ids = list(self._deleted_ids)
        deleted: Write = (_DELETE, [(message_id,) for message_id in deleted_ids])
        put: Write = (_PUT, [row for insertion in insertions for row in insertion.rows])
        if deleted_ids or writes or insertions:
            self._file.write([*([deleted] if deleted_ids else ()), *writes, *([put] if insertions else ())])
        for message_id in deleted_ids:
            self._deleted_ids.pop(message_id, None)
        for insertion in insertions:
            self._resolve(insertion, None)

    def _insertions(self) -> list[_Insertion]:
        return list(dict.fromkeys(self._queued.values()))

    def _resolve(self, insertion: _Insertion, refusal: Exception | None) -> None:
        for message in insertion.messages:
            self._queued.pop(message.message_id, None)
        set_outcome(insertion.written, refusal)
