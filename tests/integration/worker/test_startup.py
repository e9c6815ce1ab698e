"""A service's actions before its first pull and after its last."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.worker import Service, StepContext, StepResult
from lucius.worker.execution import encode_success
from lucius.worker.host import host
from lucius.worker.journal import Journal
from lucius.worker.runtime import SHUTDOWN_HOOKS_SECONDS
from lucius.worker.settings import WorkerSettings
from tests.integration.worker.bench import Bench
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive, until


def worker_settings(orchestrator: FakeOrchestrator, data_dir: Path) -> WorkerSettings:
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


async def test_orphaned_results_are_sent_while_startup_hooks_run(
    orchestrator: FakeOrchestrator, tmp_path: Path
) -> None:
    before = Journal(tmp_path / "services" / "ocr")
    done = directive(orchestrator.url)
    before.begin([done])
    before.finish(done, encode_success(done, StepResult({"n": 1})))
    before.close()
    log: list[str] = []
    service = service_with(log=log)
    loaded, stop = asyncio.Event(), asyncio.Event()
    service.startup(loaded.wait)
    running = asyncio.create_task(host([service], worker_settings(orchestrator, tmp_path), stop))
    await until(lambda: bool(orchestrator.of_type("result")))
    assert orchestrator.of_type("result")[0]["result"] == {"n": 1}
    assert orchestrator.pulls == []
    loaded.set()
    await until(lambda: bool(orchestrator.pulls))
    stop.set()
    await running
    assert log == ["shutdown"]


async def test_failing_startup_hook_ends_the_process_with_its_error(
    orchestrator: FakeOrchestrator, tmp_path: Path
) -> None:
    log: list[str] = []
    service = service_with(log=log)

    @service.startup
    def load() -> None:
        raise RuntimeError("the model is not there")

    with pytest.raises(RuntimeError, match="the model is not there"):
        await host([service], worker_settings(orchestrator, tmp_path))
    assert (orchestrator.pulls, log) == ([], [])


async def test_service_can_be_stopped_during_startup(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    log: list[str] = []
    service = service_with(log=log)
    stop = asyncio.Event()
    service.startup(asyncio.Event().wait)
    running = asyncio.create_task(host([service], worker_settings(orchestrator, tmp_path), stop))
    stop.set()
    await asyncio.wait_for(running, 10)
    assert (orchestrator.pulls, log) == ([], [])


@pytest.mark.parametrize("how", ["in time", "stopped again"])
async def test_shutdown_hook_that_does_not_end_is_abandoned(bench: Bench, how: str) -> None:
    service = service_with(log=[])
    service.shutdown(asyncio.Event().wait)
    runtime = bench.start(service)
    await until(lambda: runtime.is_ready)
    runtime.stop()
    runtime.stop()  # a hurried stop: the hook still gets its time
    await until(lambda: SHUTDOWN_HOOKS_SECONDS in bench.timing.waits)
    assert bench.running is not None
    assert not bench.running.done()
    with capture_logs() as lines:
        if how == "stopped again":
            runtime.stop()
        else:
            bench.timing.advance(SHUTDOWN_HOOKS_SECONDS)
        await bench.ended()
    assert any("shutdown hook" in line["event"] for line in lines)


async def test_shutdown_hook_that_fails_raises_its_error(bench: Bench) -> None:
    service = service_with(log=[])

    @service.shutdown
    def close() -> None:
        raise OSError("can't close")

    runtime = bench.start(service)
    await until(lambda: runtime.is_ready)
    runtime.stop()
    with pytest.raises(OSError, match="can't close"):
        await bench.ended()
