"""Runs a step's function on the loop, in a thread or in a process, and encodes its outcome as a RESULT."""

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec
import structlog

from lucius.contract import Directive, Error, ResultCallback
from lucius.worker.context import LocalChannel, StepContext, StepResult, encode_json, log_fields
from lucius.worker.definition import ServiceDefinition, Step, call_step, check_result
from lucius.worker.failure import StepFailure, classify_error, format_traceback, redact, unexpected_failure
from lucius.worker.processes import ProcessPool, encode_request
from lucius.worker.threads import Threads
from lucius.worker.timing import Timing
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

DELAY_SLICES = 10
MAX_ARTIFACT_REFS = 1000

_encode = msgspec.json.Encoder().encode


class Executor:
    """Runs one service's functions and owns the threads and processes they run in."""

    def __init__(
        self,
        service: ServiceDefinition,
        places: Places,
        timing: Timing,
        on_free: Callable[[], None],
        delay: float = 0.0,
    ) -> None:
        self.service = service
        self._places = places
        self._timing = timing
        self._threads = Threads(on_free)
        self._processes = ProcessPool(self._threads)
        self._delay = delay

    @property
    def stray(self) -> int:
        return self._threads.stray

    def close(self) -> None:
        self._processes.close()

    async def execute(self, directive: Directive, channel: LocalChannel) -> bytes:
        """Return the encoded RESULT, a success or a failure. Raises only CancelledError and KeyboardInterrupt."""
        try:
            context = StepContext(directive, self._places, channel, self._threads)
            if self._delay:
                await self._delay_step(context)
            result = await self._result(context, channel)
            body = encode_success(directive, name_outputs(result, context.outputs))
            await self._seal(context)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, SystemExit too
            return encode_failure(directive, redact(self._failure(error, directive), directive.callback_token))
        return body

    async def _result(self, context: StepContext, channel: LocalChannel) -> StepResult:
        directive = context.directive
        step = self.service.step_for(directive.step_type)
        if directive.guard is not None:
            found = await self._call(self.service.guard_for(directive.step_type), context, channel)
            if found is not None:
                return check_result(found)
        return check_result(await self._call(step, context, channel))

    async def _call(self, step: Step, context: StepContext, channel: LocalChannel) -> object:
        directive = context.directive
        match step.run_in:
            case "loop":
                return await call_step(step.execute, context, step.params)
            case "thread":
                name = f"{directive.jobId}/{directive.stepId}/{directive.attempt_no}"
                return await self._threads.run(lambda: call_step(step.execute, context, step.params), name)
            case "process":
                request = encode_request(step, directive, self._places, self.service.errors)
                reply = await self._processes.run(request, channel)
                if reply.written or reply.outputs:
                    context.files.written.update(reply.written)
                    context.files.outputs.extend(reply.outputs)
                return StepResult(reply.result, reply.artifact_refs) if reply.returned else None

    async def _seal(self, context: StepContext) -> None:
        if context.written:
            await self._threads.run(context.files.write_manifest, "manifest")

    async def _delay_step(self, context: StepContext) -> None:
        """Wait for the configured delay (LUCIUS_SERVICE_DELAY), which makes steps slower in tests."""
        for _ in range(DELAY_SLICES):
            await self._timing.sleep(self._delay / DELAY_SLICES)
            context.raise_if_stopping()

    def _failure(self, error: BaseException, directive: Directive) -> StepFailure:
        known = classify_error(error, self.service.errors)
        if known is not None:
            return known
        trace = format_traceback(error, directive.callback_token)
        log.error("step failed unexpectedly", exception=trace, **log_fields(directive))
        return unexpected_failure(error)


def name_outputs(output: StepResult, written: list[str]) -> StepResult:
    """Add refs written to `output_ref` to the artifacts, up to 1,000, unless the artifacts or the result name them."""
    if not written:
        return output
    decoded = msgspec.json.decode(encode_json(output.result))
    named = {*output.artifact_refs, decoded.get("output_ref") if isinstance(decoded, dict) else None}
    missing = [ref for ref in dict.fromkeys(written) if ref not in named]
    room = max(0, MAX_ARTIFACT_REFS - len(output.artifact_refs))
    return StepResult(output.result, [*output.artifact_refs, *missing[:room]])


def encode_success(directive: Directive, output: StepResult) -> bytes:
    result = _blank(directive, "SUCCEEDED")
    result.result = output.result
    result.artifact_refs = [str(ref) for ref in output.artifact_refs]
    return encode_json(result)


def encode_failure(directive: Directive, reported: StepFailure) -> bytes:
    result = _blank(directive, "FAILED")
    result.failure_class = str(reported.failure_class)
    result.error = Error(reported.code, reported.message)
    result.retry_after_seconds = reported.retry_after_seconds
    return _encode(result)


class _Result(ResultCallback, kw_only=True, omit_defaults=True):
    """A ResultCallback encoded without members that have their default value."""


def _blank(directive: Directive, status: Literal["SUCCEEDED", "FAILED"]) -> _Result:
    return _Result(
        jobId=directive.jobId,
        stepId=directive.stepId,
        tenant_id=directive.tenant_id,
        attempt_no=directive.attempt_no,
        lease_id=directive.lease_id,
        status=status,
    )
