"""Idempotency shared by the processes of a service on one host, in the journal's file: the default.

A claim lasts as long as the process that made it lives, which is known from its lock: it is free at once when that
died, and not before, however long its loop may be blocked. What was begun and not finished is nobody's to claim:
whoever takes over the journal of the dead reports that it was cut off.
"""

import sqlite3
from collections.abc import Sequence

import msgspec

from lucius.worker.idempotency import NEW, RUNNING, Finished, Key, Standing
from lucius.worker.journal import Journal

_CLAIM = "INSERT INTO attempts (key, holder) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_FIND = "SELECT owner, holder, finished, result FROM attempts WHERE key = ?"
_CLAIM_AGAIN = "UPDATE attempts SET holder = ?, finished = NULL, result = NULL WHERE key = ?"
_RENEW = """
    INSERT INTO attempts (key, holder) VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET holder = ?2 WHERE result IS NULL AND holder IS NULL
"""
_RELEASE = "UPDATE attempts SET holder = NULL WHERE key = ? AND holder = ?"
_FORGET = "DELETE FROM attempts WHERE key = ? AND holder IS NULL AND owner IS NULL AND result IS NULL"

_encode = msgspec.json.Encoder().encode


class SqliteIdempotency:
    """Uses the journal's connection; the journal is closed by whoever opened it."""

    def __init__(self, journal: Journal) -> None:
        journal.remembers = True
        self._journal = journal
        self._file = journal.file

    async def claim(self, keys: Sequence[Key], seconds: float) -> list[Standing]:
        encoded = [_encode(key) for key in keys]
        return self._journal.write(lambda connection: [self._claim(connection, key) for key in encoded])

    async def renew(self, keys: Sequence[Key], seconds: float) -> None:
        rows = [(_encode(key), self._file.owner) for key in keys]
        self._journal.write(lambda connection: connection.executemany(_RENEW, rows))

    async def finish(self, key: Key, result: bytes) -> bytes:
        if self._journal.has_result(key):  # it has, where a runtime has spooled the result first
            return result
        return self._journal.record(key, result)

    async def release(self, key: Key) -> None:
        encoded = _encode(key)

        def act(connection: sqlite3.Connection) -> None:
            connection.execute(_RELEASE, (encoded, self._file.owner))
            connection.execute(_FORGET, (encoded,))

        self._journal.write(act)

    async def close(self) -> None:
        pass

    def _claim(self, connection: sqlite3.Connection, key: bytes) -> Standing:
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
