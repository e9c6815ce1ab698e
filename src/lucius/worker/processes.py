"""Process pool for step functions that hold the GIL: pure Python computation, or C code that does not release it.

Each slot is a process that is kept for the next attempt, so that loaded modules and models stay. Unlike a thread it
can be ended: a fenced attempt's process is killed. One that dies (out of memory, a crash in C) costs only its own
attempt.

The child's side is in `child.py`. It answers in JSON, so that anything a function returns or raises can be read.
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
from lucius.worker.child import STOP_REASONS, StepReply, StepRequest, serve_steps
from lucius.worker.context import LocalChannel
from lucius.worker.definition import Step
from lucius.worker.failure import ErrorMapping, NonRetryable, StepFailure, Transient
from lucius.worker.progress import SharedProgress
from lucius.worker.threads import Threads
from lucius.worker.workspace import Places

START_SECONDS = 60.0
POLL_SECONDS = 1.0
JOIN_SECONDS = 2.0

_decode = msgspec.json.Decoder(StepReply).decode


class ProcessPool:
    """Pool that grows to the highest number of concurrent attempts, which the runtime bounds."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._free: list[_Slot] = []
        self._busy: dict[_Slot, LocalChannel] = {}

    async def run(self, request: bytes, channel: LocalChannel) -> StepReply:
        """Run a request in a process; return what the function returned and wrote.

        Raises StepFailure if the function failed or its process died. Cancellation kills the process.
        """
        slot = self._take()
        self._busy[slot] = channel
        channel.read_progress_from(slot.progress.read)
        channel.on_stop(lambda: self._forward_stop(slot, channel))
        try:
            reply: StepReply = await self._threads.run(lambda: slot.ask(request), f"process {slot.pid}")
        except BaseException:  # cancelled, or the process died
            slot.kill()
            raise
        finally:
            del self._busy[slot]
            last = slot.progress.read()
            channel.read_progress_from(lambda: last)  # the next attempt reuses the slot's memory
        self._free.append(slot)
        if reply.failure is not None:
            raise StepFailure(
                reply.failure.code,
                reply.failure.message,
                failure_class=reply.failure.failure_class,
                retry_after_seconds=reply.failure.retry_after_seconds,
            )
        return reply

    def close(self) -> None:
        for slot in (*self._free, *self._busy):
            slot.kill()
        for slot in self._free:
            slot.reap()
        self._free.clear()

    def _take(self) -> "_Slot":
        while self._free:
            slot = self._free.pop()
            if slot.alive:
                slot.progress.clear()
                slot.stop.value = 0
                return slot
            slot.reap()  # it died while idle, which costs no attempt
        return _Slot()

    def _forward_stop(self, slot: "_Slot", channel: LocalChannel) -> None:
        if channel.stopping is not None and self._busy.get(slot) is channel:
            slot.stop.value = STOP_REASONS.index(channel.stopping) + 1


class _Slot:
    """A process, a pipe to it, and shared memory for its progress and its stop reason."""

    def __init__(self) -> None:
        context = get_context("spawn")  # a fork of a process with threads may hang
        self.progress = SharedProgress(context)
        self.stop = context.Value("i", 0, lock=False)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve_steps, args=(theirs, self.progress, self.stop, os.getpid()))
        self._process.start()
        theirs.close()
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        return _state(self.pid) == "running" if hasattr(os, "waitid") else self._process.is_alive()

    def ask(self, request: bytes) -> StepReply:
        """Send a request and block until the function or the process has ended. Raises StepFailure if it died."""
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
        """Kill the process and all that the step has started and left in its process group."""
        if hasattr(os, "waitid") and _state(self.pid) != "buried":  # once reaped, its pid may be reused
            with suppress(ProcessLookupError, PermissionError):  # no group yet, or no permission for what is in it
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def reap(self) -> None:
        """Kill and reap the process and close its pipe."""
        self.kill()
        self._process.join(JOIN_SECONDS)
        self._pipe.close()

    def _receive(self, seconds: float | None) -> bytes | None:
        """Return the next message; None if the process died or sent nothing for `seconds`."""
        until = None if seconds is None else time.monotonic() + seconds
        while not wait([self._pipe, self._process.sentinel], POLL_SECONDS):
            # A grandchild process may keep pipe and sentinel open after the process died.
            if not self.alive or (until is not None and time.monotonic() > until):
                return None
        return self._pipe.recv_bytes() if self._pipe.poll() else None

    def _died(self) -> StepFailure:
        started = self._ready
        self.kill()
        self.reap()
        code = self._process.exitcode
        if started:
            return Transient("PROCESS_DIED", f"the process that did the step ended unexpectedly, with {code}")
        why = "its main module can't be imported, or calls run() outside of `if __name__ == '__main__':`"
        return StepFailure("PROCESS_NOT_STARTED", f"no process for the step could be started ({code}); perhaps {why}")


def encode_request(
    step: Step, directive: Directive, places: Places, errors: Mapping[type[BaseException], ErrorMapping]
) -> bytes:
    """Encode an attempt for a child process. Raises NonRetryable if the function can't be pickled."""
    known = {error: mapped for error, mapped in errors.items() if _is_importable(error)}
    try:
        return pickle.dumps(StepRequest(step.execute, step.params, directive, places, known))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NonRetryable("STEP_NOT_IMPORTABLE", f"a step in a process must be found by its name: {error}") from error


def _is_importable(error: type[BaseException]) -> bool:
    """Return whether a child can import the exception; one it can't import it can't raise either."""
    with suppress(pickle.PicklingError, AttributeError):
        return bool(pickle.dumps(error))
    return False


def _state(pid: int) -> Literal["running", "dead", "buried"]:
    """Return the state of a child process, "buried" if it was already reaped. Does not reap it."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "buried"
    return "running" if ended is None else "dead"
