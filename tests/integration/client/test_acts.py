"""Acts on jobs: those that stop a job are retried until answered, those that start something are sent once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.client import AsyncClient, Conflict, JobView, NotFound, Unavailable, Unreachable
from tests.integration.api.protocols import approval, protocol, task, wait, write_protocols
from tests.integration.client.support import OCR, Proxy, Server, client, running

ASKED = protocol(
    "ASKED", wait("first", signal="go"), wait("second", signal="go"), approval("sign", "dev"), task("file")
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path, protocols_dir=write_protocols(tmp_path / "protocols", ASKED)) as made:
        yield made


async def failed_job(lucius: AsyncClient, server: Server) -> str:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    await server.api.fail(await server.api.pull_one(), failure_class="NON_RETRYABLE")
    return job_id


async def job_at_approval(lucius: AsyncClient) -> str:
    job_id = (await lucius.submit("ASKED", **OCR)).jobId
    await lucius.signal(job_id, "go")
    await lucius.signal(job_id, "go")
    return job_id


async def test_cancel_with_a_lost_answer_is_sent_again(proxied: AsyncClient, network: Proxy) -> None:
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    network.plan.extend(["cut", "502", "hang"])
    proxied.http.timeout = 0.3
    job = await proxied.cancel(job_id, reason="a mistake")
    assert job.status == "CANCELLED"
    events = [event async for event in proxied.events(job_id)]
    assert [event.data["reason"] for event in events if event.type == "CANCEL_REQUESTED"] == ["a mistake"]


async def test_pause_with_a_lost_answer_is_sent_again(proxied: AsyncClient, network: Proxy) -> None:
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    network.plan.append("cut")
    job = await proxied.pause(job_id, reason="month end")
    assert job.paused is not None
    assert (job.status, job.paused.reason) == ("PAUSED", "month end")


async def test_refusal_after_a_lost_answer_says_that_the_first_try_may_have_worked(
    proxied: AsyncClient, network: Proxy, server: Server
) -> None:
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    await server.api.finish(job_id)
    network.plan.append("cut")
    with pytest.raises(Conflict) as caught:
        await proxied.cancel(job_id)
    assert (caught.value.code, caught.value.tries, caught.value.maybe_done) == ("JOB_TERMINAL", 2, True)
    assert str(caught.value).endswith("(after 2 tries); a try that was not answered may have been carried out")


@pytest.mark.parametrize("fault", ["cut", "hang", "502", "503", "504"])
async def test_retry_that_may_have_arrived_is_not_sent_twice(
    proxied: AsyncClient, network: Proxy, server: Server, fault: str
) -> None:
    job_id = await failed_job(proxied, server)
    network.plan.append(fault)
    proxied.http.timeout = 0.5
    asked = len(network.seen)
    with pytest.raises(Exception, match="may have been carried out") as caught:
        await proxied.retry(job_id, reason="mended")
    assert getattr(caught.value, "maybe_done", False)
    assert len(network.seen) == asked + 1
    assert (await proxied.get(job_id)).run_no == (2 if fault == "cut" else 1)


async def test_signal_that_may_have_arrived_is_not_sent_twice(proxied: AsyncClient, network: Proxy) -> None:
    job_id = (await proxied.submit("ASKED", **OCR)).jobId
    network.plan.append("cut")
    with pytest.raises(Unreachable) as caught:
        await proxied.signal(job_id, "go", payload={"n": 1})
    assert (caught.value.failure, caught.value.maybe_done) == ("lost", True)
    job = await proxied.get(job_id)
    assert [step.status for step in job.steps[:2]] == ["SUCCEEDED", "WAITING"], "twice would have been both"
    assert job.steps[0].result["payload"] == {"n": 1}


@pytest.mark.parametrize("act", ["approve", "reject", "resume"])
async def test_approve_reject_and_resume_that_may_have_arrived_are_not_sent_twice(
    proxied: AsyncClient, network: Proxy, act: str
) -> None:
    job_id = await job_at_approval(proxied)
    if act == "resume":
        await proxied.pause(job_id)
    network.plan.append("cut")
    asked = len(network.seen)
    with pytest.raises(Unreachable, match="may have been carried out"):
        await (proxied.resume(job_id) if act == "resume" else getattr(proxied, act)(job_id, "sign"))
    assert len(network.seen) == asked + 1


async def perform_acts(lucius: AsyncClient, server: Server) -> list[JobView]:
    """Perform each act once, on jobs that permit it; return the answers."""
    job_id = await job_at_approval(lucius)
    done = [await lucius.pause(job_id), await lucius.resume(job_id), await lucius.approve(job_id, "sign")]
    again = await failed_job(lucius, server)
    done += [await lucius.retry(again, from_step="ocr"), await lucius.cancel(again)]
    return done


async def test_each_act_returns_the_resulting_job(lucius: AsyncClient, server: Server) -> None:
    done = await perform_acts(lucius, server)
    assert [job.status for job in done] == ["PAUSED", "WAITING_APPROVAL", "IN_PROGRESS", "DISPATCHING", "CANCELLED"]
    assert done[3].run_no == 2


async def test_retry_that_never_left_is_sent_again(server: Server) -> None:
    async with client(server.url) as lucius:
        job_id = await failed_job(lucius, server)
        await server.stop()
        retrying = asyncio.create_task(lucius.retry(job_id))
        await asyncio.sleep(0.3)
        await server.start()
        assert (await retrying).run_no == 2


async def test_act_refused_as_not_ready_is_sent_again(lucius: AsyncClient, server: Server) -> None:
    job_id = await failed_job(lucius, server)
    state = server.api.app.app.state  # type: ignore[attr-defined]
    runtime, state.runtime = state.runtime, None  # so it answers NOT_READY
    retrying = asyncio.create_task(lucius.retry(job_id))
    await asyncio.sleep(0.1)
    async with client(server.url, retry_for=0.1) as impatient:
        with pytest.raises(Unavailable) as caught:
            await impatient.signal(job_id, "go")
    state.runtime = runtime
    assert (caught.value.code, caught.value.retry_after, caught.value.maybe_done) == ("NOT_READY", 1, False)
    assert (await retrying).run_no == 2


async def test_rejection_fails_the_step(lucius: AsyncClient) -> None:
    job_id = await job_at_approval(lucius)
    job = await lucius.reject(job_id, "sign", comment="no")
    assert job.error is not None
    assert (job.status, job.error.code) == ("FAILED_FINAL", "REJECTED")


async def test_refusals_have_their_codes(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    with pytest.raises(Conflict) as caught:
        await lucius.retry(job_id)
    assert (caught.value.code, caught.value.job_id) == ("JOB_LIVE", job_id)
    with pytest.raises(Conflict) as caught:
        await lucius.signal(job_id, "nonsense")
    assert caught.value.code == "UNKNOWN_SIGNAL"
    with pytest.raises(NotFound) as missing:
        await lucius.approve(job_id, "no such step")
    assert missing.value.code == "STEP_NOT_FOUND"
