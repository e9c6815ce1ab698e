"""Processes for functions that hold the interpreter: pure Python computing, or C code that keeps the GIL.

Each slot is a process that is kept for the next attempt, so that what it has loaded stays. Unlike a thread it can be
ended: a fenced attempt's process is killed. One that dies (out of memory, a crash in C) costs its own attempt only.

The child's side is in `child.py`. What it answers is JSON: whatever a function returns or raises, we can read it.
"""

import os
import pickle
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Literal

import msgspec

from lucius.contract import Directive
from lucius.worker.child import NO_PROGRESS, REASONS, Said, Work, serve
from lucius.worker.context import LocalLine, StepResult
from lucius.worker.failure import Mapped, NonRetryable, StepFailure, Transient
from lucius.worker.service import Step
from lucius.worker.threads import Threads
from lucius.worker.workspace import Entry, Places

START_SECONDS = 60.0
LOOK_SECONDS = 1.0
JOIN_SECONDS = 2.0

_decode = msgspec.json.Decoder(Said).decode


class Processes:
    """As many processes as attempts ran at once; the runtime bounds those."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._free: list[_Slot] = []
        self._busy: dict[_Slot, LocalLine] = {}

    async def run(self, request: bytes, line: LocalLine) -> tuple[StepResult | None, dict[str, Entry]]:
        """What the function returns and wrote. Cancelled, its process is killed."""
        slot = self._take()
        self._busy[slot] = line
        line.watch(lambda: _progress(slot))
        line.on_stop(lambda: self._tell(slot, line))
        try:
            said = await self._threads.run(lambda: slot.ask(request), f"process {slot.pid}")
        except BaseException:  # cancelled, or it died
            slot.kill()
            raise
        finally:
            del self._busy[slot]
            last = _progress(slot)
            line.watch(lambda: last)  # the slot's number is the next attempt's
        self._free.append(slot)
        if said.failure is not None:
            raise StepFailure(
                said.failure.code,
                said.failure.message,
                failure_class=said.failure.failure_class,
                retry_after_seconds=said.failure.retry_after_seconds,
            )
        return (StepResult(said.result, said.artifact_refs) if said.returned else None), said.written

    def close(self) -> None:
        for slot in (*self._free, *self._busy):
            slot.kill()
        for slot in self._free:
            slot.bury()
        self._free.clear()

    def _take(self) -> "_Slot":
        while self._free:
            slot = self._free.pop()
            if slot.alive:
                slot.progress.value, slot.stop.value = NO_PROGRESS, 0
                return slot
            slot.bury()  # it died while it had nothing to do: no attempt's fault
        return _Slot()

    def _tell(self, slot: "_Slot", line: LocalLine) -> None:
        if line.stopping is not None and self._busy.get(slot) is line:
            slot.stop.value = REASONS.index(line.stopping) + 1


class _Slot:
    """A process, a pipe to it, and two numbers it shares with us: how far it is, and why it should stop."""

    def __init__(self) -> None:
        context = get_context("spawn")  # a fork of a process with threads may hang
        self.progress = context.Value("d", NO_PROGRESS, lock=False)
        self.stop = context.Value("i", 0, lock=False)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self.progress, self.stop, os.getpid()))
        self._process.start()
        theirs.close()
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        return _state(self.pid) == "running" if hasattr(os, "waitid") else self._process.is_alive()

    def ask(self, request: bytes) -> Said:
        """Blocks until the function has ended, or the process has."""
        try:
            if not self._ready:
                self._ready = self._receive(START_SECONDS) is not None
            if self._ready:
                self._pipe.send_bytes(request)
                answer = self._receive(None)
                if answer is not None:
                    return _decode(answer)
        except (OSError, EOFError):
            pass
        raise self._died()

    def kill(self) -> None:
        """The process, and all that the step has started and left in its group."""
        if hasattr(os, "waitid") and _state(self.pid) != "buried":  # then the number may be another's
            with suppress(ProcessLookupError, PermissionError):  # it has no group yet, or nothing in it is ours
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def bury(self) -> None:
        """Leave neither what it started, nor a zombie, nor an open pipe."""
        self.kill()
        self._process.join(JOIN_SECONDS)
        self._pipe.close()

    def _receive(self, seconds: float | None) -> bytes | None:
        """None: it has died, or said nothing for so long."""
        until = None if seconds is None else time.monotonic() + seconds
        while not wait([self._pipe, self._process.sentinel], LOOK_SECONDS):
            # A process that it started may hold both open after its death.
            if not self.alive or (until is not None and time.monotonic() > until):
                return None
        return self._pipe.recv_bytes() if self._pipe.poll() else None

    def _died(self) -> StepFailure:
        started = self._ready
        self.kill()
        self.bury()
        code = self._process.exitcode
        if started:
            return Transient("PROCESS_DIED", f"the process that did the step ended unexpectedly, with {code}")
        why = "its main module can't be imported, or calls run() outside of `if __name__ == '__main__':`"
        return StepFailure("PROCESS_NOT_STARTED", f"no process for the step could be started ({code}); perhaps {why}")


def request_for(
    step: Step, directive: Directive, places: Places, errors: Mapping[type[BaseException], Mapped]
) -> bytes:
    """What a child needs to know of an attempt. Raises NonRetryable if it can't be told."""
    known = {error: mapped for error, mapped in errors.items() if _has_a_name(error)}
    try:
        return pickle.dumps(Work(step.execute, step.params, directive, places, known))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NonRetryable("STEP_NOT_IMPORTABLE", f"a step in a process must be found by its name: {error}") from error


def _has_a_name(error: type[BaseException]) -> bool:
    """Whether a child can import it; what it can't, it does not raise either."""
    with suppress(pickle.PicklingError, AttributeError):
        return bool(pickle.dumps(error))
    return False


def _state(pid: int) -> Literal["running", "dead", "buried"]:
    """Of a child of ours. Asking does not bury it."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "buried"
    return "running" if ended is None else "dead"


def _progress(slot: _Slot) -> float | None:
    done: float = slot.progress.value
    return None if done == NO_PROGRESS else done
