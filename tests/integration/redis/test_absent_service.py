"""During a long absence of a service, the messages of its attempts on the bus are bounded and block nothing else."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from lucius.adapters.bus.redis import publisher
from lucius.core.model.statuses import JobStatus
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings
from tests.conformance.control_plane import KEY, control_plane
from tests.support.redis import RedisServer

CAP = 10
JOBS = 60
STREAM = "lucius:global-bus-p3:ocr"
ENV = {
    "LUCIUS_LEDGER_URL": "memory:",
    "LUCIUS_MAX_UNACKED": str(CAP),
    "LUCIUS_ACK_TIMEOUT": "0.4",
    "LUCIUS_BACKOFF_SCALE": "0.0001",
    "LUCIUS_SWEEP_INTERVAL": "0.05",
}


async def test_messages_of_an_absent_service_are_bounded_and_do_not_delay_new_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "RedisPublisher", partial(publisher.RedisPublisher, late_seconds=0.0))
    server = RedisServer(tmp_path).start()
    client: Any = redis.Redis.from_url(server.url)
    ran: list[str] = []
    service = Service("ocr")

    @service.step()
    async def read(ctx: StepContext) -> StepResult:
        ran.append(ctx.directive.jobId)
        return StepResult()

    async with control_plane(tmp_path, LUCIUS_BUS_URL=server.url, **ENV) as plane:
        store = plane.runtime.store

        async def ended(job_id: str) -> JobStatus:
            async with asyncio.timeout(60):
                while (view := await store.jobs.job(job_id)) is None or view.job.live:
                    assert client.xlen(STREAM) <= 4 * CAP + 2 * CAP + CAP // 2, "more than ever may wait"
                    await asyncio.sleep(0.02)
            return view.job.status

        away = [await plane.submit(number) for number in range(JOBS)]
        assert {await ended(job) for job in away} == {JobStatus.FAILED_FINAL}
        settings = WorkerSettings(
            orchestrator_url=plane.url, api_key=KEY, bus_url=server.url, health_port=None, handle_signals=False
        )
        stop = asyncio.Event()
        serving = asyncio.create_task(host([service], settings, stop))
        fresh = await plane.submit(JOBS)
        assert await ended(fresh) is JobStatus.SUCCEEDED
        async with asyncio.timeout(20):
            while client.xlen(STREAM):  # noqa: ASYNC110 - the service is on it
                await asyncio.sleep(0.02)
        stop.set()
        await serving
        assert ran == [fresh], "the other attempts are outdated"
    client.close()
    server.stop()
