"""Health endpoint and metrics of a service process."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from lucius.worker import NonRetryable, Service, StepContext, StepResult, health
from lucius.worker.callbacks import CallbackSender
from lucius.worker.health import Health, ReadinessCheck, health_server
from lucius.worker.host import host
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import Runtime
from lucius.worker.settings import BadSetting, WorkerSettings
from lucius.worker.transport import Transport
from tests.integration.worker.bench import Bench, Scripted
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive, until

FAR = "2100-01-01T00:00:00Z"


class HealthClient:
    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, str, str]:
        async with aiohttp.ClientSession() as session, session.get(self._base + path) as answer:
            return answer.status, await answer.text(), answer.headers["Content-Type"]

    async def json(self, path: str) -> tuple[int, Any]:
        status, text, _ = await self.get(path)
        return status, json.loads(text)


@asynccontextmanager
async def serving(health: Health) -> AsyncIterator[HealthClient]:
    async with health_server(0, health, "127.0.0.1") as port:
        yield HealthClient(port)


class FakeRuntime:
    def __init__(self, ready: bool = True, stuck: bool = False) -> None:
        self.is_ready = ready
        self.is_stuck = stuck
        self.attempts: list[object] = []
        self.stray = 0


def health_of(service: Service, **runtimes: FakeRuntime) -> Health:
    found: dict[str, Any] = dict(runtimes)
    known: dict[str, Runtime] = found
    return Health([service], known, CallbackSender("http://x", Transport()), Metrics())


async def test_process_is_live_and_becomes_ready_once_each_service_is() -> None:
    ocr, sis = FakeRuntime(), FakeRuntime(ready=False)
    async with serving(health_of(Service("ocr"), ocr=ocr, sis=sis)) as asked:
        assert await asked.json("/healthz") == (200, {"status": "ok"})
        said = {"status": "unavailable", "services": {"ocr": True, "sis": False}, "checks": {}}
        assert await asked.json("/readyz") == (503, said)
        sis.is_ready = True
        assert (await asked.json("/readyz"))[0] == 200
        sis.is_stuck = True
        assert await asked.json("/healthz") == (503, {"status": "stuck", "stuck": ["sis"]})
        assert (await asked.get("/other"))[0] == 404


async def test_process_that_cannot_deliver_callbacks_is_not_ready(orchestrator: FakeOrchestrator) -> None:
    async with Transport() as transport:
        sender = CallbackSender(orchestrator.url, transport)
        known: dict[str, Any] = {"ocr": FakeRuntime()}
        about_it = Health([Service("ocr")], known, sender, Metrics())
        sending = asyncio.create_task(sender.run())
        assert (await about_it.ready())[0]
        await orchestrator.stop()
        sender.ack(directive(orchestrator.url, ack_deadline=FAR), lambda _: None)
        await until(lambda: sender.is_unreachable)
        good, said = await about_it.ready()
        assert (good, said["callbacks"]) == (False, "1 wait: the control plane does not answer")
        await orchestrator.start(orchestrator.port)
        await until(lambda: not sender.is_unreachable)
        assert (await about_it.ready())[0]
        sending.cancel()


async def test_process_without_runtimes_is_live_and_not_ready() -> None:
    async with serving(health_of(Service("ocr"))) as asked:
        assert (await asked.json("/healthz"))[0] == 200
        assert (await asked.json("/readyz"))[0] == 503


async def test_failing_readiness_check_is_named_and_its_message_logged_for_debugging_only() -> None:
    service = Service("ocr")
    away = True

    @service.check
    async def database() -> None:
        if away:
            raise ConnectionError("can't reach postgres://me:secret@db")

    @service.check
    def model() -> None:
        assert threading.current_thread() is not threading.main_thread()

    async with serving(health_of(service, ocr=FakeRuntime())) as asked:
        with capture_logs() as lines:
            status, said = await asked.json("/readyz")
        assert (status, said["checks"]) == (503, {"ocr.database": "ConnectionError", "ocr.model": "ok"})
        told = [line for line in lines if "secret" in str(line)]
        assert [line["log_level"] for line in told] == ["debug"], "it may hold a password"
        assert [line["reason"] for line in lines if line["log_level"] == "warning"] == ["ConnectionError"]
        away = False
        status, said = await asked.json("/readyz")
        assert (status, set(said["checks"].values())) == (200, {"ok"})


async def test_check_that_returns_false_is_not_ready() -> None:
    async def away() -> bool:
        return False

    assert await ReadinessCheck("x", away).run() == "not ready"
    assert await ReadinessCheck("x", lambda: False).run() == "not ready"
    assert await ReadinessCheck("x", lambda: away()).run() == "not ready"
    assert await ReadinessCheck("x", lambda: True).run() == "ok"
    assert await ReadinessCheck("x", lambda: 0).run() == "ok", "a check that returns something else has not said no"


async def test_liveness_shows_the_versions_of_services() -> None:
    said = health_of(Service("ocr", version="1.2.3"), ocr=FakeRuntime()).live()
    assert said == (True, {"status": "ok", "versions": {"ocr": "1.2.3"}})


async def test_slow_checks_time_out_and_are_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_TIMEOUT_SECONDS", 0.1)
    service = Service("ocr")
    gate, calls = threading.Event(), [0, 0]

    @service.check
    def hangs() -> None:
        calls[0] += 1
        assert gate.wait(20)

    @service.check
    async def waits() -> None:
        calls[1] += 1
        await asyncio.Event().wait()

    said = health_of(service, ocr=FakeRuntime())
    try:
        async with asyncio.timeout(5):
            for _ in range(10):
                good, body = await said.ready()
                assert not good
                assert set(body["checks"].values()) == {"no answer within 0.1 s"}
            assert await asyncio.to_thread(lambda: "a thread is still free") == "a thread is still free"
    finally:
        gate.set()
    assert calls == [1, 1], "a probe that comes again waits for the same answer"


async def test_slow_check_runs_anew_once_it_has_answered() -> None:
    answers = iter(["slow", "quick"])
    gate = asyncio.Event()

    async def hook() -> None:
        if next(answers) == "slow":
            await gate.wait()
            raise ConnectionError

    check = ReadinessCheck("x", hook)
    both = [asyncio.create_task(check.run()) for _ in range(2)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*both) == ["ConnectionError", "ConnectionError"]
    assert await check.run() == "ok"


async def test_occupied_port_is_reported_as_a_wrong_setting(orchestrator: FakeOrchestrator) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_HEALTH_PORT"):
        async with health_server(orchestrator.port, health_of(Service("ocr")), "127.0.0.1"):
            pass


async def test_metrics_count_attempts_ignored_directives_and_pull_failures(bench: Bench) -> None:
    scripted = Scripted()
    metrics = Metrics()
    runtime = bench.start(scripted, metrics=metrics)
    said = Health([scripted.service], {"ocr": runtime}, bench.sender, metrics)
    await bench.publish(1, 2)
    await bench.publish(3, lease_id="")
    await until(lambda: len(scripted.started) == 2)
    assert b'lucius_worker_running{service="ocr"} 2.0' in said.metrics()
    scripted.gate.set()
    await until(lambda: len(bench.results()) == 2)
    scripted.act = _fail
    await bench.publish(4)
    await until(lambda: len(bench.results()) == 3)
    bench.orchestrator.answer = lambda _: {"status": 409}
    scripted.act, scripted.gate = None, asyncio.Event()
    await bench.publish(5)
    await until(lambda: scripted.stopped == 1 and not runtime.attempts)
    bench.bus.down = True
    await until(lambda: not runtime.is_ready)
    text = said.metrics().decode()
    for line in (
        'lucius_worker_attempts_total{outcome="succeeded",service="ocr",step_type="OCR"} 2.0',
        'lucius_worker_attempts_total{outcome="failed",service="ocr",step_type="OCR"} 1.0',
        'lucius_worker_attempts_total{outcome="lease_lost",service="ocr",step_type="OCR"} 1.0',
        'lucius_worker_attempt_seconds_count{service="ocr",step_type="OCR"} 4.0',
        'lucius_worker_directives_ignored_total{service="ocr"} 1.0',
        'lucius_worker_pull_failures_total{service="ocr"} 1.0',
        'lucius_worker_running{service="ocr"} 0.0',
        'lucius_worker_stray_threads{service="ocr"} 0.0',
        "lucius_worker_callbacks_undelivered 0.0",
        "lucius_worker_loop_stalls_total 0.0",
    ):
        assert line in text, line
    assert "acme" not in text, "bounded by services and step types, not by tenants"


def _fail(_: StepContext) -> StepResult:
    raise NonRetryable("BAD", 'says "status":"SUCCEEDED", but is not')


async def test_service_answers_probes_while_starting_and_running(
    orchestrator: FakeOrchestrator, tmp_path: Path
) -> None:
    service = Service("ocr")
    loaded, closed = asyncio.Event(), asyncio.Event()
    ports: list[int] = []

    @service.startup
    async def load() -> None:
        await loaded.wait()

    @service.shutdown
    def close() -> None:
        closed.set()

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        return StepResult("done")

    @asynccontextmanager
    async def known(port: int, said: Health, address: str) -> AsyncIterator[int]:
        assert address == "127.0.0.1"
        async with health_server(port, said, address) as found:
            ports.append(found)
            yield found

    stop = asyncio.Event()
    settings = WorkerSettings(
        orchestrator_url=orchestrator.url, api_key=API_KEY, health_port=0, handle_signals=False, data_dir=tmp_path
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lucius.worker.host.health_server", known)
        running = asyncio.create_task(host([service], settings, stop))
        await until(lambda: bool(ports))
        asked = HealthClient(ports[0])
        assert (await asked.json("/healthz"))[0] == 200
        assert (await asked.json("/readyz"))[0] == 503
        loaded.set()
        async with asyncio.timeout(10):
            while (await asked.json("/readyz"))[0] != 200:  # noqa: ASYNC110 - soon, though there is nothing to do
                await asyncio.sleep(0.01)
        orchestrator.offer(directive(orchestrator.url, ack_deadline=FAR))
        await orchestrator.got_result.wait()
        status, text, kind = await asked.get("/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "lucius_worker_attempts_total" in text
        stop.set()
        await running
    assert closed.is_set()


async def test_data_folder_is_private_to_its_owner(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    service, stop, folder = Service("ocr"), asyncio.Event(), tmp_path / "data"

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        return StepResult("done")

    folder.mkdir()
    folder.chmod(0o755)
    stop.set()
    settings = WorkerSettings(orchestrator_url=orchestrator.url, api_key=API_KEY, handle_signals=False, data_dir=folder)
    await host([service], settings, stop)
    assert folder.stat().st_mode & 0o077 == 0
    assert [path for path in (folder / "services").rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []
