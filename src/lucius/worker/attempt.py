"""One attempt, from pickup to RESULT: ACK, keep alive, execute, report."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from lucius.contract import Directive
from lucius.worker.callbacks import CallbackSender, Delivered, Delivery, GaveUp, Refused
from lucius.worker.context import LocalLine, names_of
from lucius.worker.execution import Executor, failure
from lucius.worker.failure import Stopped, StopReason, unexpected
from lucius.worker.results import NOT_SAFE
from lucius.worker.timing import Timer, Timing

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Attempt:
    """Runs as the task `start` makes. Losing the lease and `abandon` end it early; after that, they do nothing."""

    def __init__(
        self, directive: Directive, executor: Executor, sender: CallbackSender, timing: Timing, given_once: bool = True
    ) -> None:
        self.directive = directive
        self._given_once = given_once
        self.started = timing.now()
        self._executor = executor
        self._sender = sender
        self._timing = timing
        self._line = LocalLine()
        self._running: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._unanswered = False
        self._beat_due = False
        self._fenced = False
        self._abandoned = False
        self._answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        """The first, which is the one to the ACK: heartbeats come after it, if we waited for it."""
        self.heard = False
        """Whether the orchestrator knows that somebody is at it."""

    @property
    def progress(self) -> float | None:
        return self._line.last_progress

    @property
    def over(self) -> bool:
        """Its function has ended; what came of it is being told."""
        return self._running is None

    def start(self, on_end: Callable[["Attempt", bytes | None], Awaitable[None]]) -> asyncio.Task[None]:
        """ACK and execute. `on_end` gets the encoded RESULT, or None if the lease was lost meanwhile."""
        self._running = asyncio.create_task(self._run(on_end))
        return self._running

    def abandon(self) -> None:
        """The process must stop: report that, rather than let the lease run out."""
        if self._running is not None and not self._abandoned:
            self._abandoned = True
            self._line.stop(StopReason.SHUTDOWN)
            self._running.cancel()

    async def _run(self, on_end: Callable[["Attempt", bytes | None], Awaitable[None]]) -> None:
        structlog.contextvars.bind_contextvars(**names_of(self.directive))
        try:
            result = await self._outcome()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._running = None
        await on_end(self, result)

    async def _outcome(self) -> bytes | None:
        """The encoded RESULT, or none at all."""
        try:
            if not await self._is_wanted():
                return None
            self._beat_later()
            result = await self._executor.execute(self.directive, self._line)
        except asyncio.CancelledError as cancelled:
            if self._fenced:
                return None
            if self._abandoned or _someone_cancelled_us():  # the loop ends, and we with it
                return failure(self.directive, Stopped(StopReason.SHUTDOWN))
            return failure(self.directive, unexpected(cancelled))  # something inside the step was cancelled
        except KeyboardInterrupt:
            raise
        except BaseException as surprise:  # whatever it is, the attempt must end with a RESULT
            log.error("attempt failed unexpectedly", exc_info=surprise, **names_of(self.directive))
            return failure(self.directive, unexpected(surprise))
        return None if self._fenced else result  # it may not have heeded the cancellation

    async def _is_wanted(self) -> bool:
        """Tell of the pickup. Who may not be the only one to have it waits for the answer, and goes by it."""
        late = self._timing.wall() > datetime.fromisoformat(self.directive.ack_deadline).timestamp()
        if self.directive.retry_safety == NOT_SAFE and (late or not self._given_once):
            return await self._is_first()
        self._sender.ack(self.directive, self._on_answer)
        if late:  # the job may have gone on without it: then the answer fences us. With none, it is worth a try.
            await self._answer
        return True

    async def _is_first(self) -> bool:
        """Only if ours was the ACK that counted. One before it was another's, who may have begun, even if the bus has
        forgotten that since; or ours, its answer lost. We can't tell, so a person must."""
        self._sender.ack(self.directive, self._on_answer, within=self.directive.lease_seconds)
        match await self._answer:
            case Delivered("APPLIED"):
                return True
            case answer:
                log.warning("not begun: it may have been begun before, or nobody wants it", answer=str(answer))
                return False

    def _beat_later(self) -> None:
        pause = self.directive.lease_seconds / 3 * (0.8 + 0.2 * self._timing.random())
        self._timer = self._timing.call_later(pause, self._beat)

    def _beat(self) -> None:
        """Every third of a lease, counted from the last one's leaving. One at a time: if it was not answered by then,
        the next leaves when it is."""
        if self._unanswered:
            self._beat_due = True
            return
        self._unanswered, self._beat_due = True, False
        self._beat_later()
        self._sender.heartbeat(self.directive, self._line.last_progress, self._on_heartbeat_answer)

    def _on_heartbeat_answer(self, delivery: Delivery) -> None:
        self._unanswered = False
        self._on_answer(delivery)
        if self._beat_due and self._running is not None and not self._fenced:
            self._beat()

    def _on_answer(self, delivery: Delivery) -> None:
        if not self._answer.done():
            self._answer.set_result(delivery)
        self.heard = self.heard or not isinstance(delivery, GaveUp)
        match delivery:
            case Delivered(disposition, wanted=False):
                self._fence(disposition)
            case Delivered(_, cancel_requested):
                if cancel_requested:
                    self._line.stop(StopReason.CANCELLED)
            case Refused(status, code):
                self._fence(code or f"HTTP {status}")
            case GaveUp(reason):
                # Work goes on: after its own downtime the orchestrator gives leases a fresh period.
                log.warning("orchestrator not reached in time", reason=reason, **names_of(self.directive))

    def _fence(self, reason: str) -> None:
        """Another attempt counts now, or none: what this one does is in vain."""
        if self._running is not None and not self._fenced:
            log.warning("lease lost, work stopped", reason=reason, **names_of(self.directive))
            self._fenced = True
            self._line.stop(StopReason.LEASE_LOST)
            self._running.cancel()


def _someone_cancelled_us() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
