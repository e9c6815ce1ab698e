"""One attempt, from pickup to RESULT: ACK, keep alive, execute, report."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from lucius.contract import Directive
from lucius.worker.callbacks import CallbackRefused, CallbackSender, Delivered, Delivery, GaveUp
from lucius.worker.context import LocalChannel, log_fields
from lucius.worker.execution import Executor, encode_failure
from lucius.worker.failure import Stopped, StopReason, unexpected_failure
from lucius.worker.progress import Progress
from lucius.worker.results import NOT_SAFE
from lucius.worker.timing import Timer, Timing

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MIN_PROGRESS_SECONDS = 2.0
"""Minimum time between a heartbeat and the next one that is sent because the progress has changed."""


class RunningAttempt:
    """One attempt, run by the task that `start` creates.

    A lost lease and `abandon` end it early; once it has ended, they do nothing.
    """

    def __init__(
        self,
        directive: Directive,
        executor: Executor,
        sender: CallbackSender,
        timing: Timing,
        delivered_once: bool = True,
    ) -> None:
        self.directive = directive
        self._delivered_once = delivered_once
        self.started = timing.now()
        self._executor = executor
        self._sender = sender
        self._timing = timing
        self._channel = LocalChannel()
        self._running: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._progress_timer: Timer | None = None
        self._reported: Progress | None = None
        """Progress in the last heartbeat; None if there was none or it was not delivered."""
        self._heartbeat_at = self.started
        self._awaits_answer = False
        self._is_heartbeat_due = False
        self._fenced = False
        self._abandoned = False
        self._answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        """First callback answer. It is the ACK's if the attempt waits for it, as heartbeats begin only then."""
        self.is_acknowledged = False
        """True once the orchestrator has answered a callback of this attempt."""

    @property
    def progress(self) -> Progress | None:
        return self._channel.last_progress

    @property
    def has_ended(self) -> bool:
        """True if the function is not running: not started, or ended with its RESULT being reported."""
        return self._running is None

    def start(self, on_end: Callable[["RunningAttempt", bytes | None], Awaitable[None]]) -> asyncio.Task[None]:
        """Send the ACK and execute the step; return the task.

        `on_end` gets the encoded RESULT, or None if the lease was lost or the attempt was not begun.
        """
        self._running = asyncio.create_task(self._run(on_end))
        return self._running

    def abandon(self) -> None:
        """Cancel the step because the process stops. The RESULT reports that, so that the lease need not expire."""
        if self._running is not None and not self._abandoned:
            self._abandoned = True
            self._channel.stop(StopReason.SHUTDOWN)
            self._running.cancel()

    async def _run(self, on_end: Callable[["RunningAttempt", bytes | None], Awaitable[None]]) -> None:
        structlog.contextvars.bind_contextvars(**log_fields(self.directive))
        try:
            result = await self._outcome()
        finally:
            for timer in (self._timer, self._progress_timer):
                if timer is not None:
                    timer.cancel()
            self._timer = self._progress_timer = self._running = None
        if result is not None:
            self._correct_progress()
        await on_end(self, result)

    async def _outcome(self) -> bytes | None:
        """Return the encoded RESULT, or None if there is nothing to report."""
        try:
            if not await self._is_wanted():
                return None
            self._schedule_heartbeat()
            self._check_progress()
            result = await self._executor.execute(self.directive, self._channel)
        except asyncio.CancelledError as cancelled:
            if self._fenced:
                return None
            if self._abandoned or _is_being_cancelled():  # the event loop is shutting down
                return encode_failure(self.directive, Stopped(StopReason.SHUTDOWN))
            return encode_failure(
                self.directive, unexpected_failure(cancelled)
            )  # something inside the step was cancelled
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the attempt must end with a RESULT
            log.error("attempt failed unexpectedly", exc_info=error, **log_fields(self.directive))
            return encode_failure(self.directive, unexpected_failure(error))
        return None if self._fenced else result  # the step may have ignored the cancellation

    async def _is_wanted(self) -> bool:
        """Send the ACK; return whether the step may be executed.

        Waits for the answer if the ACK is late or the step must not be repeated and may have been delivered twice.
        """
        late = self._timing.wall() > datetime.fromisoformat(self.directive.ack_deadline).timestamp()
        if self.directive.retry_safety == NOT_SAFE and (late or not self._delivered_once):
            return await self._was_ack_applied()
        self._sender.ack(self.directive, self._on_answer)
        if late:  # if the job has moved on, the answer fences this attempt; without an answer, execute anyway
            await self._answer
        return True

    async def _was_ack_applied(self) -> bool:
        """Return True only if this ACK was the one that was applied.

        An earlier ACK came from another process, which may have begun, or from this one with its answer lost. The two
        cannot be told apart, so the step is not executed and an operator must decide.
        """
        self._sender.ack(self.directive, self._on_answer, within=self.directive.lease_seconds)
        match await self._answer:
            case Delivered("APPLIED"):
                return True
            case answer:
                log.warning(
                    "attempt not begun: its ACK was not applied, so it may have begun before", answer=str(answer)
                )
                return False

    def _schedule_heartbeat(self) -> None:
        pause = self.directive.lease_seconds / 3 * (0.8 + 0.2 * self._timing.random())
        self._timer = self._timing.call_later(pause, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat and schedule the next after about a third of the lease.

        One is in flight at a time: if one is due before the last was answered, it is sent on that answer.
        """
        if self._awaits_answer:
            self._is_heartbeat_due = True
            return
        self._awaits_answer, self._is_heartbeat_due = True, False
        if self._timer is not None:
            self._timer.cancel()
        self._schedule_heartbeat()
        self._reported, self._heartbeat_at = self._channel.last_progress, self._timing.now()
        self._sender.heartbeat(self.directive, self._reported, self._on_heartbeat_answer)

    def _check_progress(self) -> None:
        """Send a heartbeat if the progress has changed and the last heartbeat left long enough ago."""
        wait = MIN_PROGRESS_SECONDS
        if self._channel.last_progress not in (None, self._reported):
            since = self._timing.now() - self._heartbeat_at
            if since >= MIN_PROGRESS_SECONDS:
                self._send_heartbeat()
            else:
                wait -= since
        self._progress_timer = self._timing.call_later(wait, self._check_progress)

    def _correct_progress(self) -> None:
        """Send the last progress ahead of the RESULT if an earlier one was sent, or the ended step would keep that."""
        if self._reported is not None and self._channel.last_progress != self._reported:
            self._sender.heartbeat(self.directive, self._channel.last_progress, lambda delivery: None)

    def _on_heartbeat_answer(self, delivery: Delivery) -> None:
        self._awaits_answer = False
        if isinstance(delivery, GaveUp):
            self._reported = None
        self._on_answer(delivery)
        if self._is_heartbeat_due and self._running is not None and not self._fenced:
            self._send_heartbeat()

    def _on_answer(self, delivery: Delivery) -> None:
        if not self._answer.done():
            self._answer.set_result(delivery)
        self.is_acknowledged = self.is_acknowledged or not isinstance(delivery, GaveUp)
        match delivery:
            case Delivered(disposition, is_current=False):
                self._fence(disposition)
            case Delivered(_, cancel_requested):
                if cancel_requested:
                    self._channel.stop(StopReason.CANCELLED)
            case CallbackRefused(status, code):
                self._fence(code or f"HTTP {status}")
            case GaveUp(reason):
                # Work goes on: after its own downtime the orchestrator gives leases a fresh period.
                log.warning("orchestrator not reached in time", reason=reason, **log_fields(self.directive))

    def _fence(self, reason: str) -> None:
        """Cancel the step because its attempt is no longer current."""
        if self._running is not None and not self._fenced:
            log.warning("lease lost, step cancelled", reason=reason, **log_fields(self.directive))
            self._fenced = True
            self._channel.stop(StopReason.LEASE_LOST)
            self._running.cancel()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
