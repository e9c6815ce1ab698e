"""The side of a step's process: asked over a pipe for one attempt after the other, until its parent is gone."""

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
from lucius.worker.context import LocalLine, StepContext, as_json, names_of
from lucius.worker.failure import FailureClass, Mapped, StepFailure, StopReason, failure_of, traceback_of, unexpected
from lucius.worker.logs import configure_logging
from lucius.worker.service import call, checked
from lucius.worker.workspace import Entry, Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

NO_PROGRESS = -1.0
REASONS = tuple(StopReason)
PARENT_CHECK_SECONDS = 1.0
STOP_CHECK_SECONDS = 0.1
SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG

_encode = msgspec.json.Encoder().encode


class Work(msgspec.Struct, frozen=True):
    """What is asked for."""

    function: Callable[..., Any]
    params: Any
    directive: Directive
    places: Places
    errors: Mapping[type[BaseException], Mapped]


class Failed(msgspec.Struct, frozen=True):
    code: str
    message: str
    failure_class: FailureClass
    retry_after_seconds: float | None


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """How the function ended."""

    returned: bool = False
    """Whether it returned something other than None."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    artifact_refs: list[str] = []
    written: dict[str, Entry] = {}
    failure: Failed | None = None


class Line:
    """To the runtime, over numbers shared with it. After the attempt nobody hears it any more."""

    def __init__(self, progress: Any, stop: Any) -> None:
        self._progress = progress
        self._stop = stop
        self._acts = LocalLine()
        self._watched = False
        self.over = False

    def progress(self, done: float) -> None:
        if not self.over:  # a thread that the function left behind may still speak
            self._progress.value = done

    @property
    def stopping(self) -> StopReason | None:
        told: int = self._stop.value
        return REASONS[told - 1] if told and not self.over else None

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


def serve(pipe: Connection, progress: Any, stop: Any, parent: int) -> None:
    """The main of a step's process."""
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, so that what the step starts is killed with it
    _end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The parent's to handle, though a whole group or cgroup gets them. Not ignored, which programs that the step
        # starts would inherit.
        signal.signal(number, lambda *_: None)
    if not structlog.is_configured():
        configure_logging()
    with suppress(EOFError, OSError):  # the parent is gone
        pipe.send_bytes(b"ready")
        while True:
            line = Line(progress, stop)
            said = _work_on(pipe.recv_bytes(), line)
            line.over = True
            pipe.send_bytes(_encode(said))


def _work_on(request: bytes, line: Line) -> Said:
    try:
        work: Work = pickle.loads(request)
    except Exception as error:  # importing the author's modules may raise anything
        log.error("the step's function can't be imported", exc_info=error)
        return _failed(StepFailure("STEP_NOT_IMPORTABLE", unexpected(error).message))
    directive = work.directive
    structlog.contextvars.bind_contextvars(**names_of(directive))
    context = StepContext(directive, work.places, line)
    try:
        return _said(call(work.function, context, work.params), context)
    except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, and not all can be sent
        known = failure_of(error, work.errors)
        if known is None:
            told = traceback_of(error, directive.callback_token)
            log.error("step failed unexpectedly", exception=told, **names_of(directive))
        return _failed(known or unexpected(error))
    finally:
        structlog.contextvars.clear_contextvars()


def _said(result: object, context: StepContext) -> Said:
    if result is None:
        return Said(written=context.written)
    output = checked(result)
    refs = [str(ref) for ref in output.artifact_refs]
    result = msgspec.Raw(as_json(output.result))
    return Said(returned=True, result=result, artifact_refs=refs, written=context.written)


def _failed(failure: StepFailure) -> Said:
    return Said(failure=Failed(failure.code, failure.message, failure.failure_class, failure.retry_after_seconds))


def _end_with(parent: int) -> None:
    """However the parent ends. The kernel's signal reaches even code that lets no other thread run."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - of use here only

        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent,), name="parent", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)
