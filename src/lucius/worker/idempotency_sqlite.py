"""Idempotency store for a service's processes on one host, in the journal's file: the default.

A claim lasts as long as the process that made it, which is known from its lock: it is free as soon as that process
dies, and not before, even if its event loop is blocked for long. An attempt that was begun and not finished cannot be
claimed: the process that adopts the dead one's journal rows reports it as interrupted.
"""

import sqlite3
from collections.abc import Sequence

import msgspec

from lucius.worker.idempotency import NEW, RUNNING, AttemptKey, ClaimOutcome, Finished
from lucius.worker.journal import Journal

_CLAIM = "INSERT INTO attempts (key, holder) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_FIND = "SELECT owner, holder, finished, result FROM attempts WHERE key = ?"
_CLAIM_AGAIN = "UPDATE attempts SET holder = ?, finished = NULL, result = NULL WHERE key = ?"
_RENEW = """
    INSERT INTO attempts (key, holder) VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET holder = ?2 WHERE result IS NULL AND holder IS NULL
"""
_RELEASE = "UPDATE attempts SET holder = NULL WHERE key = ? AND holder = ?"
_DELETE_DROPPED = "DELETE FROM attempts WHERE key = ? AND holder IS NULL AND owner IS NULL AND result IS NULL"

_encode = msgspec.json.Encoder().encode


class SqliteIdempotency:
    """Idempotency store on the journal's connection; does not close the journal."""

    def __init__(self, journal: Journal) -> None:
        journal.keeps_results = True
        self._journal = journal
        self._file = journal.file

    async def claim(self, keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
        encoded = [_encode(key) for key in keys]
        return self._journal.write(lambda connection: [self._claim(connection, key) for key in encoded])

    async def renew(self, keys: Sequence[AttemptKey], seconds: float) -> None:
        rows = [(_encode(key), self._file.owner) for key in keys]
        self._journal.write(lambda connection: connection.executemany(_RENEW, rows))

    async def finish(self, key: AttemptKey, result: bytes) -> bytes:
        if self._journal.has_result(key):  # the runtime has already spooled it
            return result
        return self._journal.record_result(key, result)

    async def release(self, key: AttemptKey) -> None:
        encoded = _encode(key)

        def act(connection: sqlite3.Connection) -> None:
            connection.execute(_RELEASE, (encoded, self._file.owner))
            connection.execute(_DELETE_DROPPED, (encoded,))

        self._journal.write(act)

    async def close(self) -> None:
        pass

    def _claim(self, connection: sqlite3.Connection, key: bytes) -> ClaimOutcome:
        us = self._file.owner
        if connection.execute(_CLAIM, (key, us)).rowcount:
            return NEW
        owner, holder, finished, result = connection.execute(_FIND, (key,)).fetchone()
        if result is not None and (owner or finished + self._journal.retention > self._journal.wall()):
            return Finished(result)
        if result is None and (owner or (holder and not self._file.is_dead(holder))):
            return RUNNING
        connection.execute(_CLAIM_AGAIN, (us, key))
        return NEW
