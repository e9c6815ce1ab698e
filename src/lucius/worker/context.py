"""What a step is given beside its parameters: the directive, its files, and a line to the runtime."""

import asyncio
import threading
from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

import structlog
from msgspec import Raw, Struct, field, to_builtins
from msgspec.json import Encoder

from lucius.contract import Directive, StepInput
from lucius.worker.failure import NonRetryable, Stopped, StopReason
from lucius.worker.threads import Threads
from lucius.worker.workspace import Entry, Files, Places, Workspace

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RESULT_BYTES = 256 * 1024


class StepResult(Struct, frozen=True):
    """What a successful attempt leaves: a small JSON result, and refs to the artifacts it wrote."""

    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)


def as_json(value: Any) -> bytes:
    """Encoded for a RESULT. Raises NonRetryable: the same step would return the same again."""
    try:
        body = _encode(value)
        if b"null" in body:
            _refuse_nan(to_builtins(value, enc_hook=_as_text, str_keys=True))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NonRetryable("INVALID_OUTPUT", f"the result is not JSON: {error}") from error
    if len(body) > RESULT_BYTES:
        raise NonRetryable("INVALID_OUTPUT", f"the result has {len(body)} bytes; results are small, write an artifact")
    return body


def _refuse_nan(value: Any) -> None:
    """JSON has no such number: it would arrive as null. Raises ValueError."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case float() as number if not isfinite(number):
                raise ValueError(f"{number} is no number in JSON")
            case dict() as members:
                waiting.extend(members.values())
            case list() | tuple() | set() | frozenset() as items:
                waiting.extend(items)
            case _:
                pass


def _as_text(value: Any) -> str:
    """An Artifact is a text, too, wherever in a result it is; what a step's process says was looked at there."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Raw):
        return ""
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode = Encoder(enc_hook=_as_text).encode


class Line(Protocol):
    """Between a step and the runtime, whichever thread or process the step runs in."""

    def progress(self, done: float) -> None: ...

    @property
    def stopping(self) -> StopReason | None: ...

    def on_stop(self, act: Callable[[], object]) -> None: ...


class LocalLine:
    """The line to a step in this process."""

    def __init__(self) -> None:
        self._progress: Callable[[], float | None] = lambda: None
        self._stopping: StopReason | None = None
        self._acts: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def progress(self, done: float) -> None:
        self._progress = lambda: done

    def watch(self, progress: Callable[[], float | None]) -> None:
        """Ask there how far the step is, since it runs elsewhere."""
        self._progress = progress

    @property
    def last_progress(self) -> float | None:
        return self._progress()

    @property
    def stopping(self) -> StopReason | None:
        return self._stopping

    def on_stop(self, act: Callable[[], object]) -> None:
        with self._lock:
            if self._stopping is None:
                self._acts.append(act)
                return
        act()

    def stop(self, reason: StopReason) -> None:
        """The first reason stays, but that a lost lease outweighs a cancelled job."""
        with self._lock:
            if self._stopping is None or reason is StopReason.LEASE_LOST:
                self._stopping = reason
            acts, self._acts = self._acts, []
        for act in acts:
            try:
                act()
            except Exception:  # whatever it is, it is the step's own: neither the others nor we suffer for it
                log.exception("what a step wanted done on stopping failed")


class StepContext:
    """One attempt at one step. All of it may be used from any thread, but for what has to be awaited."""

    def __init__(self, directive: Directive, places: Places, line: Line, threads: Threads | None = None) -> None:
        self.directive = directive
        self._line = line
        self._places = places
        self._threads = threads
        self._files: Files | None = None
        self._workspace: Workspace | None = None

    @property
    def payload(self) -> dict[str, Any]:
        return self.directive.payload

    @property
    def inputs(self) -> dict[str, StepInput]:
        """What earlier steps of the job left behind, by step id."""
        return self.directive.inputs

    @property
    def job_id(self) -> str:
        return self.directive.jobId

    @property
    def step_id(self) -> str:
        return self.directive.stepId

    @property
    def tenant_id(self) -> str:
        return self.directive.tenant_id

    @property
    def attempt_no(self) -> int:
        return self.directive.attempt_no

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this step: hand it to systems that you call."""
        return self.directive.idempotency_key

    @property
    def correlation_id(self) -> str:
        return self.directive.correlation_id

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the job: hand it on with the calls you make."""
        return self.directive.traceparent

    @property
    def last_step(self) -> bool:
        """Whether this step's output is what the client wants at `output_ref`."""
        return self.directive.last_step

    @property
    def item(self) -> Any:
        """Inside a map: the item this step is for."""
        return self.directive.item

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """Lines that carry the job, the step, the attempt and the trace."""
        logger: structlog.stdlib.BoundLogger = structlog.get_logger(**names_of(self.directive))
        return logger

    @property
    def files(self) -> Files:
        """Reads and writes, blocking: for plain functions."""
        if self._files is None:
            self._files = Files(self.directive, self._places)
        return self._files

    @property
    def written(self) -> dict[str, Entry]:
        """The artifacts so far, by name."""
        return self._files.written if self._files is not None else {}

    @property
    def workspace(self) -> Workspace:
        """Reads and writes, to be awaited: for async functions."""
        if self._workspace is None:
            self._workspace = Workspace(self.files, self._threads)
        return self._workspace

    def progress(self, done: float) -> None:
        """How far the work is, 0 to 1. It leaves with the next heartbeat."""
        self._line.progress(min(1.0, max(0.0, float(done))))

    @property
    def stopping(self) -> StopReason | None:
        """Why this attempt should end soon, if it should."""
        return self._line.stopping

    def raise_if_stopping(self) -> None:
        """For long loops: end the attempt here if nobody waits for it any more."""
        reason = self._line.stopping
        if reason is not None:
            raise Stopped(reason)

    def on_stop(self, act: Callable[[], object]) -> None:
        """Call `act` once the attempt should end, at once if it should already: to end a subprocess, say."""
        self._line.on_stop(act)

    async def wait_stop(self) -> StopReason:
        """Until the attempt should end."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        self._line.on_stop(lambda: loop.call_soon_threadsafe(stopped.set))
        await stopped.wait()
        reason = self._line.stopping
        assert reason is not None
        return reason


def names_of(directive: Directive) -> dict[str, object]:
    """What every log line about an attempt says."""
    names: dict[str, object] = {
        "service": directive.service,
        "jobId": directive.jobId,
        "stepId": directive.stepId,
        "attempt_no": directive.attempt_no,
        "correlation_id": directive.correlation_id,
    }
    if directive.traceparent:
        names["trace_id"] = directive.traceparent.split("-")[1] if "-" in directive.traceparent else ""
    return names
