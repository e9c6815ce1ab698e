"""What this process has begun and finished and not yet delivered, on local disk: it survives kill -9.

A RESULT is committed here before it is sent, and its row dropped once it was delivered, refused or fenced. The file
is shared by the processes of a service on one host; rows of a process that died go to the next that asks.

Methods are synchronous: a commit costs some 20 µs and does not wait for the disk. After a power cut the last ones may
be missing, unless `sync` was asked for; the contract allows for an attempt that runs twice.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import structlog

from lucius.contract import Directive
from lucius.worker.idempotency import CAPACITY, RETENTION_SECONDS, Key, StoreDown, key_of
from lucius.worker.state_file import StateFile

log: structlog.stdlib.BoundLogger = structlog.get_logger()
T = TypeVar("T")

MOST_BYTES = 256 * 1024 * 1024
TIDY_EVERY = 500
MOST_TO_TIDY = 1_000
DROP_SECONDS = 0.05

_BEGIN = """
    INSERT INTO attempts (key, owner, directive) VALUES (?1, ?2, ?3)
    ON CONFLICT (key) DO UPDATE SET owner = ?2, directive = ?3
"""
_FINISH = "UPDATE attempts SET result = ?, finished = ? WHERE key = ? AND result IS NULL"
_FINISH_ANEW = """
    INSERT INTO attempts (key, owner, directive, result, finished) VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING
"""
_DROP = "UPDATE attempts SET owner = NULL, directive = NULL WHERE key = ? AND owner = ?"
_FORGET = "DELETE FROM attempts WHERE key = ? AND owner IS NULL AND (result IS NULL OR ?) AND holder IS NULL"
_FINISHED = "SELECT id, length(result) FROM attempts WHERE result IS NOT NULL AND owner IS NULL ORDER BY id LIMIT ?"
_OLD = "finished < ? AND owner IS NULL AND id IN (SELECT id FROM attempts ORDER BY id LIMIT ?)"

_OF_OWNER = "SELECT key, directive, result FROM attempts WHERE owner = ?"
_TAKE = "UPDATE attempts SET owner = ?1, holder = iif(holder IS NULL, NULL, ?1) WHERE owner = ?2"

Taken = tuple[bytes, bytes, bytes | None]

_encode = msgspec.json.Encoder().encode
_decode_directive = msgspec.json.Decoder(Directive).decode


class LeftOver(msgspec.Struct, frozen=True):
    """What a dead process had begun. Its directive has neither payload nor inputs; enough to report on it."""

    directive: Directive
    result: bytes | None


class Journal:
    """`<folder>/journal.db`, or in memory without a folder. All but `drop` and `undelivered` may raise StoreDown."""

    def __init__(
        self,
        folder: Path | None,
        *,
        sync: bool = False,
        capacity: int = CAPACITY,
        retention: float = RETENTION_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.file = StateFile(folder, sync=sync)
        self.remembers = False
        """Whether results are kept when dropped: so wants the SQLite idempotency store, which shares the file."""
        self.retention = retention
        self.wall = wall
        self._capacity = capacity
        self._undelivered: set[Key] = set()
        self._dropped: list[Key] = []
        self._flusher: asyncio.TimerHandle | None = None
        self._finished_since_tidy = 0

    def begin(self, directives: Sequence[Directive]) -> None:
        """One transaction for all. After StoreDown none is begun: don't run them."""
        rows = [(_encode(key_of(directive)), _slim(directive)) for directive in directives]

        def act(connection: sqlite3.Connection) -> None:
            owner = self.file.owner
            connection.executemany(_BEGIN, [(key, owner, body) for key, body in rows])

        self.write(act)

    def finish(self, directive: Directive, result: bytes) -> bytes:
        """Committed when it returns. After StoreDown (a full disk) the RESULT is to be sent all the same.

        Returns what is to be sent: the first result stays.
        """
        key = key_of(directive)
        stored = self.record(key, result, directive)
        self._undelivered.add(key)
        return stored

    def drop(self, key: Key) -> None:
        """Delivered, refused or fenced. Written with the next commit or in a moment: lost in a crash, it only means
        that the RESULT is sent once more."""
        self._undelivered.discard(key)
        self._dropped.append(key)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._flush()
            return
        if self._flusher is None:
            self._flusher = loop.call_later(DROP_SECONDS, self._flush)

    def left_over(self) -> list[LeftOver]:
        """What processes that died had begun. It is ours from here on, and told to nobody else while we live."""
        taken = self.write(self._take_over)
        found = [left for left in map(self._read, taken) if left is not None]
        self._undelivered.update(key_of(left.directive) for left in found if left.result is not None)
        return found

    def undelivered(self) -> int:
        """How many results wait here for their delivery."""
        return len(self._undelivered)

    def close(self) -> None:
        self._flush()
        self.file.close()

    def record(self, key: Key, result: bytes, directive: Directive | None = None) -> bytes:
        """Spool and remember a result. Returns the one that is kept, which is the first."""
        encoded, now = _encode(key), self.wall()
        self._finished_since_tidy += 1
        if self.file.execute(_FINISH, result, now, encoded):
            return result
        owner, body = (None, None) if directive is None else (self.file.owner, _slim(directive))
        if self.file.execute(_FINISH_ANEW, encoded, owner, body, result, now):
            return result
        kept = self.file.rows("SELECT result FROM attempts WHERE key = ? AND result IS NOT NULL", encoded)
        return cast("bytes", kept[0][0]) if kept else result

    def has_result(self, key: Key) -> bool:
        """Whether this process has just put a result there; False says nothing."""
        return key in self._undelivered

    def write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """A transaction that takes along the drops that wait."""
        waiting = [_encode(key) for key in self._dropped]

        def with_drops(connection: sqlite3.Connection) -> T:
            connection.executemany(_DROP, [(key, self.file.owner) for key in waiting])
            connection.executemany(_FORGET, [(key, not self.remembers) for key in waiting])
            return act(connection)

        outcome = self.file.write(with_drops if waiting else act)
        del self._dropped[: len(waiting)]
        if self._finished_since_tidy >= TIDY_EVERY:
            self._finished_since_tidy = 0
            self._make_room()
        return outcome

    def _flush(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        try:
            if self._dropped:
                self.write(lambda _: None)
        except StoreDown as down:
            log.warning("delivered results stay in the journal for now", reason=str(down), results=len(self._dropped))

    def _take_over(self, connection: sqlite3.Connection) -> list[Taken]:
        owners = connection.execute("SELECT DISTINCT owner FROM attempts WHERE owner IS NOT NULL").fetchall()
        taken: list[Taken] = []
        for (dead,) in owners:
            if self.file.is_dead(dead):
                taken += connection.execute(_OF_OWNER, (dead,)).fetchall()
                connection.execute(_TAKE, (self.file.owner, dead))
        return taken

    def _read(self, row: Taken) -> LeftOver | None:
        key, body, result = row
        try:
            return LeftOver(_decode_directive(body), result)
        except msgspec.MsgspecError as error:
            log.error("a directive in the journal can't be read and is not reported on", key=key, reason=str(error))
            self.file.execute(_DROP, key, self.file.owner)
            return None

    def _make_room(self) -> None:
        try:
            self.file.write(self._tidy)
        except StoreDown as down:  # what was written is written; room can be made later
            log.warning("old results stay in the journal for now", reason=str(down))

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """Forget the oldest finished attempts: those past their time, and as many more as there are too many."""
        connection.execute(f"DELETE FROM attempts WHERE {_OLD}", (self.wall() - self.retention, MOST_TO_TIDY))
        (rows,) = connection.execute("SELECT count(*) FROM attempts").fetchone()
        too_many, too_large = rows - self._capacity, self.file.used_bytes() - MOST_BYTES
        surplus: list[tuple[int]] = []
        for row_id, size in connection.execute(_FINISHED, (MOST_TO_TIDY,)).fetchall():
            if len(surplus) >= too_many and too_large <= 0:
                break
            surplus.append((row_id,))
            too_large -= size
        connection.executemany("DELETE FROM attempts WHERE id = ?", surplus)


def _slim(directive: Directive) -> bytes:
    return _encode(msgspec.structs.replace(directive, payload={}, inputs={}, item=None))
