import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lucius.adapters.bus_local import PullRefused
from lucius.services.run import run_services
from lucius.worker import Output, PlatformService, Task
from lucius.worker.health import health_server
from tests.unit.worker.support import API_KEY, FakeOrchestrator, directive, until


class Echo(PlatformService):
    def __init__(self, name: str) -> None:
        self.service = name

    async def execute(self, task: Task) -> Output:
        return Output({"service": self.service})


async def test_several_services_share_a_process(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    stop = asyncio.Event()
    services = [Echo("ocr"), Echo("sis")]
    running = asyncio.create_task(
        run_services(services, orchestrator.url, API_KEY, data_dir=tmp_path, stop=stop, handle_signals=False)
    )
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

    class Last(PlatformService):
        service = "ocr"

        async def execute(self, task: Task) -> Output:
            stop.set()
            return Output({"last": True})

    orchestrator.offer(directive(orchestrator.url, ack_deadline="2100-01-01T00:00:00Z"))
    orchestrator.whole_answers.append(web.Response(status=503))
    await run_services([Last()], orchestrator.url, API_KEY, stop=stop, handle_signals=False)
    assert [item["result"] for item in orchestrator.of_type("result")] == [{"last": True}]


async def test_a_wrong_key_ends_the_process_with_a_clear_error(orchestrator: FakeOrchestrator) -> None:
    with pytest.raises(PullRefused, match=r"API key may not pull for service 'ocr'"):
        await run_services([Echo("ocr"), Echo("sis")], orchestrator.url, "wrong", handle_signals=False)


async def test_sigterm_stops_the_process_in_order(orchestrator: FakeOrchestrator) -> None:
    running = asyncio.create_task(run_services([Echo("ocr")], orchestrator.url, API_KEY))
    await until(lambda: bool(orchestrator.pulls))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)


async def test_health_says_whether_every_service_can_pull() -> None:
    ready = {"ocr": True, "sis": False}
    async with health_server(0, lambda: ready, "127.0.0.1") as port, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{port}"
        async with session.get(f"{base}/healthz") as response:
            assert response.status == 200
        async with session.get(f"{base}/readyz") as response:
            assert response.status == 503
            assert (await response.json())["services"] == ready
        ready["sis"] = True
        async with session.get(f"{base}/readyz") as response:
            assert response.status == 200
