import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from lucius.adapters.bus.local import PullRefused
from lucius.version import __version__
from lucius.worker import Service, StepContext, StepResult
from lucius.worker import host as hosting
from lucius.worker.host import host
from lucius.worker.journal import Journal
from lucius.worker.settings import WorkerSettings
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive, until


def echo(name: str, version: str = "") -> Service:
    service = Service(name, version=version)

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        return StepResult({"service": ctx.directive.service})

    return service


def worker_settings(orchestrator: FakeOrchestrator, **settings: Any) -> WorkerSettings:
    return WorkerSettings(**{"orchestrator_url": orchestrator.url, "api_key": API_KEY, **settings})


async def test_several_services_share_a_process(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    stop = asyncio.Event()
    settings = worker_settings(orchestrator, data_dir=tmp_path, handle_signals=False)
    running = asyncio.create_task(host([echo("ocr"), echo("sis")], settings, stop))
    far = "2100-01-01T00:00:00Z"
    orchestrator.offer(
        directive(orchestrator.url, 1, ack_deadline=far),
        directive(orchestrator.url, 2, ack_deadline=far, service="sis"),
    )
    await until(lambda: len(orchestrator.of_type("result")) == 2)
    stop.set()
    await running
    assert {item["result"]["service"] for item in orchestrator.of_type("result")} == {"ocr", "sis"}
    assert sorted(folder.name for folder in (tmp_path / "services").iterdir()) == ["ocr", "sis"]


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_pulls_and_callbacks_name_the_same_process_and_versions(
    orchestrator: FakeOrchestrator, is_elsewhere: bool
) -> None:
    stop = asyncio.Event()
    settings = worker_settings(orchestrator, handle_signals=False)
    running = asyncio.create_task(host([echo("ocr", "2.1"), echo("sis", "3")], settings, stop))
    base_url = f"http://localhost:{orchestrator.port}" if is_elsewhere else orchestrator.url
    orchestrator.offer(directive(base_url, ack_deadline="2100-01-01T00:00:00Z"))
    await until(lambda: bool(orchestrator.of_type("result")))
    stop.set()
    await running
    callbacks = {"ack", "result"} if is_elsewhere else {"batch"}
    assert orchestrator.headers.keys() == {"pull", *callbacks}
    sent = [headers for requests in orchestrator.headers.values() for headers in requests]
    assert {headers.get("user-agent") for headers in sent} == {f"ocr/2.1 sis/3 lucius-worker/{__version__}"}
    assert {headers.get("x-lucius-instance") for headers in sent} == {f"{socket.gethostname()}:{os.getpid()}"}


async def test_result_finished_while_stopping_is_delivered(orchestrator: FakeOrchestrator) -> None:
    stop = asyncio.Event()

    service = Service("ocr")

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        stop.set()
        return StepResult({"last": True})

    orchestrator.offer(directive(orchestrator.url, ack_deadline="2100-01-01T00:00:00Z"))
    orchestrator.whole_answers.append(web.Response(status=503))
    await host([service], worker_settings(orchestrator, handle_signals=False), stop)
    assert [item["result"] for item in orchestrator.of_type("result")] == [{"last": True}]


async def test_wrong_key_ends_the_process_with_a_clear_error(orchestrator: FakeOrchestrator) -> None:
    with pytest.raises(PullRefused, match=r"http://127.0.0.1:\d+ does not know this API key"):
        await host([echo("ocr"), echo("sis")], worker_settings(orchestrator, api_key="wrong", handle_signals=False))


async def test_sigterm_stops_the_host(orchestrator: FakeOrchestrator) -> None:
    running = asyncio.create_task(host([echo("ocr")], worker_settings(orchestrator)))
    await until(lambda: bool(orchestrator.pulls))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)


async def test_hooks_run_before_and_after_all_steps_in_order(orchestrator: FakeOrchestrator) -> None:
    told_of: list[str] = []
    stop = asyncio.Event()
    service = Service("ocr")

    @service.startup
    async def load() -> None:
        told_of.append("load")

    @service.startup
    def open_pool() -> None:
        told_of.append("open")

    @service.shutdown
    def close() -> None:
        told_of.append("close")

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        told_of.append("execute")
        stop.set()
        await asyncio.sleep(0)
        told_of.append("executed")
        return StepResult()

    orchestrator.offer(directive(orchestrator.url, ack_deadline="2100-01-01T00:00:00Z"))
    await host([service], worker_settings(orchestrator, handle_signals=False), stop)
    assert told_of == ["load", "open", "execute", "executed", "close"]


async def test_failed_startup_ends_the_process_and_shuts_down_started_services(
    orchestrator: FakeOrchestrator,
) -> None:
    shut: list[str] = []
    good, bad = echo("ocr"), echo("sis")
    good.shutdown(lambda: shut.append("ocr"))
    bad.shutdown(lambda: shut.append("sis"))

    @bad.startup
    def load() -> None:
        raise OSError("no model there")

    with pytest.raises(OSError, match="no model there"):
        await host([good, bad], worker_settings(orchestrator, handle_signals=False))
    assert shut == ["ocr"]


async def test_refusal_of_one_service_lets_the_others_finish(orchestrator: FakeOrchestrator) -> None:
    ocr = Service("ocr")
    gate = asyncio.Event()

    @ocr.step()
    async def execute(ctx: StepContext) -> StepResult:
        orchestrator.pull_answers.extend(web.Response(status=403) for _ in range(2))
        gate.set()
        await asyncio.sleep(0.2)
        return StepResult("finished")

    orchestrator.offer(directive(orchestrator.url, ack_deadline="2100-01-01T00:00:00Z"))
    with pytest.raises(PullRefused):
        await asyncio.wait_for(host([ocr, echo("sis")], worker_settings(orchestrator, handle_signals=False)), 20)
    assert gate.is_set()
    assert [item["result"] for item in orchestrator.of_type("result")] == ["finished"]


async def test_a_host_leaves_no_task_behind(orchestrator: FakeOrchestrator) -> None:
    before = asyncio.all_tasks()
    stop = asyncio.Event()
    running = asyncio.create_task(host([echo("ocr")], worker_settings(orchestrator, handle_signals=False), stop))
    await until(lambda: bool(orchestrator.pulls))
    stop.set()
    await running
    left = [str(task.get_coro()) for task in asyncio.all_tasks() - before]
    assert [name for name in left if "lucius" in name] == []


@pytest.mark.parametrize(
    ("folder", "fate"), [(True, "results are sent at the next start"), (False, "they are lost, as there is no")]
)
async def test_fate_of_undelivered_results_is_logged_with_and_without_a_folder(
    orchestrator: FakeOrchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool, fate: str
) -> None:
    monkeypatch.setattr(hosting, "FLUSH_TIMEOUT_SECONDS", 0.1)
    stop = asyncio.Event()
    service = Service("ocr", version="2.0.1")

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        orchestrator.answer = lambda _: {"status": 503}
        stop.set()
        return StepResult()

    orchestrator.offer(directive(orchestrator.url, ack_deadline="2100-01-01T00:00:00Z"))
    settings = worker_settings(orchestrator, data_dir=tmp_path if folder else None, handle_signals=False)
    with capture_logs() as lines:
        await host([service], settings, stop)
    said = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert any("LUCIUS_DATA_DIR is not set" in event for event in said) is not folder
    assert [fate in event for event in said if "undelivered" in event] == [True]
    assert [line["versions"] for line in lines if line["event"] == "services started"] == [{"ocr": "2.0.1"}]


async def test_journal_is_opened_with_the_sync_setting(
    orchestrator: FakeOrchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []

    class Watched(Journal):
        def __init__(self, folder: Path | None, *, sync: bool) -> None:
            opened.append(sync)
            super().__init__(folder, sync=sync)

    monkeypatch.setattr(hosting, "Journal", Watched)
    stop = asyncio.Event()
    stop.set()
    for sync in (True, False):
        await host(
            [echo("ocr")],
            worker_settings(orchestrator, data_dir=tmp_path, journal_sync=sync, handle_signals=False),
            stop,
        )
    assert opened == [True, False]
