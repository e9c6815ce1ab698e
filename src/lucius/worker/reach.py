"""Decides which files of this machine an attempt may read and write.

An attempt reaches its job's workspace, the blob folder, and what lies below the operator's file roots. It never reaches
files of Lucius itself: the data directory, the configuration, protocols, keys, and the workspaces of other jobs. A
service may not know the data directory of its server: a folder with files that only a data directory has is one, too.

Permission goes by the resolved path, refusal by the identity of the file and of the folders around it: no symbolic
link and no other spelling, on a file system that ignores case, evades a refusal. A file with several hard links is
compared with the files below the protected folders; if that comparison can't be completed, it is refused.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from lucius.contract import Directive
from lucius.contract.reserved_names import DATA_FILES, find_name_fault
from lucius.worker.failure import NonRetryable

SYSTEM_FOLDERS = (Path("/proc"), Path("/sys"), Path("/dev"))
"""Folders such as /proc and /dev, whose files are never documents."""
MAX_COMPARED_FILES = 10_000
"""Maximum entries below all protected folders that are compared with a hard-linked file."""

Identity = tuple[int, int]


class Reach:
    """The files that one attempt may use."""

    def __init__(
        self,
        directive: Directive,
        workspace: Path,
        blob_root: Path | None,
        file_roots: tuple[Path, ...],
        protected: tuple[Path, ...],
    ) -> None:
        self._workspace = workspace
        self._blob_root = blob_root
        self._file_roots = file_roots
        self._protected = (*protected, *_folders_around(directive, workspace))

    def resolve(self, ref: str, path: Path) -> Path:
        """Return the path with its links followed. Raises NonRetryable FORBIDDEN_REF if the attempt may not use it."""
        real = Path(os.path.realpath(path))
        if not is_within(real, self._workspace):
            self._check_outside(ref, path, real)
        return real

    def _check_outside(self, ref: str, path: Path, real: Path) -> None:
        if any(real.is_relative_to(folder) for folder in SYSTEM_FOLDERS) and not real.is_relative_to("/dev/shm"):
            raise NonRetryable("FORBIDDEN_REF", f"{ref} is a process or device file, not a document")
        if self._is_protected(real) or self._is_other_name(ref, real):
            raise NonRetryable("FORBIDDEN_REF", f"{ref} is a file of Lucius itself, or of another job")
        if fault := self._find_fault(path, real):
            raise NonRetryable("FORBIDDEN_REF", f"{ref} {fault}")

    def _find_fault(self, path: Path, real: Path) -> str | None:
        """Find the nearest root around a file, and return why the file is not reachable below it; None if it is."""
        file_roots = {Path(os.path.realpath(root)) for root in self._file_roots}
        blob_roots = set() if self._blob_root is None else {Path(os.path.realpath(self._blob_root))}
        around = [root for root in file_roots | blob_roots if real.is_relative_to(root)]
        if not around:
            return "is outside the folders that this service may use: LUCIUS_FILE_ROOTS names them"
        root = max(around, key=lambda folder: len(folder.parts))
        if name := _find_data_file(real, root):
            return f"lies in a data directory of Lucius: a folder around it holds {name}"
        is_blob = root not in file_roots
        faults = (
            find_name_fault(names, allow_hidden=is_blob, is_blob=is_blob)
            for names in (_names_below(path, root), real.relative_to(root).parts)
        )
        return next(filter(None, faults), None)

    def _is_protected(self, real: Path) -> bool:
        """Find the nearest folder that is protected or open: it decides."""
        protected = {mark for path in self._protected for mark in _marks_of(path)}
        opened = self._opened()
        for place in (real, *real.parents):
            marks = _marks_of(place)
            if not protected.isdisjoint(marks):
                return True
            if not opened.isdisjoint(marks):
                break
        return False

    def _opened(self) -> set[Identity | str]:
        """Return the marks of the folders that are reachable within a protected one."""
        return _marks_of(self._workspace) | (_marks_of(self._blob_root) if self._blob_root is not None else set())

    def _is_other_name(self, ref: str, real: Path) -> bool:
        """Tell whether this is a hard link to a file below a protected folder. Raises NonRetryable if it can't tell."""
        try:
            found = os.stat(real)
        except OSError:
            return False
        if found.st_nlink == 1 or not stat.S_ISREG(found.st_mode):
            return False
        try:
            return (found.st_dev, found.st_ino) in _files_below(self._protected, self._opened(), found.st_dev)
        except _Incomparable as error:
            raise NonRetryable("FORBIDDEN_REF", f"{ref} has hard links: use a copy of it ({error})") from error


class _Incomparable(Exception):
    """The files below the protected folders can't all be compared with another."""


def is_within(path: Path, root: Path) -> bool:
    """Tell whether the path, with its links followed, is the root or lies below it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def _folders_around(directive: Directive, workspace: Path) -> Iterator[Path]:
    """Yield `<root>/lucius` of a workspace `<root>/lucius/<tenant>/<jobId>`, and the data directory around the root."""
    if workspace.parts[-3:] != ("lucius", directive.tenant_id, directive.jobId):
        return
    yield workspace.parents[1]
    root = workspace.parents[2]
    if root.name == "workspace" and any((root.parent / name).exists() for name in DATA_FILES):
        yield root.parent


def _marks_of(path: Path) -> set[Identity | str]:
    """Return the resolved path, and device and inode if it exists."""
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError:
        return {real}
    return {real, (found.st_dev, found.st_ino)}


def _find_data_file(real: Path, root: Path) -> str | None:
    """Return a file of a data directory that lies in a folder from the file up to the root; None if there is none."""
    depth = len(real.relative_to(root).parts)
    folders = (real, *real.parents[:depth])
    return next((name for folder in folders for name in DATA_FILES if os.path.isfile(folder / name)), None)


def _names_below(path: Path, root: Path) -> tuple[str, ...]:
    """Return the names that lead from a root to a path as the client wrote them: one of them may be a link."""
    for place in reversed((path, *path.parents)):
        if os.path.realpath(place) == str(root):
            return path.relative_to(place).parts
    return ()


def _files_below(folders: Iterable[Path], opened: set[Identity | str], device: int) -> Iterator[Identity]:
    """Yield the identities of the files below the folders, without those in opened ones. Raises _Incomparable.

    A hard link never leads to another device: subfolders that lie on another one are left out.
    """
    todo = [os.path.realpath(folder) for folder in folders]
    seen = opened.union(*(_marks_of(Path(folder)) for folder in todo))
    count = 0
    while todo:
        for entry in _entries_of(todo.pop(), device):
            count += 1
            if count > MAX_COMPARED_FILES:
                raise _Incomparable(
                    f"Lucius and other jobs have more than {MAX_COMPARED_FILES} files to compare it with"
                )
            try:
                found = entry.stat()
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:  # removed meanwhile, or a symbolic link that leads nowhere
                continue
            identity = (found.st_dev, found.st_ino)
            if not is_folder:
                yield identity
            elif found.st_dev == device and identity not in seen:
                seen.add(identity)
                todo.append(entry.path)


def _entries_of(folder: str, device: int) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):  # a single file, or one that is not there yet
        return
    except OSError as error:
        if _device_of(folder) in (None, device):
            raise _Incomparable("a folder of Lucius or of another job can't be listed") from error


def _device_of(folder: str) -> int | None:
    try:
        return os.stat(folder).st_dev
    except OSError:
        return None
