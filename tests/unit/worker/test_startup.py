"""What a service does before its first pull, and after its last."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.worker import Service, StepContext, StepResult
from lucius.worker.execution import success
from lucius.worker.host import host
from lucius.worker.journal import Journal
from lucius.worker.runtime import SHUTDOWN_SECONDS
from lucius.worker.settings import WorkerSettings
from tests.unit.worker.bench import Bench
from tests.unit.worker.support import API_KEY, FakeOrchestrator, directive, until


def told(orchestrator: FakeOrchestrator, data_dir: Path) -> WorkerSettings:
    return WorkerSettings(
        orchestrator_url=orchestrator.url, api_key=API_KEY, data_dir=data_dir, handle_signals=False, grace_seconds=1
    )


def service_with(*, log: list[str]) -> Service:
    service = Service("ocr")

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        return StepResult()

    @service.shutdown
    async def close() -> None:
        log.append("shutdown")

    return service


async def test_results_left_over_do_not_wait_for_a_model_to_load(
    orchestrator: FakeOrchestrator, tmp_path: Path
) -> None:
    before = Journal(tmp_path / "services" / "ocr")
    done = directive(orchestrator.url)
    before.begin([done])
    before.finish(done, success(done, StepResult({"n": 1})))
    before.close()
    log: list[str] = []
    service = service_with(log=log)
    loaded, stop = asyncio.Event(), asyncio.Event()
    service.startup(loaded.wait)
    running = asyncio.create_task(host([service], told(orchestrator, tmp_path), stop))
    await until(lambda: bool(orchestrator.of_type("result")))
    assert orchestrator.of_type("result")[0]["result"] == {"n": 1}
    assert orchestrator.pulls == []
    loaded.set()
    await until(lambda: bool(orchestrator.pulls))
    stop.set()
    await running
    assert log == ["shutdown"]


async def test_a_service_that_can_not_start_ends_the_process_with_the_reason(
    orchestrator: FakeOrchestrator, tmp_path: Path
) -> None:
    log: list[str] = []
    service = service_with(log=log)

    @service.startup
    def load() -> None:
        raise RuntimeError("the model is not there")

    with pytest.raises(RuntimeError, match="the model is not there"):
        await host([service], told(orchestrator, tmp_path))
    assert (orchestrator.pulls, log) == ([], [])


async def test_a_service_can_be_stopped_while_it_starts(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    log: list[str] = []
    service = service_with(log=log)
    stop = asyncio.Event()
    service.startup(asyncio.Event().wait)
    running = asyncio.create_task(host([service], told(orchestrator, tmp_path), stop))
    stop.set()
    await asyncio.wait_for(running, 10)
    assert (orchestrator.pulls, log) == ([], [])


@pytest.mark.parametrize("how", ["in time", "told again"])
async def test_a_shutdown_hook_that_does_not_end_is_left_behind(bench: Bench, how: str) -> None:
    service = service_with(log=[])
    service.shutdown(asyncio.Event().wait)
    runtime = bench.start(service)
    await until(lambda: runtime.ready)
    runtime.stop()
    runtime.stop()  # in a hurry; all the same the hook has its time
    await until(lambda: SHUTDOWN_SECONDS in bench.timing.waits)
    assert bench.running is not None
    assert not bench.running.done()
    with capture_logs() as lines:
        if how == "told again":
            runtime.stop()
        else:
            bench.timing.advance(SHUTDOWN_SECONDS)
        await bench.ended()
    assert any("shutdown hook" in line["event"] for line in lines)


async def test_a_shutdown_hook_that_fails_is_heard_of(bench: Bench) -> None:
    service = service_with(log=[])

    @service.shutdown
    def close() -> None:
        raise OSError("can't close")

    runtime = bench.start(service)
    await until(lambda: runtime.ready)
    runtime.stop()
    with pytest.raises(OSError, match="can't close"):
        await bench.ended()
