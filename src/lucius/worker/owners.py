"""Which processes that share a folder are alive: each holds a lock on a file of its own for as long as it lives.

The operating system lets go of a lock however its process ends, so a dead process is known for dead at once.
"""

import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path


class OwnerLock:
    """The life of one owner. Its name is never used again, so a missing file means a dead owner."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._path = folder / name
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._fd)
        except OSError:
            os.close(self._fd)
            raise
        _held.add(self)

    def stands(self) -> bool:
        """Whether others still find it: its folder may be another by now, mounted or put back in place of the first."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Dead from here on, as others see it."""
        if self in _held:
            self.let_go()
            with suppress(OSError):  # an unlocked file is removed by the next who can
                self._path.unlink()

    def let_go(self) -> None:
        """Without its file: that is another's, a parent's or the lock's that has taken the place of this."""
        _held.discard(self)
        os.close(self._fd)


_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def is_alive(folder: Path, name: str) -> bool:
    try:
        fd = os.open(folder / name, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return _is_locked(fd)
    finally:
        os.close(fd)


def remove_dead(folder: Path, ours: str) -> None:
    """Only while no new owner can come up, who has a file before it has the lock."""
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
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask at once don't mistake each other
        except BlockingIOError:
            return True
        return False

    def _let_go() -> None:
        for lock in list(_held):
            lock.let_go()  # in a fork: it must not outlive the parent in a child

    os.register_at_fork(after_in_child=_let_go)
