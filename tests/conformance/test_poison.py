"""From a message that nobody can take to the person who looks at it: bus, engine and ledger together."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lucius.adapters.bus_redis.consumer import RedisConsumer
from lucius.contract import Directive
from lucius.core.model import JobStatus, ReviewKind
from lucius.ports.ledger import ReviewFilter
from tests.conformance.control_plane import QUIET, ControlPlane, control_plane
from tests.support.redis import RedisServer

SOON = 15.0
STREAM = "lucius:global-bus-p3:ocr"


class Stage:
    def __init__(self, plane: ControlPlane, url: str) -> None:
        self.plane = plane
        self.client: Any = redis.Redis.from_url(url.partition("?")[0])
        self._url = url
        self._consumers: list[RedisConsumer] = []

    def consumer(self) -> RedisConsumer:
        self._consumers.append(RedisConsumer(self._url, "ocr"))
        return self._consumers[-1]

    async def take_and_die(self) -> Directive:
        consumer = self.consumer()
        (directive,) = await consumer.pull(1, SOON)
        assert consumer._group._touching is not None
        consumer._group._touching.stop()
        return directive

    async def ended(self, job_id: str) -> JobStatus:
        async with asyncio.timeout(SOON):
            while True:
                view = await self.plane.runtime.store.job(job_id)
                assert view is not None
                if not view.job.live:
                    return view.job.status
                await asyncio.sleep(0.01)

    async def reviews(self) -> list[tuple[ReviewKind, str, str]]:
        page = await self.plane.runtime.store.reviews(ReviewFilter(), 10, None)
        return [(item.kind, item.error.code, item.error.message) for item in page.items if item.error is not None]

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        self.client.close()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    server = RedisServer(tmp_path).start()
    url = f"{server.url}?idle=0.2&deliveries=2"
    async with control_plane(tmp_path, LUCIUS_BUS_URL=url, **QUIET) as plane:
        stage = Stage(plane, url)
        yield stage
        await stage.close()
    server.stop()


async def test_a_directive_that_kills_its_services_fails_the_job_and_asks_a_person(stage: Stage) -> None:
    job_id = await stage.plane.submit(1)
    assert (await stage.take_and_die()).jobId == job_id
    await stage.take_and_die()
    waiting = asyncio.create_task(stage.consumer().pull(1, SOON))
    assert await stage.ended(job_id) is JobStatus.FAILED_FINAL
    (found,) = await stage.reviews()
    assert found[:2] == (ReviewKind.POISON, "POISON_MESSAGE")
    assert "2 times" in found[2]
    waiting.cancel()
    await settled(stage)


async def test_a_directive_that_can_not_be_read_fails_the_job_and_asks_a_person(stage: Stage) -> None:
    job_id = await stage.plane.submit(1)
    async with asyncio.timeout(SOON):
        while not (sent := stage.client.xrange(STREAM)):  # noqa: ASYNC110 - a relay is on its way there
            await asyncio.sleep(0.01)
    ((entry, fields),) = sent
    with stage.client.pipeline(transaction=True) as together:
        together.xdel(STREAM, entry)
        together.xadd(STREAM, {**fields, "directive": "{"})
        together.execute()
    assert await stage.consumer().pull(1, 0) == []
    assert await stage.ended(job_id) is JobStatus.FAILED_FINAL
    assert [(kind, code) for kind, code, _ in await stage.reviews()] == [(ReviewKind.POISON, "POISON_MESSAGE")]


async def test_a_letter_about_an_attempt_that_is_over_changes_nothing(stage: Stage) -> None:
    job_id = await stage.plane.submit(1)
    consumer = stage.consumer()
    (directive,) = await consumer.pull(1, SOON)
    await stage.plane.call_back("result", directive, status="SUCCEEDED")
    stage.client.xadd("lucius:dead", {**letter(directive), "reason": "DELIVERED_TOO_OFTEN"})
    await settled(stage)
    assert await stage.ended(job_id) is JobStatus.SUCCEEDED
    assert await stage.reviews() == []


async def test_a_letter_that_nobody_understands_is_put_away(stage: Stage) -> None:
    """And the one behind it is told all the same."""
    stage.client.xadd("lucius:dead", {"reason": "?"})
    stage.client.xadd("lucius:dead", {"job_id": "no-such-job", "attempt_no": "1"})
    job_id = await stage.plane.submit(1)
    (directive,) = await stage.consumer().pull(1, SOON)
    stage.client.xadd("lucius:dead", letter(directive))
    assert await stage.ended(job_id) is JobStatus.FAILED_FINAL
    await settled(stage)


def letter(directive: Directive) -> dict[str, Any]:
    return {
        "job_id": directive.jobId,
        "step_id": directive.stepId,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        "tenant_id": directive.tenant_id,
    }


async def settled(stage: Stage) -> None:
    async with asyncio.timeout(SOON):
        while stage.client.xlen("lucius:dead"):  # noqa: ASYNC110 - it is told by another process
            await asyncio.sleep(0.01)
