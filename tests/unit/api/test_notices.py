"""Clients that gave `callback_urls.job` are told, once it is durable, how their job ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from standardwebhooks import Webhook

from lucius.adapters.http_caller import HttpCaller
from lucius.core.model import OutboxRow
from lucius.core.protocol import WEBHOOK_SERVICE
from lucius.ports.calls import Answer, Outgoing
from lucius.ports.clock import SystemClock
from lucius.ports.ledger import PendingQuery
from tests.support.api import Api, serving, settings_for
from tests.support.clock import ManualClock
from tests.support.peer import Peer, always, in_turn, ok, peer

T = TypeVar("T")
SECRET = "whsec_" + "c2VjcmV0LWZvci10aGUtdGVzdHMtb25seQ=="
CONFIG = "callbacks: {job_hosts: ['127.0.0.1:%d', localhost]}\ncalls: {allow_private: true, per_host: 2}\n"


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
    await asyncio.gather(*notices._running)
    await notices.start_due()
    assert len(there.seen) == 1
    api.clock.advance(60)
    await notices.start_due()
    await changed(api, job_id, lambda: api.event_types(job_id), lambda types: "JOB_NOTICE_SENT" in types)
    assert [seen.json["type"] for seen in there.seen] == ["job.failed_final"] * 2
    assert len({seen.headers["webhook-id"] for seen in there.seen}) == 1
    api.clock.advance(10**6)
    await notices.start_due()
    assert len(there.seen) == 2


@pytest.mark.parametrize("host", ["127.0.0.2", "hooks.example.com"])
async def test_a_host_that_is_not_on_the_list_is_refused_at_once(api: Api, there: Peer, host: str) -> None:
    body = api.command(callback_urls={"job": f"https://{host}:{there.port}/"})
    (await api.post("/v1/commands", body)).problem(422, "CALLBACK_URL_FORBIDDEN")


async def test_without_a_list_only_public_hosts_are_told_by_https(tmp_path: Path, there: Peer) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("calls: {hosts: ['127.0.0.1'], allow_http: true, allow_private: true}\n")
    async with serving(settings_for(tmp_path, config_path=config)) as api:
        plain = api.command(callback_urls={"job": there.url})
        (await api.post("/v1/commands", plain)).problem(422, "CALLBACK_URL_FORBIDDEN")
        job_id = await api.submit(callback_urls={"job": there.url.replace("http:", "https:")})
        (await api.succeed(await api.pull_one())).ok()
        await changed(api, job_id, lambda: api.event_types(job_id), lambda types: "JOB_NOTICE_FAILED" in types)
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
    assert there.seen == []


async def test_without_a_secret_of_ours_one_is_made_and_kept(tmp_path: Path, there: Peer) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % there.port)
    for starts in (1, 2):
        async with serving(settings_for(tmp_path, config_path=config), ManualClock(SystemClock().now())) as api:
            await api.submit(callback_urls={"job": there.url})
            (await api.succeed(await api.pull_one())).ok()
            await there.saw(starts)
    path = tmp_path / "webhook.secret"
    assert path.stat().st_mode & 0o077 == 0
    assert [Webhook(path.read_text()).verify(seen.body, seen.headers)["type"] for seen in there.seen] == [
        "job.succeeded"
    ] * 2


async def test_a_receiver_that_hangs_holds_up_nobody_else(api: Api, there: Peer) -> None:
    there.gate.clear()
    for number in range(60):
        await api.submit(callback_urls={"job": there.url}, idempotency_key=f"slow-{number}")
    for directive in await api.pull("ocr", max=60):
        (await api.succeed(directive)).ok()
    await there.saw(2)
    async with peer() as other:
        job_id = await api.submit(callback_urls={"job": other.url.replace("127.0.0.1", "localhost")})
        (await api.succeed(await api.pull_one())).ok()
        await other.saw(1)
        assert other.seen[0].json["data"]["jobId"] == job_id
    assert len(there.seen) == 2
    there.gate.set()
    await there.saw(60)
    assert len({seen.headers["webhook-id"] for seen in there.seen}) == len(there.seen) == 60


async def test_a_receiver_that_asks_for_quiet_gets_it_and_nothing_is_burned(api: Api, there: Peer) -> None:
    there.answer = always(429, None, Retry_After="600")
    for number in range(5):
        job_id = await api.submit(callback_urls={"job": there.url}, idempotency_key=f"job-{number}")
        (await api.succeed(await api.pull_one())).ok()
        await changed(api, job_id, lambda: rows(api), lambda found: all(row.next_attempt_at for row in found))
    assert len(there.seen) == 1
    assert sorted(row.attempt_no for row in await rows(api)) == [1, 1, 1, 1, 2]


async def test_what_nobody_foresaw_fails_one_notice_and_stops_no_other(
    api: Api, there: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = HttpCaller.send

    async def breaking(caller: HttpCaller, outgoing: Outgoing) -> Answer:
        if outgoing.url.endswith("/bad"):
            raise KeyError("surprise")
        return await send(caller, outgoing)

    monkeypatch.setattr(HttpCaller, "send", breaking)
    job_id = await api.submit(callback_urls={"job": f"{there.url}/bad"}, idempotency_key="bad")
    (await api.succeed(await api.pull_one())).ok()
    await changed(api, job_id, lambda: rows(api), lambda found: [row.attempt_no for row in found] == [2])
    await api.submit(callback_urls={"job": f"{there.url}/good"}, idempotency_key="good")
    (await api.succeed(await api.pull_one())).ok()
    await there.saw(1)
    metrics = (await api.get("/metrics")).body.decode()
    assert 'lucius_loop_failures_total{loop="notices"} 1.0' in metrics


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
