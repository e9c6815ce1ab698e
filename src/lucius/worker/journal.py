"""Journal on local disk of attempts begun and of results not yet delivered. Survives kill -9.

A RESULT is committed here before it is sent, and its row dropped once it was delivered, refused or fenced. The file
is shared by the processes of a service on one host; rows of a dead process are adopted by the next one that looks.

Methods are synchronous: a commit takes about 20 µs and does not wait for the disk. After a power cut the last commits
may be missing, unless `sync` is set; the contract allows for an attempt that runs twice.
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
from lucius.worker.idempotency import MAX_FINISHED_ATTEMPTS, RETENTION_SECONDS, AttemptKey, StoreDown, attempt_key
from lucius.worker.state_file import StateFile

log: structlog.stdlib.BoundLogger = structlog.get_logger()
T = TypeVar("T")

MAX_JOURNAL_BYTES = 256 * 1024 * 1024
RESULTS_PER_CLEANUP = 500
MAX_ROWS_PER_CLEANUP = 1_000
DROP_DELAY_SECONDS = 0.05

_BEGIN = """
    INSERT INTO attempts (key, owner, directive) VALUES (?1, ?2, ?3)
    ON CONFLICT (key) DO UPDATE SET owner = ?2, directive = ?3
"""
_FINISH = "UPDATE attempts SET result = ?, finished = ? WHERE key = ? AND result IS NULL"
_INSERT_FINISHED = """
    INSERT INTO attempts (key, owner, directive, result, finished) VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING
"""
_DROP = "UPDATE attempts SET owner = NULL, directive = NULL WHERE key = ? AND owner = ?"
_DELETE_DROPPED = "DELETE FROM attempts WHERE key = ? AND owner IS NULL AND (result IS NULL OR ?) AND holder IS NULL"
_FINISHED = "SELECT id, length(result) FROM attempts WHERE result IS NOT NULL AND owner IS NULL ORDER BY id LIMIT ?"
_OLD = "finished < ? AND owner IS NULL AND id IN (SELECT id FROM attempts ORDER BY id LIMIT ?)"

_SELECT_OWNED = "SELECT key, directive, result FROM attempts WHERE owner = ?"
_CHANGE_OWNER = "UPDATE attempts SET owner = ?1, holder = iif(holder IS NULL, NULL, ?1) WHERE owner = ?2"

AdoptedRow = tuple[bytes, bytes, bytes | None]

_encode = msgspec.json.Encoder().encode
_decode_directive = msgspec.json.Decoder(Directive).decode


class OrphanedAttempt(msgspec.Struct, frozen=True):
    """Attempt begun by a dead process. Its directive lacks payload, inputs and item, but suffices to report on it."""

    directive: Directive
    result: bytes | None


class Journal:
    """Journal in `<folder>/journal.db`, or in memory without a folder.

    All methods but `drop` and `undelivered` may raise StoreDown.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        sync: bool = False,
        capacity: int = MAX_FINISHED_ATTEMPTS,
        retention: float = RETENTION_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.file = StateFile(folder, sync=sync)
        self.keeps_results = False
        """True keeps results when their rows are dropped, as the SQLite idempotency store in this file needs."""
        self.retention = retention
        self.wall = wall
        self._capacity = capacity
        self._undelivered: set[AttemptKey] = set()
        self._dropped: list[AttemptKey] = []
        self._flusher: asyncio.TimerHandle | None = None
        self._finished_since_cleanup = 0

    def begin(self, directives: Sequence[Directive]) -> None:
        """Record the attempts as begun, in one transaction. Raises StoreDown if none is recorded: don't run them."""
        rows = [(_encode(attempt_key(directive)), _slim(directive)) for directive in directives]

        def act(connection: sqlite3.Connection) -> None:
            owner = self.file.owner
            connection.executemany(_BEGIN, [(key, owner, body) for key, body in rows])

        self.write(act)

    def finish(self, directive: Directive, result: bytes) -> bytes:
        """Commit a RESULT; return the one to send, which is the first stored.

        Raises StoreDown, such as on a full disk; the RESULT should still be sent.
        """
        key = attempt_key(directive)
        stored = self.record_result(key, result, directive)
        self._undelivered.add(key)
        return stored

    def drop(self, key: AttemptKey) -> None:
        """Drop the row of an attempt that was delivered, refused or fenced.

        Written with the next commit, at the latest after 50 ms: if a crash loses it, the RESULT is sent once more.
        """
        self._undelivered.discard(key)
        self._dropped.append(key)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._flusher is None:
            self._flusher = loop.call_later(DROP_DELAY_SECONDS, self.flush)

    def adopt_orphans(self) -> list[OrphanedAttempt]:
        """Take over and return the attempts of dead processes; no other process gets them while this one lives."""
        taken = self.write(self._take_over)
        found = [orphan for orphan in map(self._read, taken) if orphan is not None]
        self._undelivered.update(attempt_key(orphan.directive) for orphan in found if orphan.result is not None)
        return found

    def undelivered(self) -> int:
        """Return the number of results that wait for delivery."""
        return len(self._undelivered)

    def close(self) -> None:
        self.flush()
        self.file.close()

    def record_result(self, key: AttemptKey, result: bytes, directive: Directive | None = None) -> bytes:
        """Spool and remember a result; return the one that is kept, which is the first."""
        encoded, now = _encode(key), self.wall()
        self._finished_since_cleanup += 1
        if self.file.execute(_FINISH, result, now, encoded):
            return result
        owner, body = (None, None) if directive is None else (self.file.owner, _slim(directive))
        if self.file.execute(_INSERT_FINISHED, encoded, owner, body, result, now):
            return result
        kept = self.file.rows("SELECT result FROM attempts WHERE key = ? AND result IS NOT NULL", encoded)
        return cast("bytes", kept[0][0]) if kept else result

    def has_result(self, key: AttemptKey) -> bool:
        """Return True if this process has an undelivered result of the attempt here; False proves nothing."""
        return key in self._undelivered

    def write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in a transaction together with the pending drops; return what it returns."""
        waiting = [_encode(key) for key in self._dropped]

        def with_drops(connection: sqlite3.Connection) -> T:
            connection.executemany(_DROP, [(key, self.file.owner) for key in waiting])
            connection.executemany(_DELETE_DROPPED, [(key, not self.keeps_results) for key in waiting])
            return act(connection)

        outcome = self.file.write(with_drops if waiting else act)
        del self._dropped[: len(waiting)]
        if self._finished_since_cleanup >= RESULTS_PER_CLEANUP:
            self._finished_since_cleanup = 0
            self._run_cleanup()
        return outcome

    def flush(self) -> None:
        """Write the drops that wait for the next commit; if the disk refuses, the rows stay for now."""
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        try:
            if self._dropped:
                self.write(lambda _: None)
        except StoreDown as down:
            log.warning("delivered results stay in the journal for now", reason=str(down), results=len(self._dropped))

    def _take_over(self, connection: sqlite3.Connection) -> list[AdoptedRow]:
        owners = connection.execute("SELECT DISTINCT owner FROM attempts WHERE owner IS NOT NULL").fetchall()
        taken: list[AdoptedRow] = []
        for (dead,) in owners:
            if self.file.is_dead(dead):
                taken += connection.execute(_SELECT_OWNED, (dead,)).fetchall()
                connection.execute(_CHANGE_OWNER, (self.file.owner, dead))
        return taken

    def _read(self, row: AdoptedRow) -> OrphanedAttempt | None:
        key, body, result = row
        try:
            return OrphanedAttempt(_decode_directive(body), result)
        except msgspec.MsgspecError as error:
            log.error("a directive in the journal can't be read and is not reported on", key=key, reason=str(error))
            self.file.execute(_DROP, key, self.file.owner)
            return None

    def _run_cleanup(self) -> None:
        try:
            self.file.write(self._clean_up)
        except StoreDown as down:  # the result itself is committed; cleanup can happen later
            log.warning("old results stay in the journal for now", reason=str(down))

    def _clean_up(self, connection: sqlite3.Connection) -> None:
        """Delete the oldest finished attempts: expired ones, then more until the capacity and size limits hold."""
        connection.execute(f"DELETE FROM attempts WHERE {_OLD}", (self.wall() - self.retention, MAX_ROWS_PER_CLEANUP))
        (rows,) = connection.execute("SELECT count(*) FROM attempts").fetchone()
        too_many, too_large = rows - self._capacity, self.file.used_bytes() - MAX_JOURNAL_BYTES
        surplus: list[tuple[int]] = []
        for row_id, size in connection.execute(_FINISHED, (MAX_ROWS_PER_CLEANUP,)).fetchall():
            if len(surplus) >= too_many and too_large <= 0:
                break
            surplus.append((row_id,))
            too_large -= size
        connection.executemany("DELETE FROM attempts WHERE id = ?", surplus)


def _slim(directive: Directive) -> bytes:
    return _encode(msgspec.structs.replace(directive, payload={}, inputs={}, item=None))
