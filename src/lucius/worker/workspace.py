"""Reads and writes of an attempt: the job's workspace, the blob folder and the operator's file roots.

An attempt writes under `<workspace_ref>/<stepId>/<attempt_no>/`, so that a fenced attempt never overwrites a newer
one. Every path is resolved first and must then be within `lucius.worker.reach`, so neither `..` nor a link leads out.

When an attempt succeeds, `manifest.json` beside its artifacts lists the name, SHA-256 and size of each. A file that a
later step reads is checked against it if it is listed. A file that is not listed, such as one written directly by a
library, is read unchecked.
"""

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec
from msgspec.structs import replace

from lucius.contract import Directive, RefRules
from lucius.contract.refs import NO_BLOB_PATH, Use, find_policy_faults, has_secret, is_plain_path
from lucius.durable_files import write_file
from lucius.worker.failure import NonRetryable, StepFailure
from lucius.worker.https_input import HttpsRules, read_https
from lucius.worker.reach import Reach, is_within
from lucius.worker.threads import Threads

T = TypeVar("T")

MAX_BYTES = 64 * 1024 * 1024
MANIFEST = "manifest.json"
NO_SUCH_NAME = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
"""Errors for a path that can never name a file."""
MAX_CONCURRENT_CALLS = 8
"""Maximum concurrent calls of one attempt; each takes a thread."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of this machine that refs may point to."""

    blob_root: Path | None = None
    """`blob://container/path` is `<blob_root>/container/path`."""
    file_roots: tuple[Path, ...] | None = None
    """`file://` refs of clients must lie in one of these. None: in the job's workspace or the blob folder only."""
    protected: tuple[Path, ...] = ()
    """Folders and files of Lucius itself, which no ref reaches: data directory, configuration, protocols, keys."""
    max_bytes: int = MAX_BYTES
    https: HttpsRules = HttpsRules()


class Artifact(str):
    """Ref of a written artifact, with its size and SHA-256."""

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
    """Artifacts by name, relative to the manifest."""


# built here: msgspec builds a type's decoder at first use, which several threads may not do at once
_decode_manifest = msgspec.json.Decoder(Manifest).decode


class Files:
    """Blocking reads and writes of one attempt."""

    def __init__(self, directive: Directive, places: Places) -> None:
        self._places = places
        self._directive = directive
        self._root = _file_path(_split(directive.workspace_ref))
        self._attempt = _inside(self._root, f"{directive.stepId}/{directive.attempt_no}")
        of_lucius = (Path(path) for rules in directive.ref_rules for path in rules.protected)
        protected = (*places.protected, *of_lucius)
        self._reach = Reach(directive, self._root, places.blob_root, places.file_roots or (), protected)
        self.written: dict[str, Entry] = {}
        self.outputs: list[str] = []
        """Refs of what was written to the directive's `output_ref`."""

    def read(self, ref: str) -> bytes:
        """Return the bytes of a `file://`, `blob://` or `https://` ref; artifacts are checked against their manifest.

        Raises StepFailure, NonRetryable if a retry would not help.
        """
        parts = _split(ref)
        self._check_rules(ref, "input")
        if parts.scheme == "https":
            return read_https(parts, self._places.https, self._places.max_bytes)
        path = self._locate(ref)
        data = self._read(ref, path)
        known = self._entry_for(path)
        if known is not None and known.sha256 != hashlib.sha256(data).hexdigest():
            raise NonRetryable("CHECKSUM_MISMATCH", f"{ref} is not what the step that wrote it left")
        return data

    def write(self, name: str, data: bytes) -> Artifact:
        """Write an artifact of this attempt atomically; return its ref. Raises StepFailure."""
        path = _inside(self._attempt, name)
        if path == self._attempt / MANIFEST:
            raise NonRetryable("FORBIDDEN_REF", f"{MANIFEST} is written by the runtime")
        self._write(name, path, data)
        artifact = Artifact.of(file_ref(path), data)
        self.written[path.relative_to(self._attempt).as_posix()] = Entry(artifact.sha256, artifact.size)
        return artifact

    def write_output(self, data: bytes, name: str = "output", *, ref: str | None = None) -> Artifact:
        """Write an output to `ref`, by default the directive's `output_ref`; return its ref. Raises StepFailure.

        If the ref is a folder, the output is `<jobId>-<name>` inside it.
        """
        ref = ref or self._directive.output_ref
        is_output = ref == self._directive.output_ref
        self._check_rules(ref, "output")
        path = self._locate(ref)
        if ref.endswith("/") or os.path.isdir(path):
            inner = f"{self._directive.jobId}-{name}"
            path = self._reach.resolve(ref, _inside(path, inner))
            ref = f"{ref.rstrip('/')}/{quote(inner)}"
            self._check_rules(ref, "output")  # a link may have this name
        self._write(ref, path, data)
        if is_output:
            self.outputs.append(ref)
        return Artifact.of(ref, data)

    def write_manifest(self) -> None:
        """Write the manifest of this attempt's artifacts. The runtime calls it once the step has succeeded."""
        directive = self._directive
        manifest = Manifest(
            jobId=directive.jobId,
            stepId=directive.stepId,
            attempt_no=directive.attempt_no,
            lease_id=directive.lease_id,
            artifacts=self.written,
        )
        self._write(MANIFEST, self._attempt / MANIFEST, msgspec.json.encode(manifest))

    def _entry_for(self, path: Path) -> Entry | None:
        """Return a file's entry in the manifest of the attempt that wrote it; None if there is none."""
        try:
            step_id, attempt_no, *name = path.relative_to(os.path.realpath(self._root)).parts
        except ValueError:  # not of this job's workspace, or not of an attempt
            return None
        try:
            manifest = _decode_manifest((self._root / step_id / attempt_no / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StepFailure("STORAGE_ERROR", f"the manifest of {step_id}/{attempt_no}: {reason}") from error
        return manifest.artifacts.get("/".join(name))

    def _check_rules(self, ref: str, use: Use) -> None:
        """Refuse a ref that the job's ref policy does not permit; the job's own workspace is always permitted."""
        rules = self._directive.ref_rules
        if not rules:
            return
        parts, real = _split(ref), ref
        if parts.scheme == "file":
            path = Path(os.path.realpath(_file_path(parts)))
            if is_within(path, self._root):
                return
            blobs = self._places.blob_root
            if blobs is not None and is_within(path, blobs):  # rules on containers and prefixes apply to it as well
                rules = [replace(each, reachable=[os.path.realpath(blobs), *each.reachable]) for each in rules]
            real = file_ref(path)
        checked = [(real, each) for each in rules]
        if parts.scheme == "blob" and self._places.blob_root is not None:
            checked += _rules_behind_links(_blob_path(self._places.blob_root, parts), self._places.blob_root, rules)
        for name, each in checked:
            if faults := find_policy_faults(name, use, each):
                raise NonRetryable("FORBIDDEN_REF", f"{ref}: {faults[0]}")

    def _locate(self, ref: str) -> Path:
        """Return the resolved path behind a ref that this attempt may use."""
        parts = _split(ref)
        if parts.scheme == "file":
            return self._reach.resolve(ref, _file_path(parts))
        if parts.scheme == "blob" and self._places.blob_root is not None:
            return self._reach.resolve(ref, _blob_path(self._places.blob_root, parts))
        why = ": neither LUCIUS_BLOB_ROOT nor LUCIUS_DATA_DIR is set" if parts.scheme == "blob" else ""
        raise NonRetryable("UNSUPPORTED_REF", f"this service can't reach {parts.scheme}: refs{why}")

    def _read(self, ref: str, path: Path) -> bytes:
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise NonRetryable("UNSUPPORTED_INPUT", f"{ref} is not a file")
            if found.st_size > self._places.max_bytes:
                raise NonRetryable(
                    "INPUT_TOO_LARGE", f"{ref} has {found.st_size} bytes, the limit is {self._places.max_bytes}"
                )
            return self._read_bounded(ref, path, found.st_size)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NonRetryable("INPUT_NOT_FOUND", f"{ref} does not exist") from error
        except PermissionError as error:
            raise NonRetryable("INPUT_FORBIDDEN", f"no permission to read {ref}") from error
        except OSError as error:
            if error.errno in NO_SUCH_NAME:
                raise NonRetryable("INPUT_NOT_FOUND", f"{ref} can't exist: {error.strerror}") from error
            raise StepFailure("STORAGE_ERROR", f"reading {ref}: {error.strerror}") from error

    def _read_bounded(self, ref: str, path: Path, size: int) -> bytes:
        """Read a file that may have grown since its size was taken."""
        limit = self._places.max_bytes
        with path.open("rb") as file:
            data = file.read(size + 1)
            if len(data) > size:
                data += file.read(limit - size)
        if len(data) > limit:
            raise NonRetryable("INPUT_TOO_LARGE", f"{ref} has more than {limit} bytes, the limit")
        return data

    def _write(self, shown: str, path: Path, data: bytes) -> None:
        """Write a file. Clients see failures, so these name `shown`, a ref or an artifact, and not the path."""
        if len(data) > self._places.max_bytes:
            raise NonRetryable("OUTPUT_TOO_LARGE", f"{len(data)} bytes, the limit is {self._places.max_bytes}")
        try:
            write_file(path, data)
        except (PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise NonRetryable("OUTPUT_FORBIDDEN", f"can't write {shown}: {error.strerror}") from error
        except OSError as error:
            if error.errno in NO_SUCH_NAME:
                raise NonRetryable("OUTPUT_FORBIDDEN", f"can't write {shown}: {error.strerror}") from error
            raise StepFailure("STORAGE_ERROR", f"writing {shown}: {error.strerror}") from error


class Workspace:
    """Awaitable variant of `Files`: each call runs in a thread of its own.

    The event loop's executor is not used: a slow disk must not use up the few threads that the step's work shares.
    """

    __slots__ = ("_files", "_room", "_threads")

    def __init__(self, files: Files, threads: Threads | None = None) -> None:
        self._files = files
        self._threads = threads or Threads(lambda: None)
        self._room = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

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
    if "@" in parts.netloc or has_secret(parts.query, parts.fragment):
        raise NonRetryable("UNSUPPORTED_REF", "a ref with credentials or a signature")
    if parts.scheme != "https" and (parts.query or parts.fragment):
        raise NonRetryable("UNSUPPORTED_REF", f"a {parts.scheme}: ref with a query or a fragment")
    if parts.scheme == "blob" and not parts.path:
        raise NonRetryable("UNSUPPORTED_REF", NO_BLOB_PATH)
    return parts


def _file_path(parts: SplitResult) -> Path:
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc.lower() not in ("", "localhost") or not path.startswith("/"):
        raise NonRetryable("UNSUPPORTED_REF", "a file ref must be file:///absolute/path")
    _refuse_odd_names(path)
    return Path(path)


def _blob_path(blob_root: Path, parts: SplitResult) -> Path:
    return _inside(blob_root, unquote(f"{parts.netloc}{parts.path}"))


def _rules_behind_links(path: Path, blob_root: Path, rules: list[RefRules]) -> list[tuple[str, RefRules]]:
    """Return the file that a blob's name leads to, with the rules on containers and prefixes that it must satisfy."""
    root = os.path.realpath(blob_root)
    real = file_ref(Path(os.path.realpath(path)))
    return [(real, RefRules(containers=each.containers, prefixes=each.prefixes, reachable=[root])) for each in rules]


def _inside(root: Path, relative: str) -> Path:
    """Return `root/relative`. Raises NonRetryable if it, or a link in it, leads outside of the root."""
    _refuse_odd_names(relative)
    path = root / relative
    if relative.startswith("/") or path == root or not is_within(path, root):
        raise NonRetryable("FORBIDDEN_REF", f"{relative!r} is no place inside its folder")
    return path


def _refuse_odd_names(path: str) -> None:
    if not is_plain_path(path):
        raise NonRetryable("FORBIDDEN_REF", f"{path!r} is not a plain path")
