import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lucius.adapters.bus_local import PullRefused
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings
from tests.unit.worker.support import API_KEY, FakeOrchestrator, directive, until


def echo(name: str) -> Service:
    service = Service(name)

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        return StepResult({"service": ctx.directive.service})

    return service


def told(orchestrator: FakeOrchestrator, **settings: Any) -> WorkerSettings:
    return WorkerSettings(**{"orchestrator_url": orchestrator.url, "api_key": API_KEY, **settings})


async def test_several_services_share_a_process(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    stop = asyncio.Event()
    settings = told(orchestrator, data_dir=tmp_path, handle_signals=False)
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


async def test_what_is_done_while_stopping_is_still_reported(orchestrator: FakeOrchestrator) -> None:
    stop = asyncio.Event()

    service = Service("ocr")

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        stop.set()
        return StepResult({"last": True})

    orchestrator.offer(directive(orchestrator.url, ack_deadline="2100-01-01T00:00:00Z"))
    orchestrator.whole_answers.append(web.Response(status=503))
    await host([service], told(orchestrator, handle_signals=False), stop)
    assert [item["result"] for item in orchestrator.of_type("result")] == [{"last": True}]


async def test_a_wrong_key_ends_the_process_with_a_clear_error(orchestrator: FakeOrchestrator) -> None:
    with pytest.raises(PullRefused, match=r"API key may not pull for service 'ocr'"):
        await host([echo("ocr"), echo("sis")], told(orchestrator, api_key="wrong", handle_signals=False))


async def test_sigterm_stops_the_process_in_order(orchestrator: FakeOrchestrator) -> None:
    running = asyncio.create_task(host([echo("ocr")], told(orchestrator)))
    await until(lambda: bool(orchestrator.pulls))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)
