"""`local:` as a service sees it: what the orchestrator says about coming back is heeded."""

import asyncio

import pytest
from aiohttp import web

from lucius.adapters.bus_local import LocalConsumer
from lucius.ports.errors import BusDown
from tests.unit.worker.support import API_KEY, FakeOrchestrator, directive

PAUSE = 0.3


async def test_an_orchestrator_that_is_away_for_a_while_is_left_alone_for_so_long(
    orchestrator: FakeOrchestrator,
) -> None:
    consumer = LocalConsumer(orchestrator.url, "ocr", API_KEY)
    orchestrator.offer(directive(orchestrator.url))
    orchestrator.pull_answers.append(web.Response(status=503, headers={"Retry-After": str(PAUSE)}))
    started = asyncio.get_running_loop().time()
    with pytest.raises(BusDown, match="503"):
        await consumer.pull(1, 20)
    assert await consumer.pull(1, PAUSE / 3) == []
    assert len(orchestrator.pulls) == 1
    assert [found.jobId for found in await consumer.pull(1, 20)] == ["job-1"]
    assert asyncio.get_running_loop().time() - started >= PAUSE
    await consumer.close()
