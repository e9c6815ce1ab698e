"""NUL characters in names and texts are refused as a fault of the request."""

import asyncio

import pytest

from tests.integration.api.conftest import Start
from tests.support.api import Api


@pytest.fixture
async def api(start: Start, emptied_postgres_url: str) -> Api:
    return await start(ledger_url=emptied_postgres_url)


async def test_nul_in_a_step_id_fails_no_other_request(api: Api) -> None:
    jobs = [await api.submit(idempotency_key=str(i)) for i in range(5)]
    await api.finish(jobs[0])
    bad = [api.post(f"/v1/jobs/{jobs[0]}:retry", {"from_step": f"ocr\0{i}"}) for i in range(10)]
    bad += [api.post(f"/v1/jobs/{jobs[1]}/steps/a\0{i}:approve", {}) for i in range(10)]
    good = [api.get(f"/v1/jobs/{job_id}/events") for job_id in jobs * 4]
    answers = await asyncio.gather(*(one for pair in zip(bad, good, strict=True) for one in pair))
    assert {answer.status for answer in answers[1::2]} == {200}
    assert {answer.status for answer in answers[::2]} <= {404, 409, 422}


async def test_texts_with_nul_leave_the_job_readable(api: Api) -> None:
    text = 'a\0b\\\\u0000\\\0"'
    job_id = await api.submit(correlation_id=text, doc_id=text, idempotency_key=text)
    directive = await api.pull_one()
    assert (await api.callback("ack", directive, note=text)).status == 200
    assert (await api.get("/v1/services")).status == 200
    assert (await api.post(f"/v1/jobs/{job_id}:pause", {"reason": text})).status == 202
    assert (await api.post(f"/v1/jobs/{job_id}:resume", {"reason": text})).status == 202
    error = {"code": "BROKEN", "message": text}
    assert (await api.fail(directive, error=error, failure_class="NON_RETRYABLE")).status == 200
    assert (await api.get(f"/v1/jobs/{job_id}/events")).status == 200
    assert (await api.job(job_id))["status"] == "FAILED_FINAL"
    assert (await api.post(f"/v1/jobs/{job_id}:retry", {"reason": text})).status == 202
    assert (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": text})).status == 202


async def test_running_step_with_a_nul_in_its_error_does_not_break_the_list_of_services(api: Api) -> None:
    job_id = await api.submit()
    error = {"code": "BROKEN", "message": "a\0b"}
    assert (await api.fail(await api.pull_one(), error=error, failure_class="TRANSIENT")).status == 200
    await api.sweep(after=3_600)
    directive = await api.pull_one()
    assert (await api.callback("ack", directive)).status == 200
    assert (await api.step(job_id))["status"] == "PROCESSING"
    (service,) = (await api.get("/v1/services")).ok()["services"]
    assert (service["service"], service["at_work"]) == ("ocr", 1)
