"""The ledger file: opens it safely and translates SQLite's errors."""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.schema import APPLICATION_ID, DEVELOPMENT_APPLICATION_IDS, MIGRATIONS, Migration
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerFull, LedgerTooNew, LedgerTooOld
from lucius.private_files import create_private_file, tighten_files

MAX_QUICK_CHECK_BYTES = 32 * 1024 * 1024
"""Larger files are not checked page by page at every start; damage in them is found when it is read."""

BUSY_TIMEOUT_MS = 2_000
"""Only a person with the sqlite3 shell can block a write; the event loop waits meanwhile."""

_SQL = load_statements(__package__, "file")

Row = tuple[Any, ...]
Write = tuple[str, Iterable[Row]]


class WriterLock:
    """An exclusive lock of the one process that may write, on `<ledger>.lock`; the operating system releases it.

    The file names its holder, for the error message of others.
    """

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(ledger.name + ".lock")
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._fd, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise LedgerBusy(
                f"ledger {ledger} is open in process {holder}, and only one process may write it: stop that process "
                f"(see it with `ps -p {holder}`), or speak to it over HTTP instead of opening its ledger"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes lock two different files."""
        os.close(self._fd)


class SqliteFile:
    """One connection, used from the event loop only."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriterLock) -> None:
        self.path = path
        self.connection = connection
        self._lock = lock

    @classmethod
    def open(cls, path: Path, max_page_count: int | None, migrations: Sequence[Migration] = MIGRATIONS) -> "SqliteFile":
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = WriterLock(path)
            create_private_file(path)
        except OSError as error:
            raise LedgerError(f"cannot open ledger {path}: {error}; check that its folder is writable") from error
        try:
            file = cls(path, _connect(path, max_page_count, migrations), lock)
        except BaseException:
            lock.release()
            raise
        # Only now, as a file that is refused may be another program's.
        tighten_files(path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", ".lock"))
        return file

    def fetch_rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error

    def fetch_row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        try:
            found: Row | None = self.connection.execute(sql, parameters).fetchone()
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        return found

    def write(self, writes: Iterable[Write]) -> None:
        """Apply all writes in one durable transaction, or none. Raises LedgerError."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            for sql, rows in writes:
                self.connection.executemany(sql, rows)
            self._make_durable()
        except sqlite3.Error as error:
            self._roll_back()
            raise translate_error(error, self.path) from error
        except BaseException:
            self._roll_back()
            raise

    def _make_durable(self) -> None:
        """Commit with fsync, in the event loop: that is fastest where it takes a fraction of a millisecond."""
        self.connection.execute("COMMIT")

    def _roll_back(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # a connection that was closed has no transaction
            if self.connection.in_transaction:  # SQLite has rolled back by itself after some errors
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()
        self._lock.release()


def translate_error(error: sqlite3.Error, path: Path) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte; the rest is a finer distinction
    match code:
        case sqlite3.SQLITE_FULL:
            return LedgerFull(
                f"no space left for ledger {path} ({error}): free some, nothing that was accepted is lost"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return LedgerCorrupt(
                f"ledger {path} is damaged or not a SQLite file ({error}): stop Lucius, copy {path.name} and "
                f"{path.name}-wal aside, then restore a backup or try `sqlite3 {path} .recover`"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LedgerBusy(
                f"something else holds ledger {path} for writing ({error}): close any sqlite3 shell on it"
            )
        case _:
            return LedgerError(f"ledger {path}: {error}")


def _connect(path: Path, max_page_count: int | None, migrations: Sequence[Migration]) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        _check_unfinished_file(path, len(migrations))
        connection = sqlite3.connect(
            path,
            isolation_level=None,  # transactions are begun and ended explicitly
            cached_statements=512,
            check_same_thread=False,  # the loop may run in another thread than the one that opened the file
        )
        _require_ledger(connection, path, len(migrations))
        _require_intact_pages(connection, path)
        _configure(connection, max_page_count)
        _migrate(connection, migrations)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise translate_error(error, path) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _check_unfinished_file(path: Path, known_version: int) -> None:
    """Check a file that has commits in its WAL with a connection that only reads.

    A writable connection would copy them into the file when it is closed, and so change a file that is refused.
    """
    if path.with_name(f"{path.name}-wal").exists():
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            _require_ledger(reader, path, known_version)


def _require_ledger(connection: sqlite3.Connection, path: Path, known_version: int) -> None:
    """Raise an error for a file that is no ledger for this code, before changing even its journal mode."""
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    application_id = _pragma(connection, "application_id")
    if application_id in DEVELOPMENT_APPLICATION_IDS:
        raise LedgerTooOld(
            f"ledger {path} was made by an unreleased development version of Lucius, from before schema version 1, and "
            "no Lucius can upgrade it; it was left as it is: set LUCIUS_DATA_DIR to a new folder or LUCIUS_LEDGER_URL "
            "to a new path, or finish its jobs with the Lucius that made it"
        )
    is_empty = connection.execute(_SQL["count_objects"]).fetchone() == (0,)
    if application_id != APPLICATION_ID and not is_empty:
        raise LedgerCorrupt(
            f"{path} is a SQLite file but not a Lucius ledger: choose another path in LUCIUS_LEDGER_URL; "
            "this file was left as it is"
        )
    version = _pragma(connection, "user_version")
    if version > known_version:
        raise LedgerTooNew(
            f"ledger {path} has schema version {version} and this Lucius knows versions up to {known_version}: "
            "start the newer Lucius that wrote it, or restore a backup from before the upgrade"
        )


def _require_intact_pages(connection: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size <= MAX_QUICK_CHECK_BYTES:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            damage = sqlite3.DatabaseError(found)
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage


def _configure(connection: sqlite3.Connection, max_page_count: int | None) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA journal_size_limit = {64 * 1024 * 1024}")
    if max_page_count is not None:
        connection.execute(f"PRAGMA max_page_count = {max_page_count:d}")


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    version = _pragma(connection, "user_version")
    for number, statements in enumerate(migrations[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
