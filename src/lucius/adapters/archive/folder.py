"""Archive files in a folder of this machine, or one that it has mounted.

They hold whole jobs of every tenant, so only their owner may read them, as with the ledger.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lucius.durable_files import make_folder, sync_folder, write_file
from lucius.ports.errors import ArchiveError
from lucius.private_files import FILE_MODE, FOLDER_MODE

_DRAFT = ".draft"
_LOCK = ".lock"


class ArchiveFolder:
    """Implements ArchiveFiles. Blocks the event loop while writing: a process that archives does nothing else."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    @contextmanager
    def for_writing(cls, root: Path) -> "Iterator[ArchiveFolder]":
        """Lock the folder and yield it. Raises ArchiveError if it can't be used or another process holds the lock."""
        with _told(f"use {root}"):
            make_folder(root, FOLDER_MODE)
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            with _told(f"use {root}, which another run of this command may be using"):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield cls(root)
        finally:
            os.close(lock)

    @property
    def place(self) -> str:
        return str(self._root)

    async def put(self, name: str, data: bytes) -> None:
        path, draft = self._root / name, self._root / _DRAFT
        with _told(f"write {path}"):
            write_file(path, data, draft=draft, mode=FILE_MODE, folder_mode=FOLDER_MODE)

    async def get(self, name: str) -> bytes:
        with _told(f"read {self._root / name}"):
            return (self._root / name).read_bytes()

    async def names(self, folder: str = "") -> list[str]:
        with _told(f"list {self._root / folder}"):
            found = (path for path in (self._root / folder).rglob("*") if path.is_file())
            return sorted(path.relative_to(self._root).as_posix() for path in found if path.name not in (_DRAFT, _LOCK))

    async def move(self, name: str, to: str) -> None:
        path, target = self._root / name, self._root / to
        with _told(f"move {path} to {target}"):
            if target.exists():
                raise FileExistsError(errno.EEXIST, "there is such a file already")
            make_folder(target.parent, FOLDER_MODE)
            path.rename(target)
            sync_folder(target.parent)
            sync_folder(path.parent)

    async def remove(self, name: str) -> None:
        path = self._root / name
        with _told(f"remove {path}"):
            path.unlink()
            sync_folder(path.parent)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"can't {what}: {error.strerror or error}") from error
