"""Waiting for a job's end, despite failures of the server."""

import asyncio
import time
from contextlib import ExitStack

import pytest

from lucius.client import AsyncClient, JobFailed, NotFound, TimedOut, Unreachable
from lucius.client import http as http_module
from tests.integration.client.support import OCR, Proxy, Server, client
from tests.support.api import KEY

BROKEN = {"code": "BROKEN", "message": "it broke"}


async def test_wait_returns_as_soon_as_the_job_has_ended(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    waiting = asyncio.create_task(lucius.wait(job_id, timeout=10))
    await server.api.succeed(await server.api.pull_one(), result={"pages": 3})
    job = await waiting
    assert (job.status, job.steps[0].result) == ("SUCCEEDED", {"pages": 3})


async def test_wait_survives_a_restart_of_the_server(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    directive = await server.api.pull_one()
    waiting = asyncio.create_task(lucius.wait(job_id, timeout=20))
    await asyncio.sleep(0.1)
    await server.restart(away=0.3)
    assert not waiting.done()
    await server.restart(away=0.1)
    await server.api.succeed(directive)
    assert (await waiting).status == "SUCCEEDED"


async def test_failed_polls_are_repeated(proxied: AsyncClient, network: Proxy, server: Server) -> None:
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    network.plan.extend(["502", "504", "503", "pass"])
    waiting = asyncio.create_task(proxied.wait(job_id, timeout=20))
    await asyncio.sleep(0.1)
    await server.api.succeed(await server.api.pull_one())
    assert (await waiting).status == "SUCCEEDED"


async def test_wait_gives_up_on_a_server_that_stays_down(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    waiting = asyncio.create_task(lucius.wait(job_id, retry_for=0.5))
    await asyncio.sleep(0.1)
    await server.stop()
    async with asyncio.timeout(5):
        with pytest.raises(Unreachable, match="no server answers at"):
            await waiting


async def test_timeout_error_shows_the_state_of_the_job(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    began = time.monotonic()
    with pytest.raises(TimedOut) as caught:
        await lucius.wait(job_id, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.job is not None
    assert caught.value.job.blocked_on is not None
    why = caught.value.job.blocked_on.message
    assert str(caught.value) == f"job {job_id} has not ended within 0.3 s; it is DISPATCHING: {why}"


async def test_timeout_of_zero_asks_once(proxied: AsyncClient, network: Proxy) -> None:
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    with pytest.raises(TimedOut):
        await proxied.wait(job_id, timeout=0)
    assert len(network.seen) == 2


async def test_timeout_applies_to_a_silent_server(network: Proxy) -> None:
    network.plan.append("hang")
    async with client(network.url, timeout=30.0) as lucius:
        async with asyncio.timeout(3):
            with pytest.raises(TimedOut, match=r"the server did not answer within 0\.2 s"):
                await lucius.wait("j", timeout=0.2)


async def test_failed_job_raises_only_with_check(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    await server.api.fail(await server.api.pull_one(), failure_class="NON_RETRYABLE", error=BROKEN)
    assert (await lucius.wait(job_id)).status == "FAILED_FINAL"
    with pytest.raises(JobFailed) as caught:
        await lucius.wait(job_id, check=True)
    assert (caught.value.code, caught.value.job.jobId) == ("BROKEN", job_id)
    review = caught.value.job.review_id
    why = "step ocr failed for good on attempt 1: it broke [BROKEN]"
    assert str(caught.value) == f"job {job_id} ended FAILED_FINAL: {why}; review item {review}"


async def test_run_submits_and_waits_for_success(lucius: AsyncClient, server: Server) -> None:
    running = asyncio.create_task(lucius.run("OCR", **OCR, idempotency_key="1", timeout=10))
    (directive,) = await server.api.pull(wait_seconds=5)
    await server.api.succeed(directive, result={"pages": 3})
    assert (await running).steps[0].result == {"pages": 3}
    running = asyncio.create_task(lucius.run("OCR", **OCR, idempotency_key="2", timeout=10))
    (directive,) = await server.api.pull(wait_seconds=5)
    await lucius.cancel(directive["jobId"], reason="not needed")
    await server.api.succeed(directive)
    with pytest.raises(JobFailed, match="ended CANCELLED"):
        await running


async def test_unknown_job_is_not_waited_for(lucius: AsyncClient) -> None:
    with pytest.raises(NotFound) as caught:
        await lucius.wait("nope", timeout=30)
    assert (caught.value.code, caught.value.detail) == ("JOB_NOT_FOUND", "there is no job nope")


async def test_server_without_long_polls_is_polled_with_pauses(
    proxied: AsyncClient, network: Proxy, server: Server
) -> None:
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    server.api.runtime.notifier.close()  # from now on every poll is answered at once
    with pytest.raises(TimedOut):
        await proxied.wait(job_id, timeout=1)
    assert 3 < len(network.seen) < 40


async def test_waits_beyond_the_connection_limit_all_complete(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr("lucius.client.waiting.LONG_POLL_SECONDS", 3.0)
    monkeypatch.setattr("lucius.client.waiting.SHORT_POLL_SECONDS", 0.1)
    async with AsyncClient(server.url, api_key=KEY) as lucius:
        ids = [(await lucius.submit("OCR", **OCR, idempotency_key=str(n))).jobId for n in range(8)]
        waiting = [asyncio.create_task(lucius.wait(job_id, timeout=20)) for job_id in ids]
        directives = {directive["jobId"]: directive for directive in await server.api.pull(max=10)}
        await asyncio.sleep(0.05)
        async with asyncio.timeout(1):
            await lucius.get(ids[0])  # requests don't queue behind polls
        await server.api.succeed(directives.pop(ids[-1]))
        async with asyncio.timeout(7):  # one long poll of the earlier jobs, and then short ones
            assert (await waiting.pop()).status == "SUCCEEDED"
        for directive in directives.values():
            await server.api.succeed(directive)
        async with asyncio.timeout(10):
            assert {job.status for job in await asyncio.gather(*waiting)} == {"SUCCEEDED"}


async def test_wait_beyond_the_limit_on_long_polls_outlasts_retry_for(
    lucius: AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.api.slots.RETRY_AFTER_SECONDS", 1)
    slots = server.api.app.app.state.long_polls  # type: ignore[attr-defined]
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    with ExitStack() as held:
        for _ in range(server.api.runtime.settings.max_long_polls_per_key):
            held.enter_context(slots.hold("dev", "globex"))
        with pytest.raises(TimedOut) as caught:
            await lucius.wait(job_id, timeout=0.3, retry_for=0)
        assert caught.value.job is not None
        waiting = asyncio.create_task(lucius.wait(job_id, timeout=20, retry_for=0.5))
        await asyncio.sleep(1.5)
        assert not waiting.done()
        await server.api.finish(job_id)
        async with asyncio.timeout(5):  # the server answers at once about a job that has ended
            assert (await waiting).status == "SUCCEEDED"
