"""SQLite file in which a service's processes keep their attempts: opened safely, set aside if damaged.

One table serves the journal and the SQLite idempotency store, so that a result is spooled and remembered in one
commit: neither is ever visible without the other.
"""

import errno
import os
import secrets
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from lucius.worker.idempotency import StoreDown, StoreTooNew
from lucius.worker.process_locks import ProcessLock, is_alive, remove_dead_locks

log: structlog.stdlib.BoundLogger = structlog.get_logger()

APPLICATION_ID = 0x4C75776B
SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 1_000
OPEN_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.005
MAX_CHECKED_BYTES = 32 * 1024 * 1024
"""Larger files are not checked page by page when opened; damage in them shows when it is read."""
CHECKPOINT_PAGES = 4_000
PRIVATE_MODE = 0o600

# owner: the process whose journal the row is in, until it is dropped. holder: the process that has claimed the attempt,
# for as long as it lives. Short columns come first: a scan then reads little.
SCHEMA = """
    CREATE TABLE attempts (
        id INTEGER PRIMARY KEY,
        key BLOB NOT NULL UNIQUE,
        owner TEXT,
        holder TEXT,
        finished REAL,
        directive BLOB,
        result BLOB
    )
"""

DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

T = TypeVar("T")


class StateFile:
    """Connection to the state file, used from one thread. Without a folder, everything is in memory.

    The owner name and its lock last as long as this object, even if the file is replaced: while this process lives,
    its rows never count as those of a dead process, not even for itself.
    """

    def __init__(self, folder: Path | None, *, sync: bool = False) -> None:
        self.owner = secrets.token_hex(8)
        self.path = (folder or Path()) / "journal.db"
        self._folder = folder
        self._sync = sync
        self._closed = False
        self._lock: ProcessLock | None = None
        self._id: tuple[int, int] | None = None
        """Device and inode of the open file; None if the connection is no longer usable."""
        self.connection: sqlite3.Connection
        try:
            self._open()
        except (OSError, sqlite3.Error) as error:
            raise self._store_down(error) from error

    def is_dead(self, owner: str) -> bool:
        return owner != self.owner and (self._folder is None or not is_alive(self._folder / "owners", owner))

    def write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in one transaction and return its result. Raises StoreDown, with nothing written."""
        return self._with_recovery(lambda: self._transact(act))

    def execute(self, sql: str, *parameters: object) -> int:
        """Run one statement as its own transaction; return the number of rows changed. Raises StoreDown."""
        return self._with_recovery(lambda: self.connection.execute(sql, parameters).rowcount)

    def rows(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        return self._with_recovery(lambda: self.connection.execute(sql, parameters).fetchall())

    def used_bytes(self) -> int:
        pages, free, size = (_pragma(self.connection, name) for name in ("page_count", "freelist_count", "page_size"))
        return (pages - free) * size

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.connection.close()
            if self._lock is not None:
                self._lock.release()

    def _with_recovery(self, act: Callable[[], T]) -> T:
        try:
            self._reopen_if_replaced()
            try:
                return act()
            except sqlite3.Error as error:
                self._close_after_io_error(error)
                if _code(error) not in DAMAGED or self._folder is None:
                    raise
                self._reopen(f"it is damaged: {error}", damaged=self._id)
            return act()
        except (OSError, sqlite3.Error) as error:
            raise self._store_down(error) from error

    def _transact(self, act: Callable[[sqlite3.Connection], T]) -> T:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcome = act(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # after some errors SQLite has already rolled back
                connection.execute("ROLLBACK")
            raise
        return outcome

    def _close_after_io_error(self, error: sqlite3.Error) -> None:
        """Close the connection after an I/O error: once a volume was unmounted, only reopening the file helps."""
        if _code(error) == sqlite3.SQLITE_IOERR and self._folder is not None:
            self.connection.close()
            self._id = None

    def _reopen_if_replaced(self) -> None:
        """Reopen the file if it was set aside, removed or replaced, so that what is written can be found again."""
        if self._folder is None or self._closed:
            return
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            self._reopen("it was deleted")
            return
        if (found.st_dev, found.st_ino) != self._id:
            self._reopen("it was replaced" if self._id else "it could not be read or written")

    def _reopen(self, reason: str, damaged: tuple[int, int] | None = None) -> None:
        """Open the file again, setting a damaged one aside. If it fails, the next call tries again."""
        old = self.connection
        if damaged is not None:
            old.close()  # Windows moves no file that is open
            self._id = None
        self._open(damaged)
        old.close()
        log.error("journal file lost while in use, continuing with another one", path=str(self.path), reason=reason)

    def _open(self, damaged: tuple[int, int] | None = None) -> None:
        if self._folder is None:
            self.connection = _connect(":memory:", self._sync)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FolderLock(self._folder):
            stands = self._lock is not None and self._lock.is_in_place()
            lock = self._lock if self._lock and stands else ProcessLock(self._folder / "owners", self.owner)
            try:
                self._open_in(self._folder, damaged)
            except BaseException:
                if lock is not self._lock:
                    lock.release()
                raise
            if self._lock is not None and lock is not self._lock:
                self._lock.close()
            self._lock = lock

    def _open_in(self, folder: Path, damaged: tuple[int, int] | None) -> None:
        if damaged is not None and self.path.exists() and _id_of(self.path) == damaged:
            _set_aside(self.path)  # skipped if another process has already done so
        connection = _open_with_retries(self.path, self._sync)
        try:
            self._delete_dead_claims(connection)
            remove_dead_locks(folder / "owners", self.owner)
            found = _id_of(self.path)
        except BaseException:
            connection.close()
            raise
        self.connection, self._id = connection, found

    def _delete_dead_claims(self, connection: sqlite3.Connection) -> None:
        """Delete claims of dead processes on attempts that were not begun."""
        unfinished = "owner IS NULL AND result IS NULL"
        holders = connection.execute(f"SELECT DISTINCT holder FROM attempts WHERE {unfinished}").fetchall()
        for (holder,) in holders:
            if self.is_dead(str(holder)):
                connection.execute(f"DELETE FROM attempts WHERE {unfinished} AND holder = ?", (holder,))

    def _store_down(self, error: Exception) -> StoreDown:
        mine = f"; this process runs as {_user()}" if isinstance(error, PermissionError) else ""
        return StoreDown(f"journal {self.path}: {error}{mine}")


class FolderLock:
    """Lock on a folder: one process at a time opens, sets aside or sweeps its file. Entering raises TimeoutError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.lock"
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + OPEN_TIMEOUT_SECONDS
        while not try_lock(self._fd):
            if time.monotonic() > deadline:
                os.close(self._fd)
                raise TimeoutError("another process has been opening it for too long")
            time.sleep(POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _open_with_retries(path: Path, sync: bool) -> sqlite3.Connection:
    """Open the file, retrying while it is busy.

    SQLite needs exclusive access to recover a file after a crash, and fails at once if another process reads it.
    """
    deadline = time.monotonic() + OPEN_TIMEOUT_SECONDS
    while True:
        try:
            return _open_or_set_aside(path, sync)
        except sqlite3.Error as error:
            if _code(error) not in BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def _open_or_set_aside(path: Path, sync: bool) -> sqlite3.Connection:
    try:
        return _open_checked(path, sync)
    except sqlite3.Error as error:
        if _code(error) not in DAMAGED:
            raise
        log.error("journal file is damaged", path=str(path), reason=str(error))
    except IsADirectoryError as error:
        log.error("journal file can't be read", path=str(path), reason=str(error))
    _set_aside(path)
    return _open_checked(path, sync)


def _set_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.rename(path, aside)
    for suffix in ("-wal", "-shm"):
        if (part := path.with_name(path.name + suffix)).exists():
            os.rename(part, aside.with_name(aside.name + suffix))
    log.error("journal set aside, starting an empty one: undelivered results in it are not sent", set_aside=str(aside))


def _open_checked(path: Path, sync: bool) -> sqlite3.Connection:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:  # don't open it: closing a second descriptor would drop SQLite's locks on the file
        if path.is_dir():
            raise _os_error(errno.EISDIR, path) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise _os_error(errno.EACCES, path) from None
    _make_private(path)
    return _connect(str(path), sync)


def _make_private(path: Path) -> None:
    """Set the mode to 0600: results quote documents, and tokens grant callbacks. SQLite's side files get the same."""
    try:
        if stat.S_IMODE(os.stat(path).st_mode) != PRIVATE_MODE:
            os.chmod(path, PRIVATE_MODE)
    except PermissionError as error:  # owned by another user, or a file system without modes
        log.warning("journal may be readable by other users", path=str(path), reason=str(error))


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _id_of(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _connect(path: str, sync: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        _check(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if _pragma(connection, "user_version") == 0:
            _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(SCHEMA)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: str) -> None:
    """Check that the file is a readable journal, before anything is changed. Raises sqlite3 errors, StoreTooNew."""
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    if not empty and _pragma(connection, "application_id") != APPLICATION_ID:
        raise _damage("a SQLite file, but not a journal")
    version = _pragma(connection, "user_version")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"journal {path} has schema version {version} and this version of Lucius reads {SCHEMA_VERSION}: "
            "start the newer one that wrote it, or choose another data folder"
        )
    if path != ":memory:" and os.stat(path).st_size <= MAX_CHECKED_BYTES:
        found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        if found != "ok":
            raise _damage(found)


def _damage(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF  # the primary code; the rest is the extended code


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


if sys.platform == "win32":
    import getpass
    import msvcrt

    def _user() -> str:
        return f"user {getpass.getuser()}"

    def try_lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _user() -> str:
        return f"user {os.getuid()}"

    def try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
