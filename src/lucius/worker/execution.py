"""Runs an author's function where it belongs, and turns whatever comes of it into a RESULT."""

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec
import structlog

from lucius.contract import Directive, Error, ResultCallback
from lucius.worker.context import LocalLine, StepContext, StepResult, as_json, names_of
from lucius.worker.failure import StepFailure, failure_of, redacted, traceback_of, unexpected
from lucius.worker.processes import Processes, request_for
from lucius.worker.service import Service, Step, call, checked
from lucius.worker.threads import Threads
from lucius.worker.timing import Timing
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

DELAY_SLICES = 10

_encode = msgspec.json.Encoder().encode


class Executor:
    """One per service: its functions, and the threads and processes they run in."""

    def __init__(
        self, service: Service, places: Places, timing: Timing, on_free: Callable[[], None], delay: float = 0.0
    ) -> None:
        self.service = service
        self._places = places
        self._timing = timing
        self._threads = Threads(on_free)
        self._processes = Processes(self._threads)
        self._delay = delay

    @property
    def stray(self) -> int:
        return self._threads.stray

    def close(self) -> None:
        self._processes.close()

    async def execute(self, directive: Directive, line: LocalLine) -> bytes:
        """The encoded RESULT, a success or a failure. Raises CancelledError, or what ends the process, only."""
        try:
            context = StepContext(directive, self._places, line, self._threads)
            if self._delay:
                await self._take_time(context)
            result = await self._result(context, line)
            body = success(directive, result)
            await self._seal(context)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, SystemExit too
            return failure(directive, redacted(self._failure(error, directive), directive.callback_token))
        return body

    async def _result(self, context: StepContext, line: LocalLine) -> StepResult:
        directive = context.directive
        step = self.service.step_for(directive.step_type)
        if directive.guard is not None:
            found = await self._call(self.service.guard_for(directive.step_type), context, line)
            if found is not None:
                return checked(found)
        return checked(await self._call(step, context, line))

    async def _call(self, step: Step, context: StepContext, line: LocalLine) -> object:
        directive = context.directive
        match step.run_in:
            case "loop":
                return await call(step.execute, context, step.params)
            case "thread":
                name = f"{directive.jobId}/{directive.stepId}/{directive.attempt_no}"
                return await self._threads.run(lambda: call(step.execute, context, step.params), name)
            case "process":
                request = request_for(step, directive, self._places, self.service.errors)
                result, written = await self._processes.run(request, line)
                if written:
                    context.files.written.update(written)
                return result

    async def _seal(self, context: StepContext) -> None:
        if context.written:
            await self._threads.run(context.files.write_manifest, "manifest")

    async def _take_time(self, context: StepContext) -> None:
        """For rehearsals: every step takes this much longer."""
        for done in range(DELAY_SLICES):
            context.progress(done / DELAY_SLICES)
            await self._timing.sleep(self._delay / DELAY_SLICES)
            context.raise_if_stopping()

    def _failure(self, error: BaseException, directive: Directive) -> StepFailure:
        known = failure_of(error, self.service.errors)
        if known is not None:
            return known
        told = traceback_of(error, directive.callback_token)
        log.error("step failed unexpectedly", exception=told, **names_of(directive))
        return unexpected(error)


def success(directive: Directive, output: StepResult) -> bytes:
    result = _blank(directive, "SUCCEEDED")
    result.result = output.result
    result.artifact_refs = [str(ref) for ref in output.artifact_refs]
    return as_json(result)


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
