"""Steps in separate processes: each gives one RESULT however it ends, and nothing is left behind."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lucius.contract import ProgressCounts
from lucius.worker import Service, StepContext, StepResult, StopReason
from lucius.worker.context import LocalChannel
from lucius.worker.execution import Executor
from lucius.worker.processes import ProcessPool
from lucius.worker.testing import run_step
from lucius.worker.threads import Threads
from lucius.worker.timing import Timing
from lucius.worker.workspace import Places
from tests.integration.worker import step_functions
from tests.integration.worker.bench import Bench
from tests.integration.worker.processes import alive, seen, written
from tests.integration.worker.support import directive, until

REPO = Path(__file__).parents[3]
LOST = {"status": 409, "disposition": "STALE"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class SharedExecutor:
    """One executor for a test's attempts, so that they share processes as in a service."""

    def __init__(self) -> None:
        self.folder = Path("/nowhere")
        self.executor = Executor(step_functions.in_processes(), Places(), Timing(), lambda: None)

    async def run(self, step_type: str, line: LocalChannel | None = None, **payload: Any) -> dict[str, Any]:
        work = directive(step_type=step_type, payload=payload, workspace_ref=f"file://{self.folder}/workspace")
        async with asyncio.timeout(30):
            said: dict[str, Any] = json.loads(await self.executor.execute(work, line or LocalChannel()))
        return said


@pytest.fixture(scope="module")
def shared_steps() -> Iterator[SharedExecutor]:
    """Yield steps whose processes serve several tests: starting one takes longer than all of its work."""
    before = children()  # a server that other tests use
    steps = SharedExecutor()
    yield steps
    steps.executor.close()
    deadline = time.monotonic() + 10
    while not children() <= before and time.monotonic() < deadline:
        time.sleep(0.01)  # the thread that waits for a busy process also reaps it
    assert children() <= before, "no process is left, and no zombie"


@pytest.fixture
def steps(shared_steps: SharedExecutor, tmp_path: Path) -> SharedExecutor:
    shared_steps.folder = tmp_path
    return shared_steps


def children() -> set[int]:
    """Return the ids of child processes, except multiprocessing's resource tracker, which stays."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = {int(pid) for listing in found for pid in listing.read_text().split()}
    return {pid for pid in pids if "resource_tracker" not in command_of(pid)}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return "resource_tracker"  # ended meanwhile


async def test_process_is_reused_by_the_next_attempt(steps: SharedExecutor) -> None:
    first = await steps.run("DOUBLE", number=21)
    again = await steps.run("DOUBLE", number=1)
    assert (first["result"]["doubled"], again["result"]["doubled"]) == (42, 2)
    assert first["result"]["pid"] == again["result"]["pid"] != os.getpid()
    assert first["result"]["pid"] in children()


async def test_concurrent_attempts_have_a_process_each(steps: SharedExecutor) -> None:
    both = await asyncio.gather(steps.run("leave_a_thread"), steps.run("leave_a_thread"))
    assert len({said["result"]["pid"] for said in both}) == 2


async def test_invalid_payload_is_not_retried(steps: SharedExecutor) -> None:
    said = await steps.run("DOUBLE", number="x")
    assert (said["failure_class"], said["error"]["code"]) == ("NON_RETRYABLE", "INVALID_PAYLOAD")


@pytest.mark.parametrize(
    ("how", "failure_class", "code", "message"),
    [
        ("reported", "RATE_LIMITED", "BUSY", "later, [redacted]"),
        ("mapped", "DEPENDENCY_FAILED", "LIBRARY", "LibraryError: of a library"),
        ("group", "NON_RETRYABLE", "BAD", "input"),
        ("not sendable", "RETRYABLE", "UNEXPECTED_ERROR", "CanNotBeSent: can't be sent"),
        ("exit", "RETRYABLE", "UNEXPECTED_ERROR", "SystemExit: 3"),
        ("base", "RETRYABLE", "UNEXPECTED_ERROR", "KeyboardInterrupt: "),
        ("stop iteration", "RETRYABLE", "UNEXPECTED_ERROR", "StopIteration: over"),
        ("odd text", "RETRYABLE", "UNEXPECTED_ERROR", "ValueError: half a character: ?"),
    ],
)
async def test_failures_are_passed_from_the_process_unchanged(
    steps: SharedExecutor, how: str, failure_class: str, code: str, message: str
) -> None:
    said = await steps.run("fail", how=how)
    assert (said["failure_class"], said["error"]["code"], said["error"]["message"]) == (failure_class, code, message)
    assert said.get("retry_after_seconds") == (30 if how == "reported" else None)


@pytest.mark.parametrize("what", ["lock", "itself", "much", "bytes of no text", "dict"])
async def test_result_that_cannot_be_sent_is_invalid_output(steps: SharedExecutor, what: str) -> None:
    said = await steps.run("return_odd", what=what)
    assert (said["failure_class"], said["error"]["code"]) == ("NON_RETRYABLE", "INVALID_OUTPUT")
    assert (await steps.run("return_odd", what="null"))["status"] == "SUCCEEDED"


@pytest.mark.parametrize("how", ["kill -9", "exit"])
async def test_process_that_dies_fails_its_own_attempt_only(steps: SharedExecutor, tmp_path: Path, how: str) -> None:
    other = asyncio.create_task(steps.run("leave_a_thread"))
    died = await steps.run("die", mark=str(tmp_path / "mark"), how=how)
    assert (died["failure_class"], died["error"]["code"]) == ("TRANSIENT", "PROCESS_DIED")
    assert (await other)["status"] == "SUCCEEDED"
    assert (await steps.run("die", mark=str(tmp_path / "mark"), how=how))["result"] == "alive"


async def test_process_that_died_while_idle_is_replaced(steps: SharedExecutor) -> None:
    pid = (await steps.run("DOUBLE", number=1))["result"]["pid"]
    os.kill(pid, signal.SIGKILL)
    await seen(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))  # with all its threads
    said = await steps.run("DOUBLE", number=2)
    assert said["result"]["doubled"] == 4


async def test_progress_and_stop_reason_pass_between_processes(steps: SharedExecutor, tmp_path: Path) -> None:
    line = LocalChannel()
    running = asyncio.create_task(steps.run("wait_for_stop", line, mark=str(tmp_path / "mark")))
    await written(tmp_path / "mark")
    assert line.last_progress == 0.5
    line.stop(StopReason.CANCELLED)
    said = await running
    assert said["error"]["code"] == "CANCELLED"
    assert await written(tmp_path / "mark.told") == "CANCELLED"


async def test_progress_counts_are_read_consistently(steps: SharedExecutor, tmp_path: Path) -> None:
    line = LocalChannel()
    running = asyncio.create_task(steps.run("count_pages", line, mark=str(tmp_path / "mark")))
    await written(tmp_path / "mark")
    await until(lambda: line.last_progress is not None)
    seen = [progress for _ in range(5000) if (progress := line.last_progress) is not None]
    line.stop(StopReason.CANCELLED)
    assert (await running)["status"] == "SUCCEEDED"
    assert len(seen) > 1000
    for progress in seen:
        assert isinstance(progress, ProgressCounts)
        assert (progress.total, progress.unit) == (2 * progress.done, f"page-{progress.done}")


async def test_stop_callbacks_run_in_the_process(steps: SharedExecutor, tmp_path: Path) -> None:
    line = LocalChannel()
    running = asyncio.create_task(steps.run("call_on_stop", line, mark=str(tmp_path / "mark")))
    await written(tmp_path / "mark")
    line.stop(StopReason.CANCELLED)
    assert (await running)["result"] == {"told": True, "stopping": "CANCELLED"}


async def test_attempt_receives_nothing_of_the_former_one(steps: SharedExecutor, tmp_path: Path) -> None:
    """Neither progress from a thread it left behind, nor a stop sent to it too late."""
    former, later = LocalChannel(), LocalChannel()
    first = await steps.run("leave_a_thread", former, chatter=True)
    running = asyncio.create_task(steps.run("wait_for_stop", later, mark=str(tmp_path / "mark")))
    assert int(await written(tmp_path / "mark")) == first["result"]["pid"]
    former.stop(StopReason.LEASE_LOST)
    await asyncio.sleep(20 * step_functions.TICK)  # time enough to receive it, if it did
    assert not (tmp_path / "mark.told").exists()
    told = later.last_progress, former.last_progress
    later.stop(StopReason.CANCELLED)
    assert (await running)["error"]["code"] == "CANCELLED"
    assert told == (0.5, 0.99)
    assert await written(tmp_path / "mark.told") == "CANCELLED"


async def test_cancelled_attempt_kills_its_process(steps: SharedExecutor, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    running = asyncio.create_task(steps.run("hold_the_interpreter", mark=str(mark)))
    pid = int(await written(mark))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await seen(lambda: not alive(pid))
    await seen(lambda: steps.executor.stray == 0)


async def test_cancelled_attempt_kills_a_process_that_is_starting(tmp_path: Path) -> None:
    steps, before = SharedExecutor(), children()
    running = asyncio.create_task(steps.run("ignore_stop", mark=str(tmp_path / "mark")))
    (pid,) = await seen(lambda: children() - before)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await seen(lambda: not alive(pid))
    await seen(lambda: steps.executor.stray == 0)
    assert not (tmp_path / "mark").exists()


async def test_signal_to_the_process_group_does_not_end_a_step(steps: SharedExecutor) -> None:
    assert (await steps.run("group_signalled"))["result"] == "still here"


async def test_files_written_in_a_process_are_in_the_manifest(steps: SharedExecutor, tmp_path: Path) -> None:
    said = await steps.run("write_files")
    folder = tmp_path / "workspace/ocr/1"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sorted(manifest["artifacts"]) == ["result.json", "text/page 1.txt"]
    assert manifest["artifacts"]["text/page 1.txt"] == {"sha256": said["result"]["sha256"], "size": 3}
    assert said["artifact_refs"][0] == said["result"]["text"] == f"file://{folder}/text/page%201.txt"


async def test_failed_step_in_a_process_writes_no_manifest(steps: SharedExecutor, tmp_path: Path) -> None:
    assert (await steps.run("write_files", fail=True))["error"]["code"] == "BAD"
    assert not (tmp_path / "workspace/ocr/1/manifest.json").exists()


@pytest.mark.parametrize("done", [True, False])
async def test_guard_runs_in_a_process(tmp_path: Path, done: bool) -> None:
    service = step_functions.in_processes()
    outcome = await run_step(service, "nothing", {"done": done}, folder=tmp_path, guard={})
    assert outcome.result == ("found" if done else None)


async def test_log_lines_of_a_process_name_the_job_and_the_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    service = step_functions.in_processes()
    assert (await run_step(service, "say_something", folder=tmp_path, traceparent=TRACE)).succeeded
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "from a process" in line]
    assert (line["jobId"], line["stepId"]) == ("job-1", "say_something")
    assert (line["trace_id"], line["traceparent"]) == ("4bf92f3577b34da6a3ce929d0e0e4736", TRACE)


# Steps that can't start


async def test_function_that_cannot_be_imported_fails_the_attempt_with_its_name(tmp_path: Path) -> None:
    service = Service("ocr")
    service.step("X", run_in="process")(_nameless())
    outcome = await run_step(service, "X", folder=tmp_path)
    assert outcome.code == "STEP_NOT_IMPORTABLE"
    assert outcome.message is not None
    assert "no_such_name" in outcome.message


def _nameless() -> Any:
    def copy(ctx: StepContext) -> StepResult:
        return StepResult()

    copy.__qualname__ = "no_such_name"
    return copy


async def test_missing_module_fails_the_attempt_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone.py").write_text("def work(ctx): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gone  # type: ignore[import-not-found]  # noqa: PLC0415

    service = Service("ocr")
    service.step("X", run_in="process")(gone.work)
    (tmp_path / "gone.py").unlink()
    outcome = await run_step(service, "X", folder=tmp_path)
    assert (outcome.failure_class, outcome.code) == ("RETRYABLE", "STEP_NOT_IMPORTABLE")
    assert outcome.message is not None
    assert "gone" in outcome.message
    monkeypatch.delitem(sys.modules, "gone")


async def test_mapping_a_local_exception_does_not_break_the_other_mappings(tmp_path: Path) -> None:
    class Local(Exception):
        pass

    service = step_functions.in_processes()
    service.map_error(Local, service.errors[step_functions.LibraryError].failure_class)
    assert (await run_step(service, "fail", {"how": "mapped"}, folder=tmp_path)).code == "LIBRARY"


async def test_closing_ends_idle_and_busy_processes(tmp_path: Path) -> None:
    steps, before = SharedExecutor(), children()
    await steps.run("DOUBLE", number=1)
    running = asyncio.create_task(steps.run("ignore_stop", mark=str(tmp_path / "mark")))
    await written(tmp_path / "mark")
    steps.executor.close()
    assert (await running)["error"]["code"] == "PROCESS_DIED"
    assert children() <= before


@pytest.mark.parametrize(
    ("then", "end"), [("wait", "cancelled"), ("wait", "closed"), ("die", "by itself"), ("return", "closed")]
)
async def test_program_started_by_a_step_ends_with_its_process(tmp_path: Path, then: str, end: str) -> None:
    steps = SharedExecutor()
    try:
        running = asyncio.create_task(steps.run("start_a_program", mark=str(tmp_path / "mark"), then=then))
        program = int(await written(tmp_path / "mark"))
        if then == "return":
            assert (await running)["result"] == "done"
            assert alive(program), "a step may leave something at work, as long as its process is kept"
        if end == "cancelled":
            running.cancel()
        elif end == "closed":
            steps.executor.close()
        await asyncio.wait({running})
        await seen(lambda: not alive(program))
    finally:
        steps.executor.close()


def test_pool_starts_no_process_before_it_is_needed() -> None:
    before = children()
    ProcessPool(Threads(lambda: None)).close()
    assert children() == before


# In the runtime


async def test_code_that_holds_the_interpreter_does_not_stop_heartbeats(bench: Bench, tmp_path: Path) -> None:
    bench.start(step_functions.in_processes())
    payload = {"mark": str(tmp_path / "mark")}
    await bench.publish(1, step_type="hold_the_interpreter", payload=payload, lease_seconds=9.0)
    await written(tmp_path / "mark")
    for count in (1, 2, 3):
        bench.timing.advance(3)
        await until(lambda count=count: len(bench.orchestrator.of_type("heartbeat")) == count)  # type: ignore[misc]
        await bench.sender.wait_until_below(1)
    (tmp_path / "mark.pipe").write_bytes(b".")
    assert {item["progress"] for item in bench.orchestrator.of_type("heartbeat")} == {0.25}
    assert (await bench.result())["result"] == "done"


async def test_lost_lease_kills_the_process_and_frees_its_slot(bench: Bench, tmp_path: Path) -> None:
    runtime = bench.start(step_functions.in_processes(), concurrency=1)
    await bench.publish(1, step_type="ignore_stop", payload={"mark": str(tmp_path / "mark")})
    pid = int(await written(tmp_path / "mark"))
    bench.orchestrator.answer = lambda item: LOST if item["type"] == "heartbeat" else {"status": 200}
    bench.timing.advance(300)
    await seen(lambda: not runtime.attempts and runtime.stray == 0)
    assert not alive(pid)
    await bench.publish(2, step_type="DOUBLE", payload={"number": 2})
    assert (await bench.result())["jobId"] == "job-2"


async def test_stopping_kills_an_unfinished_process_and_reports_it(bench: Bench, tmp_path: Path) -> None:
    runtime = bench.start(step_functions.in_processes(), grace=10)
    await bench.publish(1, step_type="ignore_stop", payload={"mark": str(tmp_path / "mark")})
    pid = int(await written(tmp_path / "mark"))
    runtime.stop()
    await until(lambda: 10 in bench.timing.pauses)
    bench.timing.advance(10)
    await bench.ended()
    assert (await bench.result())["error"]["code"] == "SERVICE_STOPPING"
    await seen(lambda: not alive(pid))
