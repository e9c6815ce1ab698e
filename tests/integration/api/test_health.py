"""Public endpoints: health, readiness, metrics, and documents without authentication."""

import pytest

from lucius.core.model.decision import Defaults
from tests.integration.api.conftest import Start
from tests.integration.api.protocols import Serve, approval, protocol, task
from tests.support.api import Api

POINT_11 = [
    'lucius_jobs_ended_total{outcome="SUCCEEDED",request_type="OCR"} 1.0',
    'lucius_jobs_accepted_total{request_type="OCR"} 1.0',
    'lucius_step_seconds_count{outcome="SUCCEEDED",service="ocr"} 1.0',
    'lucius_step_seconds_count{outcome="FAILED",service="ocr"} 1.0',
    'lucius_step_retries_total{cause="FAILED",service="ocr"} 1.0',
    'lucius_dispatch_lag_seconds_count{service="ocr"} 2.0',
    'lucius_outbox_pending{service="embedding"} 1.0',
    'lucius_backlog{lane="14",service="embedding"} 1.0',
    "lucius_outbox_oldest_seconds 7.0",
    'lucius_sweeper_actions_total{action="deadline"} 1.0',
    "lucius_commit_batch_size_count",
    "lucius_commit_seconds_count",
    'lucius_callbacks_total{disposition="APPLIED",type="RESULT"} 2.0',
    'lucius_refusals_total{code="UNAUTHENTICATED"} 1.0',
    'lucius_refusals_total{code="NOT_FOUND"} 1.0',
    "lucius_jobs_inflight 2.0",
    'lucius_unacked{service="embedding"}',
]


async def test_all_metrics_are_present_after_a_job_ran(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, defaults=Defaults(backoff_scale=0))
    job_id = await api.submit()
    (await api.fail(await api.pull_one())).ok()
    assert await api.sweep() == 1
    await api.finish(job_id)
    await api.submit(request_type="EMBEDDING")
    await api.submit(request_type="EMBEDDING", idempotency_key="two")
    await api.pull("embedding")
    (await api.post("/v1/jobs/x:cancel", key="x")).problem(401, "UNAUTHENTICATED")
    (await api.get("/nowhere")).problem(404, "NOT_FOUND")
    api.clock.advance(7)
    answer = await api.get("/metrics", key="")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.body.decode()
    assert [line for line in POINT_11 if line not in text] == []
    assert job_id not in text
    assert "acme" not in text


PEOPLE = [
    'lucius_step_retries_by_class_total{failure_class="RATE_LIMITED"} 1.0',
    'lucius_step_failures_total{failure_class="NON_RETRYABLE",step_type="READ"} 1.0',
    'lucius_reviews_open{kind="JOB_FAILED"} 0.0',
    'lucius_reviews_open{kind="STALE_RESULT"} 1.0',
    'lucius_runs_started_total{act="retry"} 1.0',
    'lucius_review_acts_total{act="retry"} 1.0',
    'lucius_votes_total{vote="APPROVED"} 1.0',
    'lucius_step_duration_seconds_count{step_type="human_approval"} 1.0',
    'lucius_step_duration_seconds_count{step_type="READ"} 1.0',
    'lucius_step_duration_seconds_sum{step_type="human_approval"} 7.0',
    'lucius_step_duration_seconds_sum{step_type="READ"} 92.0',
]


async def test_retries_reviews_votes_and_durations_are_counted(serve: Serve) -> None:
    api = await serve(protocol("SIGNED", approval("sign", "finance"), task("read"), task("file")))
    job_id = await api.submit(request_type="SIGNED")
    api.clock.advance(7)
    (await api.post(f"/v1/jobs/{job_id}/steps/sign:approve")).ok()
    first = await api.pull_one("read")
    (await api.fail(first, failure_class="RATE_LIMITED", retry_after_seconds=90)).ok()
    await api.sweep(after=91)
    second = await api.pull_one("read")
    (await api.succeed(first)).problem(409, "STALE_CALLBACK")
    api.clock.advance(1)
    (await api.fail(second, failure_class="NON_RETRYABLE")).ok()
    (await api.post(f"/v1/review/{job_id}~run1:retry", {"reason": "again"})).ok()
    text = (await api.get("/metrics")).body.decode()
    assert [line for line in PEOPLE if line not in text] == []


async def test_server_is_ready_only_while_its_engine_runs(api: Api) -> None:
    assert (await api.get("/healthz", key="")).ok() == {"status": "ok"}
    said = (await api.get("/readyz", key="")).ok()
    assert said["status"] == "ready"
    assert {name: check["ok"] for name, check in said["checks"].items()} == dict.fromkeys(
        ("ledger", "protocols", "engine", "loops", "bus", "config"), True
    )
    await api.runtime.loops.stop()
    answer = await api.get("/readyz", key="")
    problem = answer.problem(503, "NOT_READY")
    assert problem["detail"] == "engine: the engine is not running"
    assert problem["checks"]["engine"] == {"ok": False, "detail": "the engine is not running"}
    assert problem["checks"]["ledger"] == {"ok": True}
    assert answer.headers["retry-after"] == "1"
    assert (await api.get("/healthz", key="")).ok() == {"status": "ok"}


async def test_draining_server_is_not_ready_and_still_serves(api: Api) -> None:
    assert (await api.get("/readyz", key="")).status == 200
    api.runtime.drain.ask()
    problem = (await api.get("/readyz", key="")).problem(503, "NOT_READY")
    assert problem["checks"]["draining"] == {"ok": False, "detail": "this process is stopping"}
    assert (await api.get("/healthz", key="")).status == 200
    assert await api.submit(), "who has not heard of it yet is served all the same"


async def test_server_without_a_runtime_answers_503_except_for_liveness(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.app.app.state, "runtime", None)  # type: ignore[attr-defined]
    for method, path in (("POST", "/v1/commands"), ("GET", "/v1/jobs"), ("GET", "/readyz"), ("GET", "/metrics")):
        answer = await api.call(method, path)
        answer.problem(503, "NOT_READY")
        assert answer.headers["retry-after"] == "1"
    assert (await api.get("/healthz")).status == 200


async def test_openapi_document_and_docs_page_need_no_key(api: Api) -> None:
    document = (await api.get("/openapi.json", key="")).ok()
    assert document["openapi"].startswith("3.1")
    assert b"/openapi.json" in (await api.get("/docs", key="")).body


async def test_protocols_are_listed_and_shown(api: Api) -> None:
    listed = (await api.get("/v1/protocols")).ok()
    names = {protocol["request_type"] for protocol in listed["protocols"]}
    assert names == {"OCR", "EMBEDDING", "SIS", "OCR_EMBEDDING", "OCR_EMBEDDING_SIS", "EMBEDDING_SIS"}
    assert listed["problems"] == []
    shown = (await api.get("/v1/protocols/OCR-%3EEMBEDDING?version=1".replace("%3E", ">"))).ok()
    assert (shown["request_type"], [step["step_id"] for step in shown["steps"]]) == (
        "OCR_EMBEDDING",
        ["ocr", "embedding"],
    )
    assert shown["steps"][0]["payload_schema"]
    (await api.get("/v1/protocols/NOPE")).problem(404, "NOT_FOUND")
    (await api.get("/v1/protocols/OCR?version=9")).problem(404, "NOT_FOUND")
    (await api.get("/v1/protocols/OCR?version=x")).problem(422, "INVALID_QUERY")
