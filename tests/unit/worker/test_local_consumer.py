"""`local:` as a service sees it: what the orchestrator says about coming back is heeded."""

import asyncio

import pytest
from aiohttp import web

from lucius.adapters.bus_local import LocalConsumer, PullRefused
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


async def test_where_directives_are_on_a_bus_it_says_which_setting_is_missing(orchestrator: FakeOrchestrator) -> None:
    consumer = LocalConsumer(orchestrator.url, "ocr", API_KEY)
    refusal = {"type": "about:blank", "status": 409, "code": "PUSH_BUS", "detail": "directives for ocr are on the bus"}
    orchestrator.pull_answers.append(web.json_response(refusal, status=409))
    with pytest.raises(PullRefused) as refused:
        await consumer.pull(1, 0)
    assert str(refused.value) == (
        f"directives for service 'ocr' are on a bus and can't be pulled from {orchestrator.url}: "
        "set LUCIUS_BUS_URL as it is set for the API"
    )
    await consumer.close()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"code": "INVALID_REQUEST", "title": "Bad", "detail": "max: too many"}, "max: too many [INVALID_REQUEST]"),
        ({"code": "INVALID_REQUEST", "title": "Bad"}, "Bad [INVALID_REQUEST]"),
    ],
)
async def test_other_refusals_are_told_in_the_orchestrators_words(
    orchestrator: FakeOrchestrator, problem: dict[str, str], said: str
) -> None:
    consumer = LocalConsumer(orchestrator.url, "ocr", API_KEY)
    orchestrator.pull_answers.append(web.json_response(problem, status=422))
    with pytest.raises(PullRefused) as refused:
        await consumer.pull(1, 0)
    assert str(refused.value) == f"pulling for service 'ocr' was refused: {said} (422)"
    await consumer.close()
