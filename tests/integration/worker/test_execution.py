"""A step's function produces one RESULT however it ends."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from lucius.contract import HeartbeatCallback, ProgressCounts
from lucius.worker import NonRetryable, Service, StepContext, StepResult, StopReason, Transient
from lucius.worker.callbacks import heartbeat_body
from lucius.worker.context import LocalChannel
from lucius.worker.execution import Executor
from lucius.worker.progress import Progress
from lucius.worker.testing import Outcome, run_step
from lucius.worker.workspace import Places
from tests.integration.worker import step_functions
from tests.integration.worker.bench import Bench
from tests.integration.worker.support import directive, until

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def service_with(function: Any) -> Service:
    service = Service("ocr")
    service.step("X")(function)
    return service


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(NonRetryable):
    def __init__(self) -> None:
        self.code = 5  # type: ignore[assignment]
        self.message = object()  # type: ignore[assignment]


SURPRISES: list[BaseException] = [
    KeyError("x"),
    SystemExit(3),
    StopAsyncIteration(),
    Speechless(),
    ValueError("half a character: \udcff"),
    BaseException("of a library that wants to be special"),
    asyncio.CancelledError(),
]


@pytest.mark.parametrize("error", SURPRISES, ids=lambda error: type(error).__name__)
async def test_an_async_function_that_raises_anything_ends_with_a_result(bench: Bench, error: BaseException) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        raise error

    runtime = bench.start(service_with(execute))
    await bench.publish(1, step_type="X")
    result = await bench.result()
    assert (result["status"], result["failure_class"]) == ("FAILED", "RETRYABLE")
    assert result["error"]["code"] == "UNEXPECTED_ERROR"
    await until(lambda: not runtime.attempts)


async def test_failure_with_invalid_fields_ends_with_a_result(tmp_path: Path) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        raise Odd

    outcome = await run_step(service_with(execute), "X", folder=tmp_path)
    assert (outcome.failure_class, outcome.code) == ("NON_RETRYABLE", "5")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"a": [1.5, {"b": n}]}, lambda n: ({"a": (n,)},)])
async def test_non_finite_number_in_a_result_is_invalid_output(
    tmp_path: Path, number: float, wrap: Callable[[float], Any]
) -> None:
    outcome = await run_step(service_with(lambda ctx: StepResult(wrap(number))), "X", folder=tmp_path)
    assert (outcome.failure_class, outcome.code) == ("NON_RETRYABLE", "INVALID_OUTPUT")


async def test_null_in_a_result_is_kept(tmp_path: Path) -> None:
    meant = {"a": None, "b": [None, "null", 1.5], "c": {"null": True}}
    assert (await run_step(service_with(lambda ctx: StepResult(meant)), "X", folder=tmp_path)).result == meant
    in_process = step_functions.in_processes()
    assert (await run_step(in_process, "return_odd", {"what": "null"}, folder=tmp_path)).succeeded
    nan = await run_step(in_process, "return_odd", {"what": "nan"}, folder=tmp_path)
    assert nan.code == "INVALID_OUTPUT"


async def test_step_that_cancels_its_own_task_ends_with_a_result(bench: Bench) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)
        return StepResult()

    runtime = bench.start(service_with(execute))
    await bench.publish(1, step_type="X")
    assert (await bench.result())["failure_class"] == "TRANSIENT"
    await until(lambda: not runtime.attempts)


@pytest.mark.parametrize("value", [object(), 1 + 2j, {1, 2, object()}, "\udcff", "x" * 300_000])
async def test_result_that_is_no_json_or_too_large_is_not_retried(value: object, tmp_path: Path) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        return StepResult({"value": value})

    outcome = await run_step(service_with(execute), "X", folder=tmp_path)
    assert (outcome.failure_class, outcome.code) == ("NON_RETRYABLE", "INVALID_OUTPUT")


async def test_result_may_not_contain_itself_but_may_contain_artifacts(tmp_path: Path) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        if ctx.payload:
            ctx.payload["me"] = ctx.payload
            return StepResult(ctx.payload)
        written = await ctx.workspace.write("a.txt", b"a")
        return StepResult({"where": [written]})

    itself = await run_step(service_with(execute), "X", {"x": 1}, folder=tmp_path)
    assert itself.code == "INVALID_OUTPUT"
    holding = await run_step(service_with(execute), "X", folder=tmp_path)
    assert holding.result == {"where": [f"file://{tmp_path}/workspace/x/1/a.txt"]}


async def test_callback_token_is_redacted_from_results_and_logs(tmp_path: Path) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        raise RuntimeError(f"GET http://x/?t={ctx.directive.callback_token}")

    with capture_logs() as lines:
        outcome = await run_step(service_with(execute), "X", folder=tmp_path, callback_token="secret-token")
    assert outcome.message == "RuntimeError: GET http://x/?t=[redacted]"
    (line,) = [line for line in lines if line["event"] == "step failed unexpectedly"]
    assert "test_execution.py" in line["exception"]
    assert "secret-token" not in json.dumps(lines, default=str)


async def test_reported_failure_is_not_logged_as_unexpected(tmp_path: Path) -> None:
    with capture_logs() as lines:
        await run_step(service_with(fails_with(Transient("X"))), "X", folder=tmp_path)
    assert lines == []


def fails_with(error: Exception) -> Any:
    async def execute(ctx: StepContext) -> NoReturn:
        raise error

    return execute


# Guards


def guarded(found: Any) -> tuple[Service, list[str]]:
    service = Service("ocr")
    done: list[str] = []

    @service.step("X")
    async def execute(ctx: StepContext) -> StepResult:
        done.append("executed")
        return StepResult("executed")

    @service.guard("X")
    async def guard(ctx: StepContext) -> StepResult | None:
        done.append("asked")
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    return service, done


async def run_guarded(service: Service, folder: Path, **changes: Any) -> Outcome:
    return await run_step(service, "X", folder=folder, **{"guard": {"kind": "query"}, **changes})


async def test_guard_runs_first_and_its_finding_is_the_result(tmp_path: Path) -> None:
    service, done = guarded(StepResult({"was": "done"}, ["file:///a"]))
    outcome = await run_guarded(service, tmp_path)
    assert (outcome.result, outcome.artifact_refs) == ({"was": "done"}, ["file:///a"])
    assert done == ["asked"]


async def test_guard_that_finds_nothing_lets_the_step_run(tmp_path: Path) -> None:
    service, done = guarded(None)
    assert (await run_guarded(service, tmp_path)).result == "executed"
    assert done == ["asked", "executed"]


async def test_guard_that_fails_fails_the_attempt_and_the_step_does_not_run(tmp_path: Path) -> None:
    service, done = guarded(Transient("AWAY", "can't tell"))
    outcome = await run_guarded(service, tmp_path)
    assert (outcome.failure_class, outcome.code) == ("TRANSIENT", "AWAY")
    assert done == ["asked"]


async def test_guard_result_is_checked_like_a_step_result(tmp_path: Path) -> None:
    service, done = guarded({"was": "done"})
    assert (await run_guarded(service, tmp_path)).code == "INVALID_OUTPUT"
    assert done == ["asked"]


async def test_guarded_retry_without_a_guard_function_is_not_run(tmp_path: Path) -> None:
    service = Service("ocr")
    service.step("X")(step_functions.nothing)
    outcome = await run_guarded(service, tmp_path)
    assert (outcome.failure_class, outcome.code) == ("NON_RETRYABLE", "GUARD_MISSING")


async def test_first_attempt_runs_no_guard(tmp_path: Path) -> None:
    service, done = guarded(StepResult("found"))
    assert (await run_guarded(service, tmp_path, guard=None)).result == "executed"
    assert done == ["executed"]


async def test_a_guard_for_every_step_type_may_be_a_plain_function(tmp_path: Path) -> None:
    service = Service("ocr")
    service.step("X")(step_functions.nothing)
    service.guard()(step_functions.was_done)
    assert (await run_step(service, "X", {"done": True}, folder=tmp_path, guard={})).result == "found"


# Context


async def test_context_exposes_the_directive(tmp_path: Path) -> None:
    seen: list[StepContext] = []

    async def execute(ctx: StepContext) -> None:
        seen.append(ctx)

    await run_step(
        service_with(execute),
        "X",
        {"a": 1},
        folder=tmp_path,
        attempt_no=2,
        tenant_id="acme",
        traceparent=TRACE,
        item={"n": 7},
        last_step=False,
    )
    (ctx,) = seen
    assert (ctx.payload, ctx.job_id, ctx.step_id, ctx.tenant_id) == ({"a": 1}, "job-1", "x", "acme")
    assert (ctx.attempt_no, ctx.idempotency_key, ctx.correlation_id) == (2, "key-of-x", "tests")
    assert (ctx.traceparent, ctx.item, ctx.last_step, ctx.inputs) == (TRACE, {"n": 7}, False, {})


async def test_log_lines_of_a_step_name_the_job_and_the_trace(bench: Bench) -> None:
    async def on_loop(ctx: StepContext) -> None:
        structlog.get_logger().info("plain")
        ctx.log.info("own")

    def in_thread(ctx: StepContext) -> None:
        structlog.get_logger().info("plain")
        ctx.log.info("own")

    for function in (on_loop, in_thread):
        with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
            runtime = bench.start(service_with(function))
            await bench.publish(1, step_type="X", traceparent=TRACE, lease_id=function.__name__)
            await until(lambda: bool(bench.results()))
            runtime.stop()
            await bench.ended()
        told = [line for line in lines if line["event"] in ("plain", "own")]
        assert len(told) == 2
        for line in told:
            assert line["jobId"] == "job-1"
            assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
            assert (line["service"], line["stepId"], line["attempt_no"]) == ("ocr", "ocr", 1)
        bench.orchestrator.requests.clear()


async def test_progress_is_clamped_to_a_number_from_0_to_1(tmp_path: Path) -> None:
    line = LocalChannel()
    said: list[Progress | None] = []

    class Number:
        """A number like numpy's."""

        def __float__(self) -> float:
            return 0.5

    async def execute(ctx: StepContext) -> None:
        for done in (-1, 2, float("nan"), Number(), 1):
            ctx.progress(done)  # type: ignore[arg-type]
            said.append(line.last_progress)

    outcome = await run_step(service_with(execute), "X", folder=tmp_path, line=line)
    assert outcome.succeeded
    assert said == [0.0, 1.0, 0.0, 0.5, 1.0]
    assert all(type(done) is float for done in said)


async def test_fraction_with_a_unit_stays_a_fraction(tmp_path: Path) -> None:
    line = LocalChannel()

    async def execute(ctx: StepContext) -> None:
        ctx.progress(0.5, unit="page")

    assert (await run_step(service_with(execute), "X", folder=tmp_path, line=line)).succeeded
    assert line.last_progress == 0.5


@pytest.mark.parametrize(
    ("args", "counts"),
    [
        ((7, 20, "page"), ProgressCounts(7, 20, "page")),
        ((7.0, 20), ProgressCounts(7, 20)),
        ((7, None, "page"), ProgressCounts(7, None, "page")),
        ((-1, 0), ProgressCounts(0)),
        ((3, 0, "page"), ProgressCounts(3, None, "page")),
        ((0, None, "page"), ProgressCounts(0, None, "page")),
        ((1, None, "page"), ProgressCounts(1, None, "page")),
        ((float("nan"), float("inf")), ProgressCounts(0)),
        ((2**60, 2**61), ProgressCounts(2**53 - 1, 2**53 - 1)),
        ((1, 2, "\ud800" + "x" * 40), ProgressCounts(1, 2, "x" * 32)),
    ],
)
async def test_progress_in_counts_is_fit_for_a_heartbeat(args: Any, counts: ProgressCounts, tmp_path: Path) -> None:
    line = LocalChannel()

    async def execute(ctx: StepContext) -> None:
        ctx.progress(*args)

    assert (await run_step(service_with(execute), "X", folder=tmp_path, line=line)).succeeded
    assert line.last_progress == counts
    body = heartbeat_body(directive(), line.last_progress)
    assert msgspec.json.decode(body, type=HeartbeatCallback).progress == counts


async def test_stop_callbacks_run_once_and_a_failing_one_affects_no_other(bench: Bench) -> None:
    done: list[str] = []

    async def execute(ctx: StepContext) -> StepResult:
        def fail() -> None:
            done.append("failing")
            raise RuntimeError("of the author")

        ctx.on_stop(fail)
        ctx.on_stop(lambda: done.append("second"))
        reason = await ctx.wait_stop()
        ctx.on_stop(lambda: done.append("at once"))
        return StepResult({"told": str(reason)})

    bench.orchestrator.answer = lambda item: {"status": 200, "disposition": "APPLIED", "cancel_requested": True}
    bench.start(service_with(execute))
    await bench.publish(1, step_type="X")
    assert (await bench.result())["result"] == {"told": "CANCELLED"}
    assert done == ["failing", "second", "at once"]


async def test_plain_function_runs_in_a_thread_named_after_the_attempt(tmp_path: Path) -> None:
    def execute(ctx: StepContext) -> StepResult:
        return StepResult([threading.current_thread().name, threading.current_thread() is threading.main_thread()])

    outcome = await run_step(service_with(execute), "X", folder=tmp_path)
    assert outcome.result == ["job-1/x/1", False]


async def test_simulated_delay_heeds_a_stop(bench: Bench) -> None:
    executor = Executor(service_with(fails_with(KeyError())), Places(), bench.timing, lambda: None, delay=10)
    line = LocalChannel()
    running = asyncio.create_task(executor.execute(directive(step_type="X"), line))
    await until(lambda: bench.timing.pauses == [1])
    bench.timing.advance(1)
    await until(lambda: bench.timing.pauses == [1, 1])
    assert line.last_progress is None  # a rehearsal's delay is not work
    line.stop(StopReason.CANCELLED)
    bench.timing.advance(1)
    assert json.loads(await running)["error"]["code"] == "CANCELLED"


@pytest.mark.parametrize("named", ["nowhere", "result", "artifacts"])
@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_written_output_is_named_once_in_the_result(named: str, run_in: str, tmp_path: Path) -> None:
    in_thread = Service("ocr")
    in_thread.step("write_output")(step_functions.write_output)
    service = in_thread if run_in == "thread" else step_functions.in_processes()
    outcome = await run_step(service, "write_output", {"named": named}, folder=tmp_path)
    written = outcome.output.as_uri()
    assert outcome.succeeded
    if named == "result":
        assert (outcome.result, outcome.artifact_refs) == ({"output_ref": written}, [])
    else:
        assert outcome.artifact_refs == [written]


async def test_output_that_would_exceed_the_limit_of_refs_is_not_added(tmp_path: Path) -> None:
    async def execute(ctx: StepContext) -> StepResult:
        await ctx.workspace.write_output(b"x")
        return StepResult(None, [f"blob://out/{number}" for number in range(1000)])

    outcome = await run_step(service_with(execute), "X", folder=tmp_path)
    assert len(outcome.artifact_refs) == 1000
