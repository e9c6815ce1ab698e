"""Clients that gave `callback_urls.job` are told, once it is durable, how their job ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from standardwebhooks import Webhook

from lucius.core.model import OutboxRow
from lucius.core.protocol import WEBHOOK_SERVICE
from lucius.ports.clock import SystemClock
from lucius.ports.ledger import PendingQuery
from tests.support.api import Api, serving, settings_for
from tests.support.clock import ManualClock
from tests.support.peer import Peer, always, in_turn, ok, peer

T = TypeVar("T")
SECRET = "whsec_" + "c2VjcmV0LWZvci10aGUtdGVzdHMtb25seQ=="
CONFIG = "calls: {hosts: ['127.0.0.1:%d'], allow_http: true, allow_private: true}\n"


@pytest.fixture
async def there() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path, there: Peer) -> AsyncIterator[Api]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % there.port)
    secrets = {"DEFAULT": SECRET}
    now = ManualClock(SystemClock().now())  # receivers refuse what is signed at another time
    async with serving(settings_for(tmp_path, config_path=config, webhook_secrets=secrets), now) as api:
        yield api


async def test_a_signed_notice_tells_how_the_job_ended(api: Api, there: Peer) -> None:
    job_id = await api.submit(callback_urls={"job": there.url + "/hook"}, correlation_id="c-7")
    assert there.seen == []
    (await api.succeed(await api.pull_one(), result={"pages": 3})).ok()
    await there.saw(1)
    (seen,) = there.seen
    told = Webhook(SECRET).verify(seen.body, seen.headers)
    assert (seen.path, seen.headers["webhook-id"]) == ("/hook", f"{job_id}~run1")
    assert (told["type"], told["data"]["jobId"], told["data"]["status"]) == ("job.succeeded", job_id, "SUCCEEDED")
    assert (told["data"]["output"], told["data"]["correlation_id"]) == ({"pages": 3}, "c-7")


async def test_a_notice_is_sent_again_until_it_is_taken_and_then_no_more(api: Api, there: Peer) -> None:
    there.answer = in_turn(always(500), ok)
    job_id = await api.submit(callback_urls={"job": there.url})
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    await there.saw(1)
    notices = api.runtime.engine._notices
    await changed(api, job_id, lambda: rows(api), lambda found: [row.attempt_no for row in found] == [2])
    assert await notices.send_due() == 0
    api.clock.advance(60)
    assert await notices.send_due() == 1
    assert [seen.json["type"] for seen in there.seen] == ["job.failed_final"] * 2
    assert len({seen.headers["webhook-id"] for seen in there.seen}) == 1
    assert "JOB_NOTICE_SENT" in await api.event_types(job_id)
    api.clock.advance(10**6)
    assert await notices.send_due() == 0


async def test_a_host_that_is_not_allowed_is_never_called(api: Api, there: Peer) -> None:
    job_id = await api.submit(callback_urls={"job": there.url.replace("127.0.0.1", "127.0.0.2")})
    (await api.succeed(await api.pull_one())).ok()
    await changed(api, job_id, lambda: api.event_types(job_id), lambda types: "JOB_NOTICE_FAILED" in types)
    assert there.seen == []
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


async def test_every_run_is_told_of(api: Api, there: Peer) -> None:
    job_id = await api.submit(callback_urls={"job": there.url})
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    await there.saw(1)
    (await api.post(f"/v1/jobs/{job_id}:retry", {"reason": "mended"})).ok(202)
    (await api.succeed(await api.pull_one())).ok()
    await there.saw(2)
    assert [seen.json["data"]["run_no"] for seen in there.seen] == [1, 2]
    assert [seen.json["type"] for seen in there.seen] == ["job.failed_final", "job.succeeded"]


async def rows(api: Api) -> list[OutboxRow]:
    return await api.runtime.store.pending(PendingQuery(limit=10, now=2**60, service=WEBHOOK_SERVICE))


async def changed(api: Api, job_id: str, look: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> None:
    """Wait until commits of the job have made it so."""
    async with asyncio.timeout(5):
        with api.runtime.hub.watch(job_id) as moved:
            while not is_so(await look()):
                await moved.wait()
                moved.clear()
