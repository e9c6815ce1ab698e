"""`StepContext`, what a step gets beside its parameters: the directive, its files and a channel to the runtime."""

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
from lucius.worker.progress import Progress, progress_from
from lucius.worker.threads import Threads
from lucius.worker.workspace import Entry, Files, Places, Workspace

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_RESULT_BYTES = 256 * 1024


class StepResult(Struct, frozen=True):
    """Result of a successful attempt: a small JSON value (up to 256 KiB) and refs to the artifacts it wrote."""

    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)


def encode_json(value: Any) -> bytes:
    """Encode a value for a RESULT.

    Raises NonRetryable INVALID_OUTPUT if it is not JSON or too large: the step would return the same again.
    """
    try:
        body = _encode(value)
        if b"null" in body:
            _refuse_nan(to_builtins(value, enc_hook=_as_text, str_keys=True))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NonRetryable("INVALID_OUTPUT", f"the result is not JSON: {error}") from error
    if len(body) > MAX_RESULT_BYTES:
        raise NonRetryable("INVALID_OUTPUT", f"the result has {len(body)} bytes; results are small, write an artifact")
    return body


def _refuse_nan(value: Any) -> None:
    """Raise ValueError if the value contains NaN or infinity, which JSON lacks: they would arrive as null."""
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
    """Encode an Artifact, at any depth, as a string; skip Raw, which a step's process has checked. Raises TypeError."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Raw):
        return ""
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode = Encoder(enc_hook=_as_text).encode


class AttemptChannel(Protocol):
    """Connects a step with the runtime, in whichever thread or process the step runs."""

    def progress(self, done: Progress) -> None: ...

    @property
    def stopping(self) -> StopReason | None: ...

    def on_stop(self, act: Callable[[], object]) -> None: ...


class LocalChannel:
    """Channel to a step in this process."""

    def __init__(self) -> None:
        self._progress: Callable[[], Progress | None] = lambda: None
        self._stopping: StopReason | None = None
        self._acts: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def progress(self, done: Progress) -> None:
        self._progress = lambda: done

    def read_progress_from(self, progress: Callable[[], Progress | None]) -> None:
        """Read the progress from a callable from now on, for a step that runs in another process."""
        self._progress = progress

    @property
    def last_progress(self) -> Progress | None:
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
        """Set the stop reason and run the `on_stop` callbacks. The first reason stays, but LEASE_LOST replaces it."""
        with self._lock:
            if self._stopping is None or reason is StopReason.LEASE_LOST:
                self._stopping = reason
            acts, self._acts = self._acts, []
        for act in acts:
            try:
                act()
            except Exception:  # the author's code may raise anything; the other callbacks must still run
                log.exception("on_stop callback of a step failed")


class StepContext:
    """One attempt at one step. Thread-safe, except for what has to be awaited."""

    def __init__(
        self, directive: Directive, places: Places, channel: AttemptChannel, threads: Threads | None = None
    ) -> None:
        self.directive = directive
        self._channel = channel
        self._places = places
        self._threads = threads
        self._files: Files | None = None
        self._workspace: Workspace | None = None

    @property
    def payload(self) -> dict[str, Any]:
        return self.directive.payload

    @property
    def inputs(self) -> dict[str, StepInput]:
        """Results and artifact refs of earlier steps of the job, by step id."""
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
        """Key that is the same for every attempt at this step: pass it to systems that you call."""
        return self.directive.idempotency_key

    @property
    def correlation_id(self) -> str:
        return self.directive.correlation_id

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the job: pass it on in the calls you make."""
        return self.directive.traceparent

    @property
    def last_step(self) -> bool:
        """True if this step's output is what the client expects at `output_ref`."""
        return self.directive.last_step

    @property
    def item(self) -> Any:
        """Item that this step is for, inside a map."""
        return self.directive.item

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """Logger that adds the service, job, step, attempt, correlation id and trace to each line."""
        logger: structlog.stdlib.BoundLogger = structlog.get_logger(**log_fields(self.directive))
        return logger

    @property
    def files(self) -> Files:
        """Blocking reads and writes, for plain functions."""
        if self._files is None:
            self._files = Files(self.directive, self._places)
        return self._files

    @property
    def written(self) -> dict[str, Entry]:
        """Artifacts written so far, by name."""
        return self._files.written if self._files is not None else {}

    @property
    def outputs(self) -> list[str]:
        """Refs of what was written to `output_ref` so far."""
        return self._files.outputs if self._files is not None else []

    @property
    def workspace(self) -> Workspace:
        """Awaitable reads and writes, for async functions."""
        if self._workspace is None:
            self._workspace = Workspace(self.files, self._threads)
        return self._workspace

    def progress(self, done: float, total: float | None = None, unit: str = "") -> None:
        """Report progress: a fraction from 0 to 1, or counts, as in `ctx.progress(7, 20, "page")`.

        A change is sent with a heartbeat within about 2 seconds. It may be called as often as needed.
        """
        self._channel.progress(progress_from(done, total, unit))

    @property
    def stopping(self) -> StopReason | None:
        """Reason why this attempt should end soon; None if it should go on."""
        return self._channel.stopping

    def raise_if_stopping(self) -> None:
        """Raise Stopped if the attempt should end. For long loops."""
        reason = self._channel.stopping
        if reason is not None:
            raise Stopped(reason)

    def on_stop(self, act: Callable[[], object]) -> None:
        """Call `act` when the attempt should end, immediately if it already should. For example to end a subprocess."""
        self._channel.on_stop(act)

    async def wait_stop(self) -> StopReason:
        """Wait until the attempt should end; return the reason."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        self._channel.on_stop(lambda: loop.call_soon_threadsafe(stopped.set))
        await stopped.wait()
        reason = self._channel.stopping
        assert reason is not None
        return reason


def log_fields(directive: Directive) -> dict[str, object]:
    """Return the fields of every log line about an attempt."""
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
