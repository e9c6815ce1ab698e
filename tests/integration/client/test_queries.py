"""Jobs, steps, reviews and protocols: reading, and operations beyond a single job."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lucius.client import AsyncClient
from tests.integration.api.protocols import protocol, task
from tests.integration.client.support import OCR, Server
from tests.support.api import KEY


async def failed_job(lucius: AsyncClient, server: Server) -> str:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    await server.api.fail(await server.api.pull_one(), failure_class="NON_RETRYABLE")
    return job_id


async def test_jobs_are_listed_across_pages_and_filtered(
    lucius: AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.client.paging.PAGE_ITEMS", 2)
    ids = [(await lucius.submit("OCR", **OCR, idempotency_key=str(n))).jobId for n in range(5)]
    other = await lucius.submit("OCR", **{**OCR, "tenant": "other"})
    assert [job.jobId async for job in lucius.jobs(tenant="acme")] == ids[::-1]
    assert [job.jobId async for job in lucius.jobs(limit=3)] == [other.jobId, ids[4], ids[3]]
    assert [job.jobId async for job in lucius.jobs(limit=0)] == []
    assert [job.jobId async for job in lucius.jobs(status="SUCCEEDED")] == []
    assert [job.jobId async for job in lucius.jobs(blocked_on="HANDOVER", request_type="OCR", limit=1)] == [other.jobId]


async def test_jobs_are_found_by_document_target_error_and_end(lucius: AsyncClient, server: Server) -> None:
    job_id = await failed_job(lucius, server)
    named: dict[str, Any] = {"doc_id": "d-1", "correlation_id": "c-1", "target": {"type": "deal", "id": "7"}}
    other = (await lucius.submit("OCR", **{**OCR, **named}, idempotency_key="named")).jobId
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    wanted: list[tuple[dict[str, Any], list[str]]] = [
        ({"doc_id": "d-1"}, [other]),
        ({"correlation_id": "c-1"}, [other]),
        ({"target": "deal/7"}, [other]),
        ({"error_code": "NOPE"}, []),
        ({"completed_after": long_ago}, [job_id]),
        ({"completed_before": long_ago}, []),
    ]
    for where, expected in wanted:
        assert [job.jobId async for job in lucius.jobs(**where)] == expected


async def test_steps_attempts_and_audit_are_available(lucius: AsyncClient, server: Server) -> None:
    job_id = await failed_job(lucius, server)
    (step,) = await lucius.steps(job_id)
    assert [attempt.outcome for attempt in step.attempts] == ["FAILED"]
    assert await lucius.attempts(job_id) == step.attempts
    assert (await lucius.audit(job_id)).valid


async def test_reviews_can_be_listed_previewed_and_acted_on(lucius: AsyncClient, server: Server) -> None:
    job_id = await failed_job(lucius, server)
    (item,) = [item async for item in lucius.reviews.list(job_id=job_id)]
    assert (await lucius.reviews.groups()).groups[0].count == 1
    assert (await lucius.reviews.get(item.review_id)).job_status == "FAILED_FINAL"
    would = await lucius.reviews.act(item.review_id, "retry", reason="r", dry_run=True)
    assert (would.outcome, would.re_executes) == ("WOULD", ["ocr"])
    assert (await lucius.get(job_id)).run_no == 1
    done = await lucius.reviews.act(item.review_id, "skip", reason="known", result={"pages": 0})
    assert (done.outcome, done.job_status) == ("APPLIED", "SUCCEEDED")
    assert [item.status async for item in lucius.reviews.list(status="ANY")] == ["REPROCESSED"]


async def test_protocol_lifecycle_works_through_the_client(lucius: AsyncClient) -> None:
    document = protocol("MINE", task("scan"))
    assert (await lucius.protocols.validate(document)).valid
    draft = await lucius.protocols.draft(document)
    assert draft.status == "DRAFT"
    assert (await lucius.protocols.publish("MINE", 1, digest=draft.digest)).status == "PUBLISHED"
    assert "MINE" in [found.request_type for found in (await lucius.protocols.list()).protocols]
    await lucius.protocols.draft({**document, "version": 2, "title": "Better"})
    assert (await lucius.protocols.diff("MINE", 1, 2)).changes
    assert [found.version for found in (await lucius.protocols.versions("MINE")).versions] == [1, 2]
    assert (await lucius.protocols.delete("MINE", 2)).version == 2
    assert (await lucius.protocols.get("MINE", version=1)).steps[0]["step_id"] == "scan"
    assert (await lucius.protocols.deprecate("MINE", 1, reason="old")).status == "DEPRECATED"


async def test_request_reaches_other_routes(lucius: AsyncClient) -> None:
    assert b"openapi" in await lucius.request("GET", "/openapi.json")
    answer = await lucius.request("POST", "/v1/admin/outbox/retry", body={"reason": "why not"})
    assert answer == b'{"retried":0,"pending":0}'


async def test_closed_client_raises(server: Server) -> None:
    lucius = AsyncClient(server.url, api_key=KEY)
    await lucius.get((await lucius.submit("OCR", **OCR)).jobId)
    await lucius.close()
    with pytest.raises(RuntimeError, match="this client is closed"):
        await lucius.get("x")
