"""Inbox table: messages received for a job and not yet part of its history."""

from collections.abc import Collection, Sequence

from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.notify import PeerNotifier
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.records import Instant
from lucius.ports.inbox import InboxMessage

_SQL = load_statements(__package__, "inbox")
_PUT = _SQL["put"]
_DELETE = _SQL["delete"]
_DELETE_LAZILY = _SQL["delete_lazily"]
_PENDING = _SQL["pending"]
_GET_MANY = _SQL["get_many"]


class PostgresInbox:
    """Implements Inbox."""

    def __init__(self, database: Database, notifier: PeerNotifier) -> None:
        self._database = database
        self._notifier = notifier

    async def put(self, messages: Sequence[InboxMessage]) -> list[bool]:
        first_of_each = {message.message_id: message for message in reversed(messages)}
        in_order = [first_of_each[id_] for id_ in sorted(first_of_each)]  # one lock order, so inserts can't deadlock
        columns = [[getattr(message, name) for message in in_order] for name in ("message_id", "job_id", "at", "body")]
        async with self._database.connection() as connection:
            new = {row["message_id"] for row in await connection.fetch(_PUT, *columns)}
        return [one.message_id in new and first_of_each[one.message_id] is one for one in messages]

    async def delete(self, message_ids: Collection[str], *, lazily: bool = False) -> None:
        if message_ids:
            async with self._database.connection() as connection:
                await connection.execute(_DELETE_LAZILY if lazily else _DELETE, list(message_ids))

    async def list_pending(self, before: Instant, limit: int, after: InboxMessage | None = None) -> list[InboxMessage]:
        position = (after.at, after.message_id) if after is not None else (-1, "")
        return [InboxMessage(**row) for row in await self._database.fetch_rows(_PENDING, before, *position, limit)]

    async def get_many(self, message_ids: Collection[str]) -> list[InboxMessage]:
        wanted = list(dict.fromkeys(message_ids))
        found = {row["message_id"]: InboxMessage(**row) for row in await self._database.fetch_rows(_GET_MANY, wanted)}
        return [found[message_id] for message_id in wanted if message_id in found]

    def announce(self, message_ids: Collection[str]) -> None:
        self._notifier.publish_inbox_ids(message_ids)
