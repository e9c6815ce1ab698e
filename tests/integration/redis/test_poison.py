"""Undeliverable messages from bus to operator: bus, engine and ledger together."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.contract import Directive
from lucius.core.model.statuses import JobStatus, ReviewKind
from lucius.ports.readers import ReviewFilter
from tests.conformance.control_plane import QUIET, ControlPlaneUnderTest, control_plane
from tests.support.redis import RedisServer

SOON = 15.0
STREAM = "lucius:global-bus-p3:ocr"


class Setup:
    def __init__(self, plane: ControlPlaneUnderTest, url: str) -> None:
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
        assert consumer.group.is_renewing
        consumer.group.stop_renewer()
        return directive

    async def ended(self, job_id: str) -> JobStatus:
        async with asyncio.timeout(SOON):
            while True:
                view = await self.plane.runtime.store.jobs.job(job_id)
                assert view is not None
                if not view.job.live:
                    return view.job.status
                await asyncio.sleep(0.01)

    async def reviews(self) -> list[tuple[ReviewKind, str, str]]:
        page = await self.plane.runtime.store.reviews.reviews(ReviewFilter(), 10, None)
        return [(item.kind, item.error.code, item.error.message) for item in page.items if item.error is not None]

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        self.client.close()


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    server = RedisServer(tmp_path).start()
    url = f"{server.url}?idle=0.2&deliveries=2"
    async with control_plane(tmp_path, LUCIUS_BUS_URL=url, **QUIET) as plane:
        setup = Setup(plane, url)
        yield setup
        await setup.close()
    server.stop()


async def test_directive_delivered_too_often_fails_the_job_and_opens_a_review_item(setup: Setup) -> None:
    job_id = await setup.plane.submit(1)
    assert (await setup.take_and_die()).jobId == job_id
    await setup.take_and_die()
    waiting = asyncio.create_task(setup.consumer().pull(1, SOON))
    assert await setup.ended(job_id) is JobStatus.FAILED_FINAL
    (found,) = await setup.reviews()
    assert found[:2] == (ReviewKind.POISON, "POISON_MESSAGE")
    assert "2 times" in found[2]
    waiting.cancel()
    await all_dead_letters_settled(setup)


async def test_unreadable_directive_fails_the_job_and_opens_a_review_item(setup: Setup) -> None:
    job_id = await setup.plane.submit(1)
    async with asyncio.timeout(SOON):
        while not (sent := setup.client.xrange(STREAM)):  # noqa: ASYNC110 - a relay is on its way there
            await asyncio.sleep(0.01)
    ((entry, fields),) = sent
    with setup.client.pipeline(transaction=True) as together:
        together.xdel(STREAM, entry)
        together.xadd(STREAM, {**fields, "directive": "{"})
        together.execute()
    assert await setup.consumer().pull(1, 0) == []
    assert await setup.ended(job_id) is JobStatus.FAILED_FINAL
    assert [(kind, code) for kind, code, _ in await setup.reviews()] == [(ReviewKind.POISON, "POISON_MESSAGE")]


async def test_dead_letter_about_an_ended_attempt_is_ignored(setup: Setup) -> None:
    job_id = await setup.plane.submit(1)
    consumer = setup.consumer()
    (directive,) = await consumer.pull(1, SOON)
    await setup.plane.call_back("result", directive, status="SUCCEEDED")
    setup.client.xadd("lucius:dead", {**dead_letter_of(directive), "reason": "DELIVERED_TOO_OFTEN"})
    await all_dead_letters_settled(setup)
    assert await setup.ended(job_id) is JobStatus.SUCCEEDED
    assert await setup.reviews() == []


async def test_malformed_dead_letter_is_settled_without_effect(setup: Setup) -> None:
    """The dead letter behind it is still processed."""
    setup.client.xadd("lucius:dead", {"reason": "?"})
    setup.client.xadd("lucius:dead", {"job_id": "no-such-job", "attempt_no": "1"})
    job_id = await setup.plane.submit(1)
    (directive,) = await setup.consumer().pull(1, SOON)
    setup.client.xadd("lucius:dead", dead_letter_of(directive))
    assert await setup.ended(job_id) is JobStatus.FAILED_FINAL
    await all_dead_letters_settled(setup)


def dead_letter_of(directive: Directive) -> dict[str, Any]:
    return {
        "job_id": directive.jobId,
        "step_id": directive.stepId,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        "tenant_id": directive.tenant_id,
    }


async def all_dead_letters_settled(setup: Setup) -> None:
    async with asyncio.timeout(SOON):
        while setup.client.xlen("lucius:dead"):  # noqa: ASYNC110 - another process settles them
            await asyncio.sleep(0.01)
