"""Creates files and folders that only their owner can access, and tightens the modes of existing ones."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OWN_FILES = ("*.secret", "dev.key", "dev.json", "ledger.db*", "temporal*.db*", "temporal*.log")
"""Name patterns of the files that Lucius creates in a data directory."""


def make_data_folder(folder: Path) -> None:
    """Create a data directory with mode 0700, or tighten an existing one and the files that Lucius created in it.

    A directory that others need (of another user, /tmp, the working or home directory) only causes a warning.
    Raises OSError if the directory can't be created.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if _is_shared(folder):
        log.warning(
            "other users of this host may read the data directory: give Lucius a folder of its own (LUCIUS_DATA_DIR)",
            data_dir=str(folder),
        )
    else:
        _tighten(folder, FOLDER_MODE)
    tighten_files(path for pattern in OWN_FILES for path in folder.glob(pattern))


def create_private_file(path: Path) -> None:
    """Create a file with mode 0600 unless it exists. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE))


def tighten_files(paths: Iterable[Path]) -> None:
    """Remove access of other users from these files; missing files and symbolic links are skipped."""
    for path in paths:
        if path.is_file() and not path.is_symlink():
            _tighten(path, FILE_MODE)


def _is_shared(folder: Path) -> bool:
    """Return True if other programs use this folder, too, so that mode 0700 would lock them out."""
    folder = folder.resolve()
    mode = folder.stat().st_mode
    if not mode & 0o077:
        return False
    own = (Path.cwd(), Path.home()) if "HOME" in os.environ else (Path.cwd(),)
    return bool(mode & stat.S_ISVTX) or any(place.resolve().is_relative_to(folder) for place in own)


def _tighten(path: Path, mode: int) -> None:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(mode)
    except OSError as error:
        log.warning("other users of this host may use a file of ours", path=str(path), reason=error.strerror)
