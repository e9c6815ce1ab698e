"""Cancelling: at once, or when the service is done; asked twice it is the same, after the end it is refused."""

import pytest

from tests.support.api import Api
from tests.unit.api.conftest import Start, key_entry


async def test_a_job_that_nobody_works_on_is_cancelled_at_once(api: Api) -> None:
    job_id = await api.submit()
    job = (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "wrong file"})).ok(202)
    assert (job["status"], job["steps"][0]["status"]) == ("CANCELLED", "CANCELLED")
    events = (await api.get(f"/v1/jobs/{job_id}/events")).ok()["events"]
    (asked,) = [event for event in events if event["type"] == "CANCEL_REQUESTED"]
    assert asked["data"] == {"by": "dev", "reason": "wrong file"}
    assert await api.pull() == []


async def test_a_job_with_a_service_ends_when_the_service_does(api: Api) -> None:
    job_id = await api.submit()
    directive = await api.pull_one()
    assert (await api.post(f"/v1/jobs/{job_id}:cancel")).ok(202)["status"] == "CANCELLING"
    assert (await api.callback("heartbeat", directive)).ok()["cancel_requested"] is True
    assert "being cancelled" in (await api.job(job_id))["blocked_on"]["message"]
    assert (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": None})).ok(202)["status"] == "CANCELLING"
    (await api.succeed(directive)).ok()
    assert (await api.job(job_id))["status"] == "CANCELLED"
    assert (await api.post(f"/v1/jobs/{job_id}:cancel", {})).ok(202)["status"] == "CANCELLED"


async def test_a_job_that_has_ended_otherwise_cannot_be_cancelled(api: Api) -> None:
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
async def test_a_wrong_body_is_refused(api: Api, body: object, status: int, code: str) -> None:
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
        ("POST", f"/v1/jobs/{job_id}:cancel"): "o",
        ("POST", "/v1/admin/outbox/retry"): "o",
        ("POST", "/v1/services/ocr/directives:pull"): "w",
    }
    for (method, path), needed in routes.items():
        (await api.call(method, path, key="unknown")).problem(401, "UNAUTHENTICATED")
        assert (await api.call(method, path, key="", headers={})).headers["www-authenticate"] == "Bearer"
        basic = {"authorization": f"Basic {needed}"}
        (await api.call(method, path, key="", headers=basic)).problem(401, "UNAUTHENTICATED")
        for key in ("s", "r", "o", "w"):
            answer = await api.call(method, path, key=key)
            refused = answer.status == 403 and answer.json["code"] == "FORBIDDEN_SCOPE"
            assert refused is (key != needed), (method, path, key, answer)
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert (await api.get(path, key="")).status == 200
