"""Cancelling: at once, or when the service is done; a repeat has the same effect, and after the end it is refused."""

import pytest

from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Api


async def test_job_without_a_running_attempt_is_cancelled_at_once(api: Api) -> None:
    job_id = await api.submit()
    job = (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "wrong file"})).ok(202)
    assert (job["status"], job["steps"][0]["status"]) == ("CANCELLED", "CANCELLED")
    events = (await api.get(f"/v1/jobs/{job_id}/events")).ok()["events"]
    (asked,) = [event for event in events if event["type"] == "CANCEL_REQUESTED"]
    assert asked["data"] == {"by": "dev", "reason": "wrong file"}
    assert await api.pull() == []


async def test_job_with_a_running_attempt_is_cancelled_when_the_attempt_ends(api: Api) -> None:
    job_id = await api.submit()
    directive = await api.pull_one()
    assert (await api.post(f"/v1/jobs/{job_id}:cancel")).ok(202)["status"] == "CANCELLING"
    assert (await api.callback("heartbeat", directive)).ok()["cancel_requested"] is True
    assert "being cancelled" in (await api.job(job_id))["blocked_on"]["message"]
    assert (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": None})).ok(202)["status"] == "CANCELLING"
    (await api.succeed(directive)).ok()
    assert (await api.job(job_id))["status"] == "CANCELLED"
    assert (await api.post(f"/v1/jobs/{job_id}:cancel", {})).ok(202)["status"] == "CANCELLED"


async def test_job_that_has_succeeded_cannot_be_cancelled(api: Api) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    problem = (await api.post(f"/v1/jobs/{job_id}:cancel")).problem(409, "JOB_TERMINAL")
    assert problem["jobId"] == job_id
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "MALFORMED_JSON"),
        ({"reason": 5}, 422, "INVALID_ENVELOPE"),
        ({"reason": "x" * 1025}, 422, "INVALID_ENVELOPE"),
        ({"why": "x"}, 422, "INVALID_ENVELOPE"),
        ([], 422, "INVALID_ENVELOPE"),
    ],
)
async def test_invalid_body_is_refused(api: Api, body: object, status: int, code: str) -> None:
    job_id = await api.submit()
    (await api.post(f"/v1/jobs/{job_id}:cancel", body)).problem(status, code)
    assert (await api.job(job_id))["status"] == "DISPATCHING"


async def test_each_route_needs_its_scope(start: Start) -> None:
    scopes = {"s": "submit", "r": "read", "o": "operate"}
    keys = [key_entry(key, scope, tenants=("*",)) for key, scope in scopes.items()]
    keys += [key_entry("w", "serve", service="ocr")]
    api = await start({"api_keys": keys})
    job_id = await api.submit()
    routes = {
        ("POST", "/v1/commands"): "s",
        ("POST", "/v1/commands:batch"): "s",
        ("GET", "/v1/jobs"): "r",
        ("GET", f"/v1/jobs/{job_id}"): "r",
        ("GET", f"/v1/jobs/{job_id}/steps"): "r",
        ("GET", f"/v1/jobs/{job_id}/attempts"): "r",
        ("GET", f"/v1/jobs/{job_id}/events"): "r",
        ("GET", "/v1/protocols"): "r",
        ("GET", "/v1/protocols/OCR"): "r",
        ("POST", f"/v1/jobs/{job_id}:pause"): "o",
        ("POST", f"/v1/jobs/{job_id}:cancel"): "os",
        ("POST", "/v1/admin/outbox/retry"): "o",
        ("POST", "/v1/services/ocr/directives:pull"): "w",
    }
    for (method, path), needed in routes.items():
        (await api.call(method, path, key="unknown")).problem(401, "UNAUTHENTICATED")
        assert (await api.call(method, path, key="", headers={})).headers["www-authenticate"] == "Bearer"
        basic = {"authorization": f"Basic {needed[0]}"}
        (await api.call(method, path, key="", headers=basic)).problem(401, "UNAUTHENTICATED")
        for key in ("s", "r", "o", "w"):
            answer = await api.call(method, path, key=key)
            refused = answer.status == 403 and answer.json["code"] == "FORBIDDEN_SCOPE"
            assert refused is (key not in needed), (method, path, key, answer)
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert (await api.get(path, key="")).status == 200


async def test_submit_key_may_only_cancel_jobs_of_its_own_tenants(start: Start) -> None:
    api = await start({"api_keys": [key_entry("acmes", "submit", tenants=("acme",))]})
    told = {"doc_id": "invoice-7", "idempotency_key": "secret-key", "target": {"type": "order", "id": "42"}}
    own, foreign = await api.submit(payload={"ocr": {}}, **told), await api.submit(tenant_id="globex")
    (await api.post(f"/v1/jobs/{foreign}:cancel", key="acmes")).problem(404, "JOB_NOT_FOUND")
    for act in ("pause", "resume", "retry"):
        (await api.post(f"/v1/jobs/{own}:{act}", key="acmes")).problem(403, "FORBIDDEN_SCOPE")
    (await api.post(f"/v1/jobs/{own}:signal", {"name": "go"}, key="acmes")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get(f"/v1/jobs/{own}", key="acmes")).problem(403, "FORBIDDEN_SCOPE")
    job = (await api.post(f"/v1/jobs/{own}:cancel", {"reason": "wrong file"}, key="acmes")).ok(202)
    assert (job["jobId"], job["status"]) == (own, "CANCELLED")
    assert (job["steps"], job.get("payload", {})) == ([], {})
    hidden = ("input_ref", "output_ref", "workspace_ref", "doc_id", "idempotency_key", "idempotency_hash", "target")
    assert [job.get(name) or None for name in hidden] == [None] * len(hidden)
    events = (await api.get(f"/v1/jobs/{own}/events")).ok()["events"]
    (asked,) = [event for event in events if event["type"] == "CANCEL_REQUESTED"]
    assert asked["data"] == {"by": "acmes", "reason": "wrong file"}
    assert (await api.job(foreign))["status"] == "DISPATCHING"
