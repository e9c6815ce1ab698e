"""`local:` from a service's side: it follows the orchestrator's instructions on when to retry."""

import asyncio

import pytest
from aiohttp import web

from lucius.adapters.bus.local import LocalConsumer, PullRefused
from lucius.contract.process_headers import process_headers
from lucius.ports.errors import BusDown
from lucius.version import __version__
from lucius.worker.connect import open_consumer
from lucius.worker.settings import WorkerSettings
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive

PAUSE = 0.3


async def test_consumer_pulls_again_only_after_retry_after(
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


async def test_refusal_for_a_push_bus_names_the_missing_setting(orchestrator: FakeOrchestrator) -> None:
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
async def test_pull_refusal_quotes_the_orchestrator(
    orchestrator: FakeOrchestrator, problem: dict[str, str], said: str
) -> None:
    consumer = LocalConsumer(orchestrator.url, "ocr", API_KEY)
    orchestrator.pull_answers.append(web.json_response(problem, status=422))
    with pytest.raises(PullRefused) as refused:
        await consumer.pull(1, 0)
    assert str(refused.value) == f"pulling for service 'ocr' was refused: {said} (422)"
    await consumer.close()


@pytest.mark.parametrize(
    ("versions", "agent"),
    [
        ({"ocr": "2.1"}, "ocr/2.1 "),
        ({"ocr": ""}, ""),
        ({"ocr": "2 \r\nX: y\u00e9"}, "ocr/2X:y "),
        ({"ocr": "1", "sis": "", "upper": "3"}, "ocr/1 upper/3 "),
        ({f"{number:064}": "1" * 50 for number in range(3)}, f"{0:064}/{'1' * 40} "),
    ],
)
async def test_pull_names_the_versions_of_its_process(
    orchestrator: FakeOrchestrator, versions: dict[str, str], agent: str
) -> None:
    settings = WorkerSettings(orchestrator_url=orchestrator.url, api_key=API_KEY)
    consumer = open_consumer(settings, "ocr", process_headers(versions))
    await consumer.pull(1, 0)
    await consumer.close()
    assert orchestrator.agents == [f"{agent}lucius-worker/{__version__}"]


async def test_pull_names_its_process_without_being_told(orchestrator: FakeOrchestrator) -> None:
    consumer = LocalConsumer(orchestrator.url, "ocr", API_KEY)
    await consumer.pull(1, 0)
    await consumer.close()
    (headers,) = orchestrator.headers["pull"]
    assert headers.items() >= {name.lower(): value for name, value in process_headers({}).items()}.items()


async def test_refused_pull_sits_out_retry_after_and_loses_nothing(orchestrator: FakeOrchestrator) -> None:
    consumer = LocalConsumer(orchestrator.url, "ocr", API_KEY)
    orchestrator.offer(directive(orchestrator.url))
    refusal = {"type": "about:blank", "status": 429, "code": "PULL_LIMIT", "detail": "too many pulls wait"}
    orchestrator.pull_answers.append(web.json_response(refusal, status=429, headers={"Retry-After": str(PAUSE)}))
    started = asyncio.get_running_loop().time()
    assert await consumer.pull(1, PAUSE / 3) == []
    assert await consumer.pull(1, PAUSE / 3) == []
    assert len(orchestrator.pulls) == 1
    assert [found.jobId for found in await consumer.pull(1, 20)] == ["job-1"]
    assert asyncio.get_running_loop().time() - started >= PAUSE
    await consumer.close()
