"""Processes for functions that hold the interpreter: pure Python computing, or C code that keeps the GIL.

Each slot is a process that is kept for the next attempt, so that what it has loaded stays. Unlike a thread it can be
ended: a fenced attempt's process is killed. One that dies (out of memory, a crash in C) costs its own attempt only.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import msgspec

from lucius.contract import Directive
from lucius.worker.context import LocalLine, StepContext, StepResult
from lucius.worker.failure import FailureClass, Mapped, StepFailure, StopReason, Transient, failure_of, unexpected
from lucius.worker.service import call
from lucius.worker.workspace import Entry, Places

NO_PROGRESS = -1.0
PARENT_CHECK_SECONDS = 1.0
_REASONS = tuple(StopReason)


class Work(msgspec.Struct, frozen=True):
    """What a child needs to know of an attempt."""

    function: Callable[..., Any]
    params: Any
    directive: Directive
    places: Places
    errors: Mapping[type[BaseException], Mapped]


class Said(msgspec.Struct, frozen=True):
    """How the function ended, in what can be sent between processes whatever it raised."""

    result: Any
    written: dict[str, Entry]
    failure: tuple[str, str, FailureClass, float | None] | None = None


class _Slot:
    """A process, and two numbers it shares with us: how far it is, and why it should stop."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.progress = context.Value("d", NO_PROGRESS, lock=False)
        self.stop = context.Value("i", 0, lock=False)
        self.pid = context.Value("i", 0, lock=False)
        self.executor = ProcessPoolExecutor(
            1,
            mp_context=context,
            initializer=_begin_child,
            initargs=(self.progress, self.stop, self.pid, os.getpid()),
        )

    def kill(self) -> None:
        if self.pid.value:
            with suppress(ProcessLookupError):
                os.kill(self.pid.value, signal.SIGKILL)
        self.executor.shutdown(wait=False, cancel_futures=True)


class Processes:
    """As many processes as attempts ran at once; the runtime bounds those."""

    def __init__(self) -> None:
        self._free: list[_Slot] = []
        self._busy: set[_Slot] = set()

    async def run(self, work: Work, line: LocalLine) -> tuple[Any, dict[str, Entry]]:
        """What the function returns and wrote. Cancelled, its process is killed."""
        slot = self._free.pop() if self._free else _Slot()
        slot.progress.value, slot.stop.value = NO_PROGRESS, 0
        self._busy.add(slot)
        line.watch(lambda: _progress(slot))
        line.on_stop(lambda: _tell(slot, line.stopping))
        try:
            said = await asyncio.wrap_future(slot.executor.submit(_execute, work))
        except BrokenProcessPool as error:
            slot.kill()
            raise Transient("PROCESS_DIED", "the process that did the step ended unexpectedly") from error
        except BaseException:  # cancelled, or a result that can't be sent between processes
            slot.kill()
            raise
        finally:
            self._busy.discard(slot)
        self._free.append(slot)
        if said.failure is not None:
            code, message, failure_class, retry_after = said.failure
            raise StepFailure(code, message, failure_class=failure_class, retry_after_seconds=retry_after)
        return said.result, said.written

    def close(self) -> None:
        for slot in (*self._free, *self._busy):
            slot.kill()
        self._free.clear()


def _progress(slot: _Slot) -> float | None:
    done: float = slot.progress.value
    return None if done == NO_PROGRESS else done


def _tell(slot: _Slot, reason: StopReason | None) -> None:
    if reason is not None:
        slot.stop.value = _REASONS.index(reason) + 1


# The child's side.


class _ChildLine:
    def __init__(self, progress: Any, stop: Any) -> None:
        self._progress = progress
        self._stop = stop

    def progress(self, done: float) -> None:
        self._progress.value = done

    @property
    def stopping(self) -> StopReason | None:
        told: int = self._stop.value
        return _REASONS[told - 1] if told else None

    def on_stop(self, act: Callable[[], object]) -> None:
        raise RuntimeError("on_stop is not there in a process: look at ctx.stopping now and then")


_line: _ChildLine | None = None


def _begin_child(progress: Any, stop: Any, pid: Any, parent: int) -> None:
    global _line  # how a pool's initializer leaves something for its tasks
    _line = _ChildLine(progress, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    pid.value = os.getpid()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def _execute(work: Work) -> Said:
    assert _line is not None
    context = StepContext(work.directive, work.places, _line)
    try:
        result = call(work.function, context, work.params)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything, and not all of it can be sent
        failure = failure_of(error, work.errors) or unexpected(error)
        return Said(None, {}, (failure.code, failure.message, failure.failure_class, failure.retry_after_seconds))
    if isinstance(result, StepResult):
        result = StepResult(result.result, [str(ref) for ref in result.artifact_refs])
    return Said(result, context.written)
