"""Idempotency shared by the processes of a service on one host, in the journal's file: the default.

A claim of a process that died is free at once.
"""

import sqlite3
from collections.abc import Sequence

import msgspec

from lucius.worker.idempotency import NEW, RUNNING, Finished, Key, Standing
from lucius.worker.journal import Journal

_CLAIM = "INSERT INTO attempts (key, holder, until) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_FIND = "SELECT owner, holder, until, finished, result FROM attempts WHERE key = ?"
_CLAIM_AGAIN = "UPDATE attempts SET holder = ?, until = ?, finished = NULL, result = NULL WHERE key = ?"
_RENEW = """
    INSERT INTO attempts (key, holder, until) VALUES (?1, ?2, ?3)
    ON CONFLICT (key) DO UPDATE SET holder = ?2, until = ?3
    WHERE result IS NULL AND (holder IS NULL OR holder = ?2 OR until <= ?4)
"""
_RELEASE = "UPDATE attempts SET holder = NULL, until = NULL WHERE key = ? AND holder = ?"
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
        until = self._journal.now() + seconds
        return self._journal.write(lambda connection: [self._claim(connection, key, until) for key in encoded])

    async def renew(self, keys: Sequence[Key], seconds: float) -> None:
        now = self._journal.now()
        rows = [(_encode(key), self._file.owner, now + seconds, now) for key in keys]
        self._journal.write(lambda connection: connection.executemany(_RENEW, rows))

    async def finish(self, key: Key, result: bytes) -> None:
        if not self._journal.has_result(key):  # it has, where a runtime has spooled the result first
            self._journal.record(key, result)

    async def release(self, key: Key) -> None:
        encoded = _encode(key)

        def act(connection: sqlite3.Connection) -> None:
            connection.execute(_RELEASE, (encoded, self._file.owner))
            connection.execute(_FORGET, (encoded,))

        self._journal.write(act)

    async def close(self) -> None:
        pass

    def _claim(self, connection: sqlite3.Connection, key: bytes, until: float) -> Standing:
        owner = self._file.owner
        if connection.execute(_CLAIM, (key, owner, until)).rowcount:
            return NEW
        waits_in, holder, held_until, finished, result = connection.execute(_FIND, (key,)).fetchone()
        if result is not None and (waits_in or finished + self._journal.retention > self._journal.wall()):
            return Finished(result)
        if (
            result is None
            and holder is not None
            and held_until > self._journal.now()
            and not self._file.is_dead(holder)
        ):
            return RUNNING
        connection.execute(_CLAIM_AGAIN, (owner, until, key))
        return NEW
