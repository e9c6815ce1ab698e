"""Where an attempt reads and writes: the job's workspace, client files and a local blob root, and nowhere else.

An attempt writes under `<workspace_ref>/<stepId>/<attempt_no>/`, so that a fenced attempt never overwrites a newer
one. Every path is resolved first and must then lie inside a permitted root, so neither `..` nor a link leads out.
"""

import asyncio
import os
import stat
import tempfile
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

from lucius.contract import Directive
from lucius.worker.failure import StepFailure, never

MAX_BYTES = 64 * 1024 * 1024


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of this machine refs may point to."""

    blob_root: Path | None = None
    """`blob://container/path` is `<blob_root>/container/path`."""
    file_roots: tuple[Path, ...] | None = None
    """`file://` refs of clients must lie in one of these. None: wherever this process may read and write."""
    max_bytes: int = MAX_BYTES


class Workspace:
    def __init__(self, directive: Directive, places: Places) -> None:
        self._places = places
        self._directive = directive
        self._root = _file_path(_split(directive.workspace_ref))
        self._attempt = _inside(self._root, f"{directive.stepId}/{directive.attempt_no}")

    async def read(self, ref: str) -> bytes:
        """The bytes behind a `file://` or `blob://` ref."""
        return await asyncio.to_thread(self._read, ref)

    async def write(self, name: str, data: bytes) -> str:
        """Write an artifact of this attempt, whole or not at all. Returns its ref."""
        path = _inside(self._attempt, name)
        await asyncio.to_thread(self._write, path, data)
        return file_ref(path)

    async def write_output(self, ref: str, data: bytes, name: str = "output") -> str:
        """Write what the client wants. A ref to a folder gets `<jobId>-<name>` inside. Returns the file's ref."""
        path = self._locate(ref)
        if ref.endswith("/") or await asyncio.to_thread(path.is_dir):
            inner = f"{self._directive.jobId}-{name}"
            path = _inside(path, inner)
            ref = f"{ref.rstrip('/')}/{quote(inner)}"
        await asyncio.to_thread(self._write, path, data)
        return ref

    def _locate(self, ref: str) -> Path:
        parts = _split(ref)
        if parts.scheme == "file":
            path = _file_path(parts)
            allowed = self._places.file_roots
            if allowed is not None and not _within(path, (self._root, *allowed)):
                raise never("FORBIDDEN_REF", f"{ref} is outside the folders this service may use")
            return path
        if parts.scheme == "blob" and self._places.blob_root is not None:
            return _inside(self._places.blob_root, unquote(f"{parts.netloc}{parts.path}"))
        raise never("UNSUPPORTED_REF", f"this service can't reach {parts.scheme}: refs")

    def _read(self, ref: str) -> bytes:
        path = self._locate(ref)
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise never("UNSUPPORTED_INPUT", f"{ref} is not a file")
            if found.st_size > self._places.max_bytes:
                raise never(
                    "INPUT_TOO_LARGE", f"{ref} has {found.st_size} bytes, the limit is {self._places.max_bytes}"
                )
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise never("INPUT_NOT_FOUND", f"{ref} does not exist") from error
        except PermissionError as error:
            raise never("INPUT_FORBIDDEN", f"no permission to read {ref}") from error
        except OSError as error:
            raise StepFailure("STORAGE_ERROR", f"reading {ref}: {error.strerror}") from error

    def _write(self, path: Path, data: bytes) -> None:
        if len(data) > self._places.max_bytes:
            raise never("OUTPUT_TOO_LARGE", f"{len(data)} bytes, the limit is {self._places.max_bytes}")
        try:
            _write_atomically(path, data)
        except (PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise never("OUTPUT_FORBIDDEN", f"can't write {path}: {error.strerror}") from error
        except OSError as error:
            raise StepFailure("STORAGE_ERROR", f"writing {path}: {error.strerror}") from error


def file_ref(path: Path) -> str:
    return "file://" + quote(str(path))


def _split(ref: str) -> SplitResult:
    try:
        parts = urlsplit(ref)
    except ValueError as error:
        raise never("UNSUPPORTED_REF", f"not a URI: {error}") from error
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise never("UNSUPPORTED_REF", "a ref with a query, a fragment or credentials")
    return parts


def _file_path(parts: SplitResult) -> Path:
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise never("UNSUPPORTED_REF", "a file ref must be file:///absolute/path")
    _refuse_odd_names(path)
    return Path(path)


def _inside(root: Path, relative: str) -> Path:
    """`root/relative`, refused if it names, or its links lead to, anything outside of root."""
    _refuse_odd_names(relative)
    path = root / relative
    if relative.startswith("/") or not relative.strip("/") or not _within(path, (root,)):
        raise never("FORBIDDEN_REF", f"{relative!r} leads outside its folder")
    return path


def _refuse_odd_names(path: str) -> None:
    if "\0" in path or "\\" in path or ".." in path.split("/"):
        raise never("FORBIDDEN_REF", f"{path!r} is not a plain path")


def _within(path: Path, roots: tuple[Path, ...]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def _write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one; a success we report survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
