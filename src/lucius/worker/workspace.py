"""Where an attempt reads and writes: the job's workspace, client files and a local blob root, and nowhere else.

An attempt writes under `<workspace_ref>/<stepId>/<attempt_no>/`, so that a fenced attempt never overwrites a newer
one. Every path is resolved first and must then lie inside a permitted root, so neither `..` nor a link leads out.

When an attempt succeeds, `manifest.json` beside its artifacts says what they are: name, SHA-256 and size of each. What
a later step reads is checked against it, if it is named there. A file that is not was put there without us, by a
library that writes files itself, say: it is read as it is.
"""

import asyncio
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

from lucius.contract import Directive
from lucius.worker.failure import NonRetryable, StepFailure
from lucius.worker.threads import Threads

T = TypeVar("T")

MAX_BYTES = 64 * 1024 * 1024
MANIFEST = "manifest.json"
NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS})
CALLS_AT_ONCE = 8
"""Of one attempt; each takes a thread."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of this machine refs may point to."""

    blob_root: Path | None = None
    """`blob://container/path` is `<blob_root>/container/path`."""
    file_roots: tuple[Path, ...] | None = None
    """`file://` refs of clients must lie in one of these. None: wherever this process may read and write."""
    max_bytes: int = MAX_BYTES


class Artifact(str):
    """The ref of something written, which also knows what was written."""

    __slots__ = ("sha256", "size")
    sha256: str
    size: int

    @classmethod
    def of(cls, ref: str, data: bytes) -> Self:
        artifact = cls(ref)
        artifact.sha256 = hashlib.sha256(data).hexdigest()
        artifact.size = len(data)
        return artifact


class Entry(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    jobId: str
    stepId: str
    attempt_no: int
    lease_id: str
    artifacts: dict[str, Entry]
    """By name, relative to the manifest."""


class Files:
    """Blocking reads and writes of one attempt."""

    def __init__(self, directive: Directive, places: Places) -> None:
        self._places = places
        self._directive = directive
        self._root = _file_path(_split(directive.workspace_ref))
        self._attempt = _inside(self._root, f"{directive.stepId}/{directive.attempt_no}")
        self.written: dict[str, Entry] = {}

    def read(self, ref: str) -> bytes:
        """The bytes behind a `file://` or `blob://` ref, checked against the manifest beside them if there is one."""
        path = self._locate(ref)
        data = self._read(ref, path)
        known = self._entry_for(path)
        if known is not None and known.sha256 != hashlib.sha256(data).hexdigest():
            raise NonRetryable("CHECKSUM_MISMATCH", f"{ref} is not what the step that wrote it left")
        return data

    def write(self, name: str, data: bytes) -> Artifact:
        """Write an artifact of this attempt, whole or not at all. Returns its ref."""
        path = _inside(self._attempt, name)
        if path == self._attempt / MANIFEST:
            raise NonRetryable("FORBIDDEN_REF", f"{MANIFEST} is written by the runtime")
        self._write(path, data)
        artifact = Artifact.of(file_ref(path), data)
        self.written[path.relative_to(self._attempt).as_posix()] = Entry(artifact.sha256, artifact.size)
        return artifact

    def write_output(self, data: bytes, name: str = "output", *, ref: str | None = None) -> Artifact:
        """Write what the client wants where it wants it. A ref to a folder gets `<jobId>-<name>` inside."""
        ref = ref or self._directive.output_ref
        path = self._locate(ref)
        if ref.endswith("/") or path.is_dir():
            inner = f"{self._directive.jobId}-{name}"
            path = _inside(path, inner)
            ref = f"{ref.rstrip('/')}/{quote(inner)}"
        self._write(path, data)
        return Artifact.of(ref, data)

    def write_manifest(self) -> None:
        """Say what this attempt wrote. The runtime's, once a step has succeeded."""
        directive = self._directive
        manifest = Manifest(
            jobId=directive.jobId,
            stepId=directive.stepId,
            attempt_no=directive.attempt_no,
            lease_id=directive.lease_id,
            artifacts=self.written,
        )
        self._write(self._attempt / MANIFEST, msgspec.json.encode(manifest))

    def _entry_for(self, path: Path) -> Entry | None:
        """What the manifest of the attempt that wrote this file says about it."""
        try:
            step_id, attempt_no, *name = path.relative_to(self._root).parts
        except ValueError:  # not of this job's workspace, or not of an attempt
            return None
        try:
            manifest = msgspec.json.decode((self._root / step_id / attempt_no / MANIFEST).read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise StepFailure("STORAGE_ERROR", f"the manifest of {step_id}/{attempt_no}: {error}") from error
        return manifest.artifacts.get("/".join(name))

    def _locate(self, ref: str) -> Path:
        parts = _split(ref)
        if parts.scheme == "file":
            path = _file_path(parts)
            allowed = self._places.file_roots
            if allowed is not None and not _within(path, (self._root, *allowed)):
                raise NonRetryable("FORBIDDEN_REF", f"{ref} is outside the folders this service may use")
            return path
        if parts.scheme == "blob" and self._places.blob_root is not None:
            return _inside(self._places.blob_root, unquote(f"{parts.netloc}{parts.path}"))
        raise NonRetryable("UNSUPPORTED_REF", f"this service can't reach {parts.scheme}: refs")

    def _read(self, ref: str, path: Path) -> bytes:
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise NonRetryable("UNSUPPORTED_INPUT", f"{ref} is not a file")
            if found.st_size > self._places.max_bytes:
                raise NonRetryable(
                    "INPUT_TOO_LARGE", f"{ref} has {found.st_size} bytes, the limit is {self._places.max_bytes}"
                )
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NonRetryable("INPUT_NOT_FOUND", f"{ref} does not exist") from error
        except PermissionError as error:
            raise NonRetryable("INPUT_FORBIDDEN", f"no permission to read {ref}") from error
        except OSError as error:
            raise StepFailure("STORAGE_ERROR", f"reading {ref}: {error.strerror}") from error

    def _write(self, path: Path, data: bytes) -> None:
        if len(data) > self._places.max_bytes:
            raise NonRetryable("OUTPUT_TOO_LARGE", f"{len(data)} bytes, the limit is {self._places.max_bytes}")
        try:
            _write_atomically(path, data)
        except (PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise NonRetryable("OUTPUT_FORBIDDEN", f"can't write {path}: {error.strerror}") from error
        except OSError as error:
            raise StepFailure("STORAGE_ERROR", f"writing {path}: {error.strerror}") from error


class Workspace:
    """The same for async functions: each call waits in a thread of its own.

    Not in the event loop's executor: a slow disk must not use up the few threads that the step's own work shares.
    """

    __slots__ = ("_files", "_room", "_threads")

    def __init__(self, files: Files, threads: Threads | None = None) -> None:
        self._files = files
        self._threads = threads or Threads(lambda: None)
        self._room = asyncio.Semaphore(CALLS_AT_ONCE)

    async def read(self, ref: str) -> bytes:
        return await self._do(lambda: self._files.read(ref))

    async def write(self, name: str, data: bytes) -> Artifact:
        return await self._do(lambda: self._files.write(name, data))

    async def write_output(self, data: bytes, name: str = "output", *, ref: str | None = None) -> Artifact:
        return await self._do(lambda: self._files.write_output(data, name, ref=ref))

    async def _do(self, act: Callable[[], T]) -> T:
        async with self._room:
            done: T = await self._threads.run(act, "workspace")
        return done


def file_ref(path: Path) -> str:
    return "file://" + quote(str(path))


def _split(ref: str) -> SplitResult:
    try:
        parts = urlsplit(ref)
    except ValueError as error:
        raise NonRetryable("UNSUPPORTED_REF", f"not a URI: {error}") from error
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise NonRetryable("UNSUPPORTED_REF", "a ref with a query, a fragment or credentials")
    return parts


def _file_path(parts: SplitResult) -> Path:
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise NonRetryable("UNSUPPORTED_REF", "a file ref must be file:///absolute/path")
    _refuse_odd_names(path)
    return Path(path)


def _inside(root: Path, relative: str) -> Path:
    """`root/relative`, refused if it names, or its links lead to, anything outside of root."""
    _refuse_odd_names(relative)
    path = root / relative
    if relative.startswith("/") or path == root or not _within(path, (root,)):
        raise NonRetryable("FORBIDDEN_REF", f"{relative!r} is no place inside its folder")
    return path


def _refuse_odd_names(path: str) -> None:
    if "\0" in path or "\\" in path or ".." in path.split("/"):
        raise NonRetryable("FORBIDDEN_REF", f"{path!r} is not a plain path")


def _within(path: Path, roots: tuple[Path, ...]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def _write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one; a success we report survives a power cut."""
    made = _make_folder(path.parent)
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # As any new file, so that the umask says who may read it; `tempfile` would keep it to ourselves.
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for folder in (path.parent, *(new.parent for new in made)):
        _sync_folder(folder)


def _make_folder(folder: Path) -> list[Path]:
    """Returns those that had to be made."""
    missing = []
    for parent in (folder, *folder.parents):
        if parent.exists():
            break
        missing.append(parent)
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _sync_folder(folder: Path) -> None:
    """Its names are on the disk, too. Not every file system and system can say so."""
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that one may put things into, but not list
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)
