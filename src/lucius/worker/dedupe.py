"""Remembers which attempts this service has run, so that a directive delivered twice runs once.

An attempt is `(jobId, stepId, attempt_no, lease_id)`. Finished ones keep their RESULT, which is sent again instead
of doing the work again. Bounded: the oldest are forgotten first. With a path, finished ones survive a restart.
"""

import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from lucius.contract import Directive

CAPACITY = 10_000
KEEP_IN_FILE = 64 * 1024
PROCESSES_SHARING_A_FOLDER = 64


class Key(NamedTuple):
    jobId: str
    stepId: str
    attempt_no: int
    lease_id: str


def key_of(directive: Directive) -> Key:
    return Key(directive.jobId, directive.stepId, directive.attempt_no, directive.lease_id)


class _Line(msgspec.Struct, array_like=True):
    key: Key
    result: msgspec.Raw


_lines = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode


class Dedupe:
    """In memory, and with `folder` also in an append-only file of this process there."""

    def __init__(self, folder: Path | None = None, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._done: OrderedDict[Key, bytes] = OrderedDict()
        self._in_progress: set[Key] = set()
        self._file: BinaryIO | None = None
        self._lines = 0
        if folder is not None:
            self._path, self._lock = _claim_file(folder)
            self._load()
            self._compact()

    def begin(self, key: Key) -> bool:
        """True if the attempt is new and now ours; False if it runs already."""
        if key in self._in_progress:
            return False
        self._in_progress.add(key)
        return True

    def result_of(self, key: Key) -> bytes | None:
        """The RESULT of an attempt that has finished."""
        result = self._done.get(key)
        if result is not None:
            self._done.move_to_end(key)
        return result

    def finish(self, key: Key, result: bytes) -> None:
        self._in_progress.discard(key)
        self._keep(key, result)
        if self._file is not None and len(result) <= KEEP_IN_FILE:
            self._append(key, result)

    def forget(self, key: Key) -> None:
        """The attempt ended without a RESULT (it was fenced)."""
        self._in_progress.discard(key)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lock.close()

    def _keep(self, key: Key, result: bytes) -> None:
        self._done[key] = result
        self._done.move_to_end(key)
        if len(self._done) > self._capacity:
            self._done.popitem(last=False)

    def _append(self, key: Key, result: bytes) -> None:
        # Unbuffered and without fsync: it outlives this process; after a power cut an attempt may run twice, which
        # the contract allows for.
        assert self._file is not None
        self._file.write(_encode(_Line(key, msgspec.Raw(result))) + b"\n")
        self._lines += 1
        if self._lines > 2 * self._capacity:
            self._compact()

    def _load(self) -> None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        for raw in content.splitlines():
            try:
                line = _lines.decode(raw)
            except msgspec.DecodeError:
                continue  # cut short by a crash
            self._keep(line.key, bytes(line.result))

    def _compact(self) -> None:
        """Rewrite the file with what is remembered, so that it stays bounded."""
        fresh = self._path.with_suffix(".tmp")
        kept = [(key, result) for key, result in self._done.items() if len(result) <= KEEP_IN_FILE]
        with open(fresh, "wb", opener=_private) as file:
            file.writelines(_encode(_Line(key, msgspec.Raw(result))) + b"\n" for key, result in kept)
        if self._file is not None:
            self._file.close()
        os.replace(fresh, self._path)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - kept open for the life of the service
        self._lines = len(kept)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # results may quote documents


def _claim_file(folder: Path) -> tuple[Path, BinaryIO]:
    """A file no other live process writes: several processes of one service may share a data folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(PROCESSES_SHARING_A_FOLDER):
        lock = open(folder / f"attempts-{number}.lock", "wb", opener=_private)  # noqa: SIM115 - held while we live
        if _try_lock(lock):
            return folder / f"attempts-{number}.jsonl", lock
        lock.close()
    raise RuntimeError(f"{folder} is in use by {PROCESSES_SHARING_A_FOLDER} processes already")


def _try_lock(lock: BinaryIO) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
