"""Writes files that survive a power cut, atomically: readers see the old content or the new one."""

import errno
import os
import secrets
from pathlib import Path

_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS})


def write_file(
    path: Path, data: bytes, *, draft: Path | None = None, mode: int = 0o666, folder_mode: int = 0o777
) -> None:
    """Write a file and, where they are missing, its folders; once it returns, the file survives a power cut.

    `draft` names the temporary file, in the same file system, if there is one writer only: it may be left over from a
    killed process. By default it has a random name. The umask limits the modes, as for any new file. Raises OSError.
    """
    make_folder(path.parent, folder_mode)
    if draft is not None:
        draft.unlink(missing_ok=True)
    temporary = draft or path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents so that they survive a power cut; `mode` is the folder's own.

    Raises OSError.
    """
    missing = []
    for parent in (folder, *folder.parents):
        if parent.exists():
            break
        missing.append(parent)
    folder.mkdir(mode, parents=True, exist_ok=True)
    for new in missing:
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system and the file system support it."""
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that is writable but not readable
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)
