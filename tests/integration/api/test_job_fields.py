"""A job's payload, output, hash and logs as `GET /v1/jobs/{jobId}` and its attempts show them."""

from lucius.core.protocol.redaction import MASK
from tests.integration.api.protocols import Document, Serve
from tests.support.api import Api

PAYLOAD = {"scan": {"password": "hunter2hunter2", "page": 3}}


def scan(**more: object) -> Document:
    step = {"step_id": "scan", "step_type": "SCAN", "service": "scan"}
    return {"protocol_id": "scan", "version": 1, "request_type": "SCAN", "steps": [step], **more}


async def test_payload_includes_defaults_and_the_hash_is_shown(api: Api) -> None:
    job = await api.job(await api.submit())
    assert job["payload"]["ocr"]
    assert len(job["idempotency_hash"]) == 64


async def test_current_step_index_follows_the_current_step(api: Api) -> None:
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    (await api.succeed(await api.pull_one("ocr"))).ok()
    job = await api.job(job_id)
    assert (job["current_step_id"], job["current_step_index"]) == ("embedding", 1)


async def test_redacted_payload_is_masked_in_views_and_whole_in_directives(serve: Serve) -> None:
    api = await serve(scan(redact=["/scan/password"]))
    job_id = await api.submit(request_type="SCAN", payload=PAYLOAD)
    assert (await api.job(job_id))["payload"] == {"scan": {"password": MASK, "page": 3}}
    directive = await api.pull_one("scan")
    assert directive["payload"] == PAYLOAD["scan"]
    cancelled = await api.call("POST", f"/v1/jobs/{job_id}:cancel", {"reason": "enough"})
    assert cancelled.ok(202)["payload"]["scan"]["password"] == MASK
    (await api.succeed(directive)).ok()
    of_job = (f"/v1/jobs/{job_id}{rest}" for rest in ("", "/steps", "/attempts", "/events"))
    for path in (*of_job, "/v1/jobs", "/v1/review"):
        assert b"hunter2" not in (await api.get(path)).body, path


async def test_hash_is_omitted_if_something_is_masked(serve: Serve) -> None:
    api = await serve(scan(redact=["/scan/password"]))
    masked = await api.job(await api.submit(request_type="SCAN", payload=PAYLOAD))
    plain = await api.job(await api.submit(request_type="SCAN", payload={"scan": {"page": 3}}))
    assert masked["idempotency_hash"] == ""
    assert len(plain["idempotency_hash"]) == 64


async def test_output_is_reported_only_if_the_service_named_it(serve: Serve) -> None:
    api = await serve(scan())
    silent = await api.submit(request_type="SCAN", payload=PAYLOAD, output_ref="blob://out/a.json")
    (await api.succeed(await api.pull_one("scan"), result={"pages": 2}, artifact_refs=["blob://out/b.json"])).ok()
    job = await api.job(silent)
    assert (job["output"], job["reported_output_ref"]) == ({"pages": 2}, None)
    for output_ref, said, expected in (
        ("blob://out/c.json", {"artifact_refs": ["blob://x", "blob://out/c.json"]}, "blob://out/c.json"),
        ("blob://out/d.json", {"result": {"output_ref": "blob://out/d.json"}}, "blob://out/d.json"),
        ("blob://out/e/", {"result": {"output_ref": "blob://out/e/j-result.json"}}, "blob://out/e/j-result.json"),
        ("blob://out/f", {"artifact_refs": ["blob://out/forged"]}, None),
    ):
        job_id = await api.submit(request_type="SCAN", payload=PAYLOAD, output_ref=output_ref)
        (await api.succeed(await api.pull_one("scan"), **said)).ok()
        assert (await api.job(job_id))["reported_output_ref"] == expected


async def test_attempts_show_the_logs_ref_of_the_last_callback_that_had_one(api: Api) -> None:
    job_id = await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive, logs_ref="blob://logs/0")).ok()
    assert await logs(api, job_id) == ["blob://logs/0"]
    (await api.callback("heartbeat", directive, logs_ref="blob://logs/1")).ok()
    (await api.callback("heartbeat", directive, gpu="warm")).ok()
    assert await logs(api, job_id) == ["blob://logs/1"]
    (await api.fail(directive, host="h1")).ok()
    await api.sweep(after=400)
    second = await api.pull_one()
    (await api.succeed(second, logs_ref="blob://logs/2")).ok()
    assert await logs(api, job_id) == ["blob://logs/1", "blob://logs/2"]


async def test_logs_ref_that_is_no_text_is_not_shown(api: Api) -> None:
    job_id = await api.submit()
    (await api.succeed(await api.pull_one(), logs_ref={"a": 1})).ok()
    assert await logs(api, job_id) == [None]


async def logs(api: Api, job_id: str) -> list[str | None]:
    return [attempt["logs_ref"] for attempt in (await api.get(f"/v1/jobs/{job_id}/attempts")).ok()["attempts"]]
