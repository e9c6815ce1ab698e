"""Liveness of processes that share a folder: each holds a lock on a file of its own for as long as it lives.

The operating system releases the lock however the process ends, so a dead process is detected at once.
"""

import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path


class ProcessLock:
    """Lock that marks one owner as alive. Names are never reused, so a missing file means a dead owner."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name = name
        self._path = folder / name
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._fd)
        except OSError:
            os.close(self._fd)
            raise
        _held.add(self)

    def is_in_place(self) -> bool:
        """Return whether other processes still find the lock: its folder may have been replaced or mounted over."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock and remove its file: other processes now see this owner as dead."""
        if self in _held:
            self.close()
            with suppress(OSError):  # a later `remove_dead_locks` removes an unlocked file
                self._path.unlink()

    def close(self) -> None:
        """Close the lock but keep its file, which belongs to the parent process or to the lock that replaces this."""
        _held.discard(self)
        os.close(self._fd)


_held: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def is_alive(folder: Path, name: str) -> bool:
    try:
        fd = os.open(folder / name, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return _is_locked(fd)
    finally:
        os.close(fd)


def remove_dead_locks(folder: Path, ours: str) -> None:
    """Remove the files of dead owners. Call it under the folder lock: a new owner has a file before it has a lock."""
    for path in folder.iterdir():
        if path.name != ours and not is_alive(folder, path.name):
            path.unlink(missing_ok=True)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _is_locked(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return True
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
        return False

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _is_locked(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two concurrent checks must not block each other
        except BlockingIOError:
            return True
        return False

    def _let_go() -> None:
        for lock in list(_held):
            lock.close()  # in a forked child: otherwise the lock would outlive the parent

    os.register_at_fork(after_in_child=_let_go)
