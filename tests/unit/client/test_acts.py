"""Acts on jobs: those that stop one are sent until answered, those that set something going never twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.client import AsyncClient, Conflict, JobView, NotFound, Unavailable, Unreachable
from tests.unit.api.kinds import approval, protocol, task, wait, write_protocols
from tests.unit.client.support import OCR, Proxy, Server, client, running

ASKED = protocol(
    "ASKED", wait("first", signal="go"), wait("second", signal="go"), approval("sign", "dev"), task("file")
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path, protocols_dir=write_protocols(tmp_path / "protocols", ASKED)) as made:
        yield made


async def failed(lucius: AsyncClient, server: Server) -> str:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    await server.api.fail(await server.api.pull_one(), failure_class="NON_RETRYABLE")
    return job_id


async def at_approval(lucius: AsyncClient) -> str:
    job_id = (await lucius.submit("ASKED", **OCR)).jobId
    await lucius.signal(job_id, "go")
    await lucius.signal(job_id, "go")
    return job_id


async def test_a_cancel_whose_answer_is_lost_is_sent_again(far: AsyncClient, network: Proxy) -> None:
    job_id = (await far.submit("OCR", **OCR)).jobId
    network.plan.extend(["cut", "502", "hang"])
    far.http.timeout = 0.3
    job = await far.cancel(job_id, reason="a mistake")
    assert job.status == "CANCELLED"
    events = [event async for event in far.events(job_id)]
    assert [event.data["reason"] for event in events if event.type == "CANCEL_REQUESTED"] == ["a mistake"]


async def test_a_pause_whose_answer_is_lost_is_sent_again(far: AsyncClient, network: Proxy) -> None:
    job_id = (await far.submit("OCR", **OCR)).jobId
    network.plan.append("cut")
    job = await far.pause(job_id, reason="month end")
    assert job.paused is not None
    assert (job.status, job.paused.reason) == ("PAUSED", "month end")


async def test_a_refusal_after_a_lost_answer_says_that_it_may_have_worked(
    far: AsyncClient, network: Proxy, server: Server
) -> None:
    job_id = (await far.submit("OCR", **OCR)).jobId
    await server.api.finish(job_id)
    network.plan.append("cut")
    with pytest.raises(Conflict) as caught:
        await far.cancel(job_id)
    assert (caught.value.code, caught.value.tries, caught.value.maybe_done) == ("JOB_TERMINAL", 2, True)
    assert str(caught.value).endswith("(after 2 tries); a try that was not answered may have been carried out")


@pytest.mark.parametrize("fault", ["cut", "hang", "502", "503", "504"])
async def test_a_retry_that_may_have_arrived_is_not_sent_twice(
    far: AsyncClient, network: Proxy, server: Server, fault: str
) -> None:
    job_id = await failed(far, server)
    network.plan.append(fault)
    far.http.timeout = 0.5
    asked = len(network.seen)
    with pytest.raises(Exception, match="may have been carried out") as caught:
        await far.retry(job_id, reason="mended")
    assert getattr(caught.value, "maybe_done", False)
    assert len(network.seen) == asked + 1
    assert (await far.get(job_id)).run_no == (2 if fault == "cut" else 1)


async def test_a_signal_that_may_have_arrived_is_not_sent_twice(far: AsyncClient, network: Proxy) -> None:
    job_id = (await far.submit("ASKED", **OCR)).jobId
    network.plan.append("cut")
    with pytest.raises(Unreachable) as caught:
        await far.signal(job_id, "go", payload={"n": 1})
    assert (caught.value.failure, caught.value.maybe_done) == ("lost", True)
    job = await far.get(job_id)
    assert [step.status for step in job.steps[:2]] == ["SUCCEEDED", "WAITING"], "twice would have been both"
    assert job.steps[0].result["payload"] == {"n": 1}


@pytest.mark.parametrize("act", ["approve", "reject", "resume"])
async def test_other_acts_that_may_have_arrived_are_not_sent_twice(far: AsyncClient, network: Proxy, act: str) -> None:
    job_id = await at_approval(far)
    if act == "resume":
        await far.pause(job_id)
    network.plan.append("cut")
    asked = len(network.seen)
    with pytest.raises(Unreachable, match="may have been carried out"):
        await (far.resume(job_id) if act == "resume" else getattr(far, act)(job_id, "sign"))
    assert len(network.seen) == asked + 1


async def acts(lucius: AsyncClient, server: Server) -> list[JobView]:
    """Each of them once, on jobs that take it."""
    job_id = await at_approval(lucius)
    done = [await lucius.pause(job_id), await lucius.resume(job_id), await lucius.approve(job_id, "sign")]
    again = await failed(lucius, server)
    done += [await lucius.retry(again, from_step="ocr"), await lucius.cancel(again)]
    return done


async def test_each_act_answers_with_the_job_as_it_stands_then(lucius: AsyncClient, server: Server) -> None:
    done = await acts(lucius, server)
    assert [job.status for job in done] == ["PAUSED", "WAITING_APPROVAL", "IN_PROGRESS", "DISPATCHING", "CANCELLED"]
    assert done[3].run_no == 2


async def test_an_act_that_never_left_is_sent_again(server: Server) -> None:
    async with client(server.url) as lucius:
        job_id = await failed(lucius, server)
        await server.stop()
        retrying = asyncio.create_task(lucius.retry(job_id))
        await asyncio.sleep(0.3)
        await server.start()
        assert (await retrying).run_no == 2


async def test_an_act_that_lucius_itself_refuses_for_now_is_sent_again(lucius: AsyncClient, server: Server) -> None:
    job_id = await failed(lucius, server)
    state = server.api.app._app.state  # type: ignore[attr-defined]
    runtime, state.runtime = state.runtime, None  # it answers NOT_READY
    retrying = asyncio.create_task(lucius.retry(job_id))
    await asyncio.sleep(0.1)
    async with client(server.url, retry_for=0.1) as impatient:
        with pytest.raises(Unavailable) as caught:
            await impatient.signal(job_id, "go")
    state.runtime = runtime
    assert (caught.value.code, caught.value.retry_after, caught.value.maybe_done) == ("NOT_READY", 1, False)
    assert (await retrying).run_no == 2


async def test_a_rejection_fails_the_step(lucius: AsyncClient) -> None:
    job_id = await at_approval(lucius)
    job = await lucius.reject(job_id, "sign", comment="no")
    assert job.error is not None
    assert (job.status, job.error.code) == ("FAILED_FINAL", "REJECTED")


async def test_refusals_come_with_their_codes(lucius: AsyncClient, server: Server) -> None:
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
