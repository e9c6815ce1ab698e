"""Child process side of `run_in="process"`: serves attempts over a pipe, one at a time, until the parent ends."""

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import structlog

from lucius.contract import Directive
from lucius.worker.context import LocalChannel, StepContext, encode_json, log_fields
from lucius.worker.definition import call_step, check_result
from lucius.worker.failure import (
    ErrorMapping,
    StepFailure,
    StopReason,
    classify_error,
    format_traceback,
    unexpected_failure,
)
from lucius.worker.failure_classes import FailureClass
from lucius.worker.logs import configure_logging
from lucius.worker.progress import Progress, SharedProgress
from lucius.worker.workspace import Entry, Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

STOP_REASONS = tuple(StopReason)
PARENT_CHECK_SECONDS = 1.0
STOP_CHECK_SECONDS = 0.1
SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG

_encode = msgspec.json.Encoder().encode


class StepRequest(msgspec.Struct, frozen=True):
    """One attempt for the child process to run."""

    function: Callable[..., Any]
    params: Any
    directive: Directive
    places: Places
    errors: Mapping[type[BaseException], ErrorMapping]


class ReportedFailure(msgspec.Struct, frozen=True):
    code: str
    message: str
    failure_class: FailureClass
    retry_after_seconds: float | None


class StepReply(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a step's function."""

    returned: bool = False
    """True if it returned something other than None."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    artifact_refs: list[str] = []
    written: dict[str, Entry] = {}
    outputs: list[str] = []
    failure: ReportedFailure | None = None


class SharedMemoryChannel:
    """Channel to the runtime over shared memory. Inactive once the attempt has ended."""

    def __init__(self, progress: SharedProgress, stop: Any) -> None:
        self._progress = progress
        self._reporting = threading.Lock()
        self._stop = stop
        self._acts = LocalChannel()
        self._watched = False
        self.over = False

    def progress(self, done: Progress) -> None:
        with self._reporting:
            if not self.over:  # a thread that the function left behind may still report
                self._progress.write(done)

    def end(self) -> None:
        """Stop reports of this attempt: the next one uses the same memory."""
        with self._reporting:
            self.over = True

    @property
    def stopping(self) -> StopReason | None:
        index: int = self._stop.value
        return STOP_REASONS[index - 1] if index and not self.over else None

    def on_stop(self, act: Callable[[], object]) -> None:
        self._acts.on_stop(act)
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, name="stop", daemon=True).start()

    def _watch(self) -> None:
        while not self.over:
            reason = self.stopping
            if reason is not None:
                self._acts.stop(reason)
                return
            time.sleep(STOP_CHECK_SECONDS)


def serve_steps(pipe: Connection, progress: SharedProgress, stop: Any, parent: int) -> None:
    """Serve attempts until the parent is gone: the main function of the child process."""
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, so that what the step starts is killed with it
    _end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The parent handles these; a whole group or cgroup may get them. SIG_IGN would be inherited by programs that
        # the step starts, a handler is not.
        signal.signal(number, lambda *_: None)
    if not structlog.is_configured():
        configure_logging()
    with suppress(EOFError, OSError):  # the parent is gone
        pipe.send_bytes(b"ready")
        while True:
            channel = SharedMemoryChannel(progress, stop)
            said = _work_on(pipe.recv_bytes(), channel)
            channel.end()
            pipe.send_bytes(_encode(said))


def _work_on(request: bytes, channel: SharedMemoryChannel) -> StepReply:
    try:
        work: StepRequest = pickle.loads(request)
    except Exception as error:  # importing the author's modules may raise anything
        log.error("the step's function can't be imported", exc_info=error)
        return _failed(StepFailure("STEP_NOT_IMPORTABLE", unexpected_failure(error).message))
    directive = work.directive
    structlog.contextvars.bind_contextvars(**log_fields(directive))
    context = StepContext(directive, work.places, channel)
    try:
        return _said(call_step(work.function, context, work.params), context)
    except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, and not all can be sent
        known = classify_error(error, work.errors)
        if known is None:
            trace = format_traceback(error, directive.callback_token)
            log.error("step failed unexpectedly", exception=trace, **log_fields(directive))
        return _failed(known or unexpected_failure(error))
    finally:
        structlog.contextvars.clear_contextvars()


def _said(result: object, context: StepContext) -> StepReply:
    if result is None:
        return StepReply(written=context.written, outputs=context.outputs)
    output = check_result(result)
    refs = [str(ref) for ref in output.artifact_refs]
    result = msgspec.Raw(encode_json(output.result))
    return StepReply(returned=True, result=result, artifact_refs=refs, written=context.written, outputs=context.outputs)


def _failed(failure: StepFailure) -> StepReply:
    return StepReply(
        failure=ReportedFailure(failure.code, failure.message, failure.failure_class, failure.retry_after_seconds)
    )


def _end_with(parent: int) -> None:
    """End this process when the parent ends, however it does.

    On Linux the kernel sends SIGKILL, which works even if the step lets no other thread run; elsewhere a thread polls.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - of use here only

        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent,), name="parent", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)
