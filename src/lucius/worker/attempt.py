"""One attempt, from pickup to RESULT: ACK, keep alive, execute, report."""

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec
import structlog

from lucius.contract import Directive, Error, ResultCallback
from lucius.worker.callbacks import CallbackSender, Delivered, Delivery, GaveUp, Refused
from lucius.worker.failure import StepFailure, never, unexpected
from lucius.worker.service import Output, PlatformService, Task
from lucius.worker.timing import Timer, Timing
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RESULT_BYTES = 256 * 1024

_encode = msgspec.json.Encoder().encode


class Attempt:
    """Runs as the task `start` makes. `fence` and `abandon` end it early; after that, they do nothing."""

    def __init__(
        self, directive: Directive, service: PlatformService, sender: CallbackSender, places: Places, timing: Timing
    ) -> None:
        self.directive = directive
        self._service = service
        self._sender = sender
        self._timing = timing
        self._task = Task(directive, places)
        self._running: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._fenced = False
        self._abandoned = False

    def start(self, on_end: Callable[["Attempt", bytes | None], None]) -> asyncio.Task[None]:
        """ACK and execute. `on_end` gets the encoded RESULT, or None if the attempt was fenced meanwhile."""
        self._running = asyncio.create_task(self._run(on_end))
        return self._running

    def abandon(self) -> None:
        """The process must stop: report that, rather than let the lease run out."""
        if self._running is not None and not self._abandoned:
            self._abandoned = True
            self._running.cancel()

    async def _run(self, on_end: Callable[["Attempt", bytes | None], None]) -> None:
        self._sender.ack(self.directive, self._on_answer)
        self._beat_later()
        result: bytes | None = None
        try:
            result = await self._outcome()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._running = None
            on_end(self, result)

    async def _outcome(self) -> bytes | None:
        """The encoded RESULT: success, reported failure, surprise, or none at all."""
        try:
            return success(self.directive, await self._service.execute(self._task))
        except StepFailure as reported:
            return failure(self.directive, reported)
        except asyncio.CancelledError as cancelled:
            if self._fenced:
                return None
            if self._abandoned:
                return failure(
                    self.directive, StepFailure("SERVICE_STOPPING", "the service stopped before it was done")
                )
            if _someone_cancelled_us():
                raise
            return failure(self.directive, unexpected(cancelled))  # something inside execute was cancelled
        except Exception as surprise:  # the author's code may raise anything; the attempt must end
            log.exception("execute failed unexpectedly", **names_of(self.directive))
            return failure(self.directive, unexpected(surprise, (self.directive.callback_token,)))

    def _beat_later(self) -> None:
        pause = self.directive.lease_seconds / 3 * (0.8 + 0.2 * self._timing.random())
        self._timer = self._timing.call_later(pause, self._beat)

    def _beat(self) -> None:
        self._sender.heartbeat(self.directive, self._task.last_progress, self._on_heartbeat_answer)

    def _on_heartbeat_answer(self, delivery: Delivery) -> None:
        self._on_answer(delivery)
        if self._running is not None and not self._fenced:
            self._beat_later()

    def _on_answer(self, delivery: Delivery) -> None:
        match delivery:
            case Delivered(disposition, wanted=False):
                self._fence(disposition)
            case Delivered(_, cancel_requested):
                if cancel_requested:
                    self._task.cancelled.set()
            case Refused(status, code):
                self._fence(code or f"HTTP {status}")
            case GaveUp(reason):
                # Work goes on: after its own downtime the orchestrator gives leases a fresh period.
                log.warning("orchestrator not reached in time", reason=reason, **names_of(self.directive))

    def _fence(self, reason: str) -> None:
        """Another attempt counts now, or none: what this one does is in vain."""
        if self._running is not None and not self._fenced:
            log.warning("attempt fenced, work stopped", reason=reason, **names_of(self.directive))
            self._fenced = True
            self._running.cancel()


def success(directive: Directive, output: Output) -> bytes:
    result = _blank(directive, "SUCCEEDED")
    result.result = output.result
    result.artifact_refs = output.artifact_refs
    try:
        body = _encode(result)
    except (TypeError, ValueError) as error:
        raise never("INVALID_OUTPUT", f"the result is not JSON: {error}") from error
    if len(body) > RESULT_BYTES:
        raise never("INVALID_OUTPUT", f"the result has {len(body)} bytes; results are small, write an artifact")
    return body


def failure(directive: Directive, reported: StepFailure) -> bytes:
    result = _blank(directive, "FAILED")
    result.failure_class = str(reported.failure_class)
    result.error = Error(reported.code, reported.message)
    result.retry_after_seconds = reported.retry_after_seconds
    return _encode(result)


class _Result(ResultCallback, kw_only=True, omit_defaults=True):
    """A ResultCallback that leaves out what it does not say."""


def _blank(directive: Directive, status: Literal["SUCCEEDED", "FAILED"]) -> _Result:
    return _Result(
        jobId=directive.jobId,
        stepId=directive.stepId,
        tenant_id=directive.tenant_id,
        attempt_no=directive.attempt_no,
        lease_id=directive.lease_id,
        status=status,
    )


def _someone_cancelled_us() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def names_of(directive: Directive) -> dict[str, object]:
    return {
        "service": directive.service,
        "jobId": directive.jobId,
        "stepId": directive.stepId,
        "attempt_no": directive.attempt_no,
        "correlation_id": directive.correlation_id,
    }
