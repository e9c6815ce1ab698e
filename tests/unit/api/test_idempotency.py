"""A repeat gets the job that is there; another command under the same key is refused and told which job."""

import asyncio

from tests.support.api import Api
from tests.unit.api.conftest import Start


async def test_with_a_key_the_key_decides(api: Api) -> None:
    job_id = await api.submit(idempotency_key="k")
    again = (await api.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)
    assert again == {"jobId": job_id, "status": "DISPATCHING", "duplicate": True}
    assert await api.submit(idempotency_key="k2") != job_id


async def test_without_a_key_the_content_decides(api: Api) -> None:
    job_id = await api.submit(doc_id="d1", correlation_id="first")
    answer = await api.post("/v1/commands", api.command(doc_id="d2", correlation_id="second"))
    assert answer.ok(202) == {"jobId": job_id, "status": "DISPATCHING", "duplicate": True}
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    assert await api.submit(payload={"ocr": {"language": "de"}}) != job_id


async def test_the_order_of_members_and_null_members_make_no_difference(api: Api) -> None:
    body = api.command(payload={"ocr": {"language": "de", "dpi": None}})
    first = (await api.post("/v1/commands", body)).ok(202)
    mirrored = dict(reversed(api.command(payload={"ocr": {"language": "de"}}).items()))
    assert (await api.post("/v1/commands", mirrored)).ok(202)["jobId"] == first["jobId"]


async def test_the_same_key_with_another_command_names_the_job(api: Api) -> None:
    job_id = await api.submit(idempotency_key="k")
    other = api.command(idempotency_key="k", input_ref="blob://in/b.pdf")
    problem = (await api.post("/v1/commands", other)).problem(409, "IDEMPOTENCY_KEY_REUSED")
    assert problem["jobId"] == job_id
    assert job_id in problem["detail"]
    assert await api.jobs() == [job_id]


async def test_keys_of_different_tenants_do_not_meet(api: Api) -> None:
    assert await api.submit(idempotency_key="k") != await api.submit(idempotency_key="k", tenant_id="globex")


async def test_a_repeat_is_answered_after_the_job_has_ended(api: Api) -> None:
    job_id = await api.submit(idempotency_key="k")
    await api.finish(job_id)
    again = (await api.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)
    assert again == {"jobId": job_id, "status": "SUCCEEDED", "duplicate": True}


async def test_a_repeat_passes_where_a_new_command_is_over_the_limit(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, tenant_inflight=1)
    job_id = await api.submit(idempotency_key="k")
    assert (await api.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)["jobId"] == job_id
    (await api.post("/v1/commands", api.command(idempotency_key="k2"))).problem(429, "TENANT_LIMIT")
    changed = api.command(idempotency_key="k", output_ref="blob://out/other")
    (await api.post("/v1/commands", changed)).problem(409, "IDEMPOTENCY_KEY_REUSED")


async def test_a_repeat_passes_where_the_mode_is_no_longer_allowed(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url)
    job_id = await api.submit(idempotency_key="k")
    again = api.command(idempotency_key="k", mode="BURST")  # a new one would need a doc_id
    assert (await api.post("/v1/commands", again)).ok(202)["jobId"] == job_id


async def test_many_at_once_make_one_job(api: Api) -> None:
    answers = await asyncio.gather(*(api.post("/v1/commands", api.command()) for _ in range(20)))
    accepted = [answer.ok(202) for answer in answers]
    assert len({one["jobId"] for one in accepted}) == 1
    assert sum(not one["duplicate"] for one in accepted) == 1
    assert (await api.runtime.store.counters("jobs"))["jobs"] == 1


async def test_the_key_outlives_a_restart(start: Start, tmp_path: object) -> None:
    api = await start(ledger_url=f"sqlite:///{tmp_path}/a.db")
    job_id = await api.submit(idempotency_key="k")
    await api.runtime.store.close()
    reopened = await start(ledger_url=f"sqlite:///{tmp_path}/a.db")
    assert (await reopened.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)["jobId"] == job_id
