"""Archive files in a folder of this machine, or one that it has mounted."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lucius.ports.errors import ArchiveError

_DRAFT = ".draft"
_LOCK = ".lock"
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS})


class ArchiveFolder:
    """Implements ArchiveFiles. Blocks while it writes: nothing else runs in a process that archives."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    @contextmanager
    def for_writing(cls, root: Path) -> "Iterator[ArchiveFolder]":
        """Raises ArchiveError if another process writes there."""
        with _told(f"use {root}"):
            _make_folder(root)
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
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
            _make_folder(path.parent)
            with open(draft, "wb") as file:  # noqa: ASYNC230
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync_folder(path.parent)

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
            _make_folder(target.parent)
            path.rename(target)
            _sync_folder(target.parent)
            _sync_folder(path.parent)

    async def remove(self, name: str) -> None:
        path = self._root / name
        with _told(f"remove {path}"):
            path.unlink()
            _sync_folder(path.parent)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"can't {what}: {error.strerror or error}") from error


def _make_folder(folder: Path) -> None:
    """For good: what was archived must not vanish with its folder in a power cut."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that one may put things into, but not list
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)
