"""A repeat returns the existing job; another command under the same key is refused, and the error names the job."""

import asyncio
from pathlib import Path
from unittest.mock import ANY

from tests.integration.api.conftest import Start
from tests.support.api import Api


async def test_commands_with_a_key_are_identified_by_it(api: Api) -> None:
    job_id = await api.submit(idempotency_key="k")
    again = (await api.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)
    assert again == {"jobId": job_id, "status": "DISPATCHING", "duplicate": True, "accepted_at": ANY}
    assert await api.submit(idempotency_key="k2") != job_id


async def test_commands_without_a_key_are_identified_by_content(api: Api) -> None:
    job_id = await api.submit(doc_id="d1", correlation_id="first")
    answer = await api.post("/v1/commands", api.command(doc_id="d2", correlation_id="second"))
    assert answer.ok(202) == {"jobId": job_id, "status": "DISPATCHING", "duplicate": True, "accepted_at": ANY}
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    assert await api.submit(payload={"ocr": {"language": "de"}}) != job_id


async def test_member_order_and_null_members_make_no_difference(api: Api) -> None:
    body = api.command(payload={"ocr": {"language": "de", "dpi": None}})
    first = (await api.post("/v1/commands", body)).ok(202)
    mirrored = dict(reversed(api.command(payload={"ocr": {"language": "de"}}).items()))
    assert (await api.post("/v1/commands", mirrored)).ok(202)["jobId"] == first["jobId"]


async def test_reused_key_is_refused_naming_the_job(api: Api) -> None:
    job_id = await api.submit(idempotency_key="k")
    other = api.command(idempotency_key="k", input_ref="blob://in/b.pdf")
    problem = (await api.post("/v1/commands", other)).problem(409, "IDEMPOTENCY_KEY_REUSED")
    assert problem["jobId"] == job_id
    assert job_id in problem["detail"]
    assert await api.jobs() == [job_id]


async def test_equal_keys_of_different_tenants_do_not_collide(api: Api) -> None:
    assert await api.submit(idempotency_key="k") != await api.submit(idempotency_key="k", tenant_id="globex")


async def test_repeat_is_answered_after_the_job_has_ended(api: Api) -> None:
    job_id = await api.submit(idempotency_key="k")
    await api.finish(job_id)
    again = (await api.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)
    assert again == {"jobId": job_id, "status": "SUCCEEDED", "duplicate": True, "accepted_at": ANY}


async def test_duplicate_shows_when_its_job_was_accepted(api: Api) -> None:
    first = (await api.post("/v1/commands", api.command())).ok(202)
    assert "accepted_at" not in first
    again = (await api.post("/v1/commands", api.command())).ok(202)
    job = (await api.get(f"/v1/jobs/{first['jobId']}")).ok(200)
    assert again["accepted_at"] == job["created_at"]
    batch = (await api.post("/v1/commands:batch", {"commands": [api.command(), api.command(payload={})]})).ok(200)
    assert batch["results"][0]["accepted_at"] == job["created_at"]


async def test_repeat_is_accepted_over_the_tenant_limit(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, tenant_inflight=1)
    job_id = await api.submit(idempotency_key="k")
    assert (await api.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)["jobId"] == job_id
    (await api.post("/v1/commands", api.command(idempotency_key="k2"))).problem(429, "TENANT_LIMIT")
    changed = api.command(idempotency_key="k", output_ref="blob://out/other")
    (await api.post("/v1/commands", changed)).problem(409, "IDEMPOTENCY_KEY_REUSED")


async def test_repeat_is_accepted_with_a_mode_that_a_new_command_may_not_have(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url)
    job_id = await api.submit(idempotency_key="k")
    again = api.command(idempotency_key="k", mode="BURST")  # a new one would need a doc_id
    assert (await api.post("/v1/commands", again)).ok(202)["jobId"] == job_id


async def test_repeat_is_accepted_after_the_ref_policy_was_tightened(start: Start, tmp_path: Path) -> None:
    ledger_url = f"sqlite:///{tmp_path}/a.db"
    api = await start(ledger_url=ledger_url)
    job_id = await api.submit(idempotency_key="k")
    await api.runtime.store.close()
    stricter = await start(ledger_url=ledger_url, config={"refs": {"prefixes": ["elsewhere"]}})
    assert (await stricter.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)["jobId"] == job_id
    (await stricter.post("/v1/commands", api.command(idempotency_key="k2"))).problem(422, "FORBIDDEN_REF")


async def test_concurrent_equal_commands_create_one_job(api: Api) -> None:
    answers = await asyncio.gather(*(api.post("/v1/commands", api.command()) for _ in range(20)))
    accepted = [answer.ok(202) for answer in answers]
    assert len({one["jobId"] for one in accepted}) == 1
    assert sum(not one["duplicate"] for one in accepted) == 1
    assert (await api.runtime.store.jobs.counters("jobs"))["jobs"] == 1


async def test_idempotency_key_survives_a_restart(start: Start, tmp_path: object) -> None:
    api = await start(ledger_url=f"sqlite:///{tmp_path}/a.db")
    job_id = await api.submit(idempotency_key="k")
    await api.runtime.store.close()
    reopened = await start(ledger_url=f"sqlite:///{tmp_path}/a.db")
    assert (await reopened.post("/v1/commands", api.command(idempotency_key="k"))).ok(202)["jobId"] == job_id
