"""The event loop's default threads belong to the steps: no work of the SDK waits behind them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lucius.adapters.bus.local import LocalConsumer
from lucius.worker import Service, StepContext, StepResult, run
from lucius.worker.connect import open_consumer
from lucius.worker.health import ReadinessCheck
from lucius.worker.hooks import call_all
from lucius.worker.resolver import Resolver
from lucius.worker.settings import WorkerSettings
from lucius.worker.testing import run_step
from lucius.worker.transport import Transport
from lucius.worker.workspace import MAX_CONCURRENT_CALLS, Artifact, Files
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive


@asynccontextmanager
async def all_threads_busy() -> AsyncIterator[None]:
    gate = threading.Event()
    executor = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    blocked = loop.run_in_executor(None, gate.wait)
    try:
        async with asyncio.timeout(10):
            yield
        assert not blocked.done()
    finally:
        gate.set()
        await blocked


def by_name(orchestrator: FakeOrchestrator) -> str:
    return f"http://localhost:{orchestrator.port}"


async def test_callback_resolves_its_host_while_default_threads_are_busy(orchestrator: FakeOrchestrator) -> None:
    async with all_threads_busy(), Transport() as transport:
        url = f"{by_name(orchestrator)}/v1/callbacks/ack"
        assert (await transport.post(url, b'{"jobId": "job-1"}')).status == 200


async def test_pull_resolves_its_host_while_default_threads_are_busy(orchestrator: FakeOrchestrator) -> None:
    orchestrator.offer(directive(orchestrator.url))
    settings = WorkerSettings(orchestrator_url=by_name(orchestrator), api_key=API_KEY)
    consumer = open_consumer(settings, "ocr")
    assert isinstance(consumer, LocalConsumer)
    async with all_threads_busy():
        try:
            assert [found.jobId for found in await consumer.pull(1, 0)] == ["job-1"]
        finally:
            await consumer.close()


async def test_workspace_reads_and_writes_while_default_threads_are_busy(tmp_path: Path) -> None:
    service = Service("ocr")

    @service.step("OCR")
    async def execute(ctx: StepContext) -> StepResult:
        async with all_threads_busy():
            ref = await ctx.workspace.write("a", b"a")
            await ctx.workspace.write_output(await ctx.workspace.read(ref))
        return StepResult()

    outcome = await run_step(service, "OCR", folder=tmp_path)
    assert (outcome.status, outcome.output.read_bytes()) == ("SUCCEEDED", b"a")


async def test_attempt_uses_a_bounded_number_of_threads_for_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service("ocr")
    at_once: list[int] = []
    writing: set[str] = set()
    full = threading.Event()

    def write(_: Files, name: str, data: bytes) -> Artifact:
        writing.add(name)
        at_once.append(len(writing))
        if len(writing) == MAX_CONCURRENT_CALLS:
            full.set()
        full.wait(10)  # all writers that can run are here
        writing.discard(name)
        return Artifact.of(name, data)

    monkeypatch.setattr(Files, "write", write)

    @service.step("OCR")
    async def execute(ctx: StepContext) -> StepResult:
        await asyncio.gather(*(ctx.workspace.write(f"{number}", b"x") for number in range(100)))
        return StepResult()

    assert (await run_step(service, "OCR", folder=tmp_path)).succeeded
    assert (len(at_once), max(at_once)) == (100, MAX_CONCURRENT_CALLS)


async def test_hooks_and_checks_run_while_default_threads_are_busy() -> None:
    called: list[str] = []
    async with all_threads_busy():
        await call_all([lambda: called.append("hook")])
        assert await ReadinessCheck("x", lambda: called.append("check")).run() == "ok"
    assert called == ["hook", "check"]


async def test_unknown_host_is_a_resolver_error() -> None:
    with pytest.raises(OSError, match=r"not known|No address|failure in name"):
        await Resolver().resolve("no-such-host.invalid", 80)
    found = await Resolver().resolve("127.0.0.1", 80)
    assert [(one["host"], one["port"]) for one in found] == [("127.0.0.1", 80)]


def test_default_threads_suffice_for_all_concurrent_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the loop has a handful of threads, at any concurrency."""
    steps = 40
    together = threading.Barrier(steps)

    async def host(services: Sequence[Service], settings: WorkerSettings) -> None:
        await asyncio.gather(*(asyncio.to_thread(together.wait, 10) for _ in range(steps)))

    monkeypatch.setattr(run, "host", host)
    run.serve([], WorkerSettings(concurrency=steps))
    assert not together.broken
