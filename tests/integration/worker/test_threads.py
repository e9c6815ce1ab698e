"""Plain functions run in threads: they block nothing else, and one that can't be ended still occupies its slot."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lucius.worker import Service, StepContext, StepResult, StopReason
from lucius.worker.health import Health
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import Runtime
from lucius.worker.threads import Threads
from tests.integration.worker.bench import Bench, some_turns
from tests.integration.worker.support import until

LOST = {"status": 409, "disposition": "STALE"}
GOOD = {"status": 200, "disposition": "APPLIED"}


class Blocking:
    """A service whose step blocks until released, and which counts how many are running."""

    def __init__(self) -> None:
        self.service = Service("ocr")
        self.service.step()(self.execute)
        self.gates: dict[str, threading.Event] = {}
        self.contexts: dict[str, StepContext] = {}
        self.at_work = self.most_at_work = 0
        self._lock = threading.Lock()

    def execute(self, ctx: StepContext) -> StepResult:
        gate = self.gates[ctx.job_id] = threading.Event()
        self.contexts[ctx.job_id] = ctx
        with self._lock:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            assert gate.wait(30)
        finally:
            with self._lock:
                self.at_work -= 1
        return StepResult({"thread": threading.current_thread() is not threading.main_thread()})

    def held(self) -> list[str]:
        """Return the jobs that wait for their release."""
        return [job for job, gate in list(self.gates.items()) if not gate.is_set()]

    def let_go(self) -> None:
        for gate in list(self.gates.values()):
            gate.set()


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    blocking = Blocking()
    yield blocking
    blocking.let_go()


async def test_heartbeats_continue_while_a_plain_function_blocks(bench: Bench, blocking: Blocking) -> None:
    bench.start(blocking.service)
    await bench.publish(1, lease_seconds=9.0)
    await until(lambda: bool(blocking.contexts) and bool(bench.orchestrator.of_type("ack")))
    for count in (1, 2, 3):
        blocking.contexts["job-1"].progress(count / 10)
        bench.timing.advance(3)
        await until(lambda count=count: len(bench.orchestrator.of_type("heartbeat")) == count)  # type: ignore[misc]
        await bench.sender.wait_until_below(1)
    assert [item["progress"] for item in bench.orchestrator.of_type("heartbeat")] == [0.1, 0.2, 0.3]
    blocking.let_go()
    assert (await bench.result())["result"] == {"thread": True}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration("over"), "StopIteration: over"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (asyncio.CancelledError(), "CancelledError: "),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_exception_in_a_thread_is_the_failure_of_its_attempt(
    bench: Bench, error: BaseException, said: str
) -> None:
    service = Service("ocr")

    @service.step()
    def execute(ctx: StepContext) -> StepResult:
        raise error

    runtime = bench.start(service)
    await bench.publish(1)
    result = await bench.result()
    assert result["error"]["code"] == "UNEXPECTED_ERROR"
    assert said in result["error"]["message"]
    await until(lambda: not runtime.attempts)
    assert runtime.stray == 0


async def lose_leases(bench: Bench, runtime: Runtime, *jobs: str) -> None:
    """Answer the next heartbeat of these jobs with the loss of the lease; wait until their attempts have ended."""
    bench.orchestrator.answer = lambda item: LOST if item["jobId"] in jobs and item["type"] != "ack" else GOOD
    bench.timing.advance(300)
    await until(lambda: not {attempt.directive.jobId for attempt in runtime.attempts} & set(jobs))


async def test_lost_lease_is_visible_in_the_thread_and_nothing_is_reported(bench: Bench, blocking: Blocking) -> None:
    runtime = bench.start(blocking.service)
    await bench.publish(1)
    await until(lambda: bool(blocking.contexts) and bool(bench.orchestrator.of_type("ack")))
    before = blocking.contexts["job-1"].stopping
    await lose_leases(bench, runtime, "job-1")
    assert (before, blocking.contexts["job-1"].stopping) == (None, StopReason.LEASE_LOST)
    assert runtime.stray == 1
    blocking.let_go()
    await until(lambda: runtime.stray == 0)
    await bench.sender.wait_until_below(1)
    assert bench.results() == []


async def test_stray_thread_keeps_its_slot_until_it_ends(bench: Bench, blocking: Blocking) -> None:
    runtime = bench.start(blocking.service, concurrency=2)
    await bench.publish(1, 2, 3)
    await until(lambda: len(blocking.contexts) == 2)
    await until(lambda: len(bench.orchestrator.of_type("ack")) == 2)
    await lose_leases(bench, runtime, "job-1")
    await some_turns()
    assert (runtime.stray, blocking.at_work, bench.bus.backlog("ocr")) == (1, 2, 1)
    blocking.gates["job-1"].set()
    await until(lambda: "job-3" in blocking.contexts)
    assert blocking.most_at_work == 2


async def test_concurrency_limit_holds_whatever_leases_are_lost(bench: Bench, blocking: Blocking) -> None:
    runtime = bench.start(blocking.service, concurrency=3)
    await bench.publish(*range(12))
    seen: set[str] = set()
    while len(seen) < 12:
        # Released steps may still be on their way out, so running jobs are not yet the same as held jobs.
        await until(lambda: len(blocking.held()) == min(3, 12 - len(seen)))
        await until(lambda: all(attempt.is_acknowledged for attempt in runtime.attempts))
        current = blocking.held()
        await lose_leases(bench, runtime, current[0])  # one thread is stray, the others are not
        await some_turns()
        for job in current:
            seen.add(job)
            blocking.gates[job].set()
        await until(lambda: runtime.stray == 0)
    assert blocking.most_at_work == 3
    await until(lambda: not runtime.attempts)
    await bench.sender.wait_until_below(1)
    assert len({item["jobId"] for item in bench.results()}) == 12 - 4


async def test_process_is_unhealthy_while_stray_threads_hold_all_slots(bench: Bench, blocking: Blocking) -> None:
    runtime = bench.start(blocking.service, concurrency=2)
    health = Health([blocking.service], {"ocr": runtime}, bench.sender, Metrics())
    await bench.publish(1, 2)
    await until(lambda: len(bench.orchestrator.of_type("ack")) == 2)
    assert health.live()[0]
    await lose_leases(bench, runtime, "job-1")
    assert health.live() == (True, {"status": "ok"})
    await lose_leases(bench, runtime, "job-1", "job-2")
    assert health.live() == (False, {"status": "stuck", "stuck": ["ocr"]})
    assert b'lucius_worker_stray_threads{service="ocr"} 2.0' in health.metrics()
    blocking.let_go()
    await until(lambda: health.live()[0])


@pytest.mark.parametrize("how", ["grace is over", "stopped twice"])
async def test_stopping_does_not_wait_for_a_blocking_thread(bench: Bench, blocking: Blocking, how: str) -> None:
    runtime = bench.start(blocking.service, grace=10)
    await bench.publish(1)
    await until(lambda: bool(blocking.contexts))
    runtime.stop()
    await until(lambda: 10 in bench.timing.pauses)
    if how == "stopped twice":
        runtime.stop()
    else:
        bench.timing.advance(10)
    began = time.monotonic()
    await bench.ended()
    assert time.monotonic() - began < 2
    result = await bench.result()
    assert (result["failure_class"], result["error"]["code"]) == ("TRANSIENT", "SERVICE_STOPPING")
    assert blocking.contexts["job-1"].stopping is StopReason.SHUTDOWN
    assert blocking.at_work == 1


async def test_thread_that_ends_after_its_loop_raises_nothing() -> None:
    """As at the end of a process: its outcome has no receiver."""
    gate = threading.Event()
    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        await asyncio.to_thread(lambda: _leave_a_thread_behind(gate))
        gate.set()
        stray = [thread for thread in threading.enumerate() if thread.name == "left behind"]
        for thread in stray:
            await asyncio.to_thread(thread.join, 10)
    finally:
        threading.excepthook = hook
    assert failures == []


def _leave_a_thread_behind(gate: threading.Event) -> None:
    async def run() -> None:
        running = asyncio.create_task(Threads(lambda: None).run(gate.wait, "left behind"))
        await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(run())
