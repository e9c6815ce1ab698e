"""Progress of an attempt, and how a step's process shares it with the runtime."""

import ctypes
import math
from multiprocessing.context import BaseContext
from typing import Any

from lucius.contract import ProgressCounts

Progress = float | ProgressCounts
"""A fraction from 0 to 1, or counts."""

MAX_COUNT = 2**53 - 1
MAX_UNIT_CHARS = 32
MAX_READS = 5

_NONE, _PART, _DONE, _DONE_OF_TOTAL = range(4)


def progress_from(done: float, total: float | None, unit: str) -> Progress:
    """Convert what a step reports to what a heartbeat may carry; out-of-range values are clamped.

    A value between 0 and 1 without a total is a fraction even with a unit, since as a count it would be 0. A total of
    0 counts as none.
    """
    if total is None and (not unit or 0 < float(done) < 1):
        return min(1.0, max(0.0, float(done)))
    whole = None if total is None else _count(total) or None
    return ProgressCounts(_count(done), whole, _unit(unit))


def _count(value: float) -> int:
    number = float(value)  # accepts number types of other libraries
    return int(min(MAX_COUNT, max(0, number))) if math.isfinite(number) else 0


def _unit(unit: str) -> str:
    """Shorten a unit, and drop lone surrogates, which JSON can't carry."""
    return str(unit).encode("utf-8", "ignore").decode()[:MAX_UNIT_CHARS]


class _Shared(ctypes.Structure):
    """Memory shared by both processes. `version` is odd while the step's process writes."""

    _fields_ = (
        ("version", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("done", ctypes.c_double),
        ("total", ctypes.c_double),
        ("unit", ctypes.c_char * (4 * MAX_UNIT_CHARS)),
    )


class SharedProgress:
    """Progress of a step in another process.

    There is no lock, since a process may be killed while it holds one: a reader retries if a write was in progress.
    One thread may write at a time.
    """

    def __init__(self, context: BaseContext) -> None:
        self._memory: Any = context.Value(_Shared, lock=False)

    def write(self, progress: Progress) -> None:
        memory = self._memory
        memory.version += 1
        if isinstance(progress, ProgressCounts):
            memory.kind = _DONE if progress.total is None else _DONE_OF_TOTAL
            memory.done, memory.total = progress.done, progress.total or 0
            memory.unit = progress.unit.encode()
        else:
            memory.kind, memory.done = _PART, progress
        memory.version += 1

    def read(self) -> Progress | None:
        """Return the latest progress; None if there is none, or it changes too fast to be read."""
        memory = self._memory
        for _ in range(MAX_READS):
            before = memory.version
            kind, done, total, unit = memory.kind, memory.done, memory.total, memory.unit
            if before % 2 == 0 and memory.version == before:
                return _decoded(kind, done, total, unit)
        return None

    def clear(self) -> None:
        """Forget the previous attempt. The process must be idle."""
        self._memory.kind = _NONE
        self._memory.version = 0


def _decoded(kind: int, done: float, total: float, unit: bytes) -> Progress | None:
    if kind == _NONE:
        return None
    if kind == _PART:
        return done
    whole = int(total) if kind == _DONE_OF_TOTAL else None
    return ProgressCounts(int(done), whole, unit.decode("utf-8", "replace"))
