"""Reading jobs: single, listed and paged, and never another tenant's."""

import asyncio
from typing import Any

import pytest

from lucius.adapters.ledger.postgres.store import PostgresStore
from lucius.core.model.decision import Defaults, JobSnapshot
from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Api
from tests.support.until import until

JOB_FIELDS = set(
    "jobId tenant_id request_type protocol_id protocol_version status run_no current_step_id mode blocked_on "  # noqa: SIM905
    "created_at updated_at completed_at error correlation_id".split()
)
STEP_FIELDS = set(
    "stepId index kind step_type service status attempt_no lease_id lane routing_key_used resolved_mode "  # noqa: SIM905
    "decision_source decision_reason workspace_ref result artifact_refs last_error".split()
)
THREE = {"request_type": "OCR_EMBEDDING_SIS", "payload": {"sis": {"prompt_set": ["?"]}}}


async def test_job_shows_all_fields_of_the_contract(api: Api) -> None:
    job = await api.job(await api.submit(**THREE))
    assert job.keys() >= JOB_FIELDS
    assert [step["stepId"] for step in job["steps"]] == ["ocr", "embedding", "sis"]
    for index, step in enumerate(job["steps"]):
        assert step.keys() >= STEP_FIELDS
        assert (step["index"], step["kind"], step["service"]) == (index, "task", step["stepId"])
    assert [step["status"] for step in job["steps"]] == ["DISPATCHING", "PENDING", "PENDING"]
    assert job["current_step_id"] == "ocr"
    assert job["correlation_id"] == job["jobId"]
    assert job["workspace_ref"].endswith(f"/lucius/acme/{job['jobId']}")
    assert job["created_at"] == "2027-01-15T08:00:00.000Z"


async def test_blocked_on_explains_every_stage(api: Api) -> None:
    job_id = await api.submit()

    async def blocked() -> tuple[str, str | None]:
        why = (await api.job(job_id))["blocked_on"]
        assert why["message"]
        assert why["since"]
        return why["reason"], why["until"]

    assert await blocked() == ("HANDOVER", None)
    directive = await api.pull_one()
    assert await blocked() == ("ACK", directive["ack_deadline"])
    lease = (await api.callback("ack", directive)).ok()["lease_expires_at"]
    assert await blocked() == ("RESULT", lease)
    (await api.fail(directive, retry_after_seconds=60)).ok()
    reason, until = await blocked()
    assert (reason, until) == ("RETRY", (await api.step(job_id))["retry_at"])
    await api.sweep(after=400)
    await api.finish(job_id)
    assert (await api.job(job_id))["blocked_on"] is None


async def test_steps_and_attempts_show_every_attempt(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, defaults=Defaults(backoff_scale=0))
    job_id = await api.submit()
    (await api.fail(await api.pull_one())).ok()
    await api.sweep()
    second = await api.pull_one()
    (await api.callback("ack", second)).ok()
    (await api.succeed(second, result={"pages": 2}, artifact_refs=["file:///a"])).ok()
    (step,) = (await api.get(f"/v1/jobs/{job_id}/steps")).ok()["steps"]
    assert (step["status"], step["result"], step["artifact_refs"]) == ("SUCCEEDED", {"pages": 2}, ["file:///a"])
    assert [(a["attempt_no"], a["outcome"]) for a in step["attempts"]] == [(1, "FAILED"), (2, "SUCCEEDED")]
    assert step["attempts"][0]["error"] == {"code": "BROKEN", "message": "it broke"}
    assert step["attempts"][0]["lease_id"] != step["attempts"][1]["lease_id"]
    assert (await api.get(f"/v1/jobs/{job_id}/attempts")).ok()["attempts"] == step["attempts"]
    assert (await api.job(job_id))["attempts_total"] == 2


async def test_events_are_ordered_and_paged(api: Api) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    walked: list[Any] = []
    cursor: int | None = 0
    while cursor is not None:
        page = (await api.get(f"/v1/jobs/{job_id}/events?limit=2&cursor={cursor}")).ok()
        assert len(page["events"]) <= 2
        walked += page["events"]
        cursor = page["next_cursor"]
    assert [event["seq"] for event in walked] == list(range(1, len(walked) + 1))
    assert [event["type"] for event in walked] == await api.event_types(job_id)
    assert walked[0]["type"] == "JOB_ACCEPTED"
    assert walked[-1]["type"] == "JOB_SUCCEEDED"
    assert walked[0]["data"]["by"] == "dev"


@pytest.fixture
async def shop(api: Api) -> tuple[Api, dict[str, str]]:
    """Create jobs of two tenants, in several states, a second apart."""
    jobs = {}
    wanted: dict[str, dict[str, Any]] = {
        "done": {"doc_id": "d-1", "correlation_id": "c-1"},
        "three": {**THREE, "tenant_id": "globex", "correlation_id": "c-1", "target": {"type": "deal", "id": "7"}},
        "gone": {"tenant_id": "globex"},
        "waits": {"request_type": "EMBEDDING"},
    }
    for name, changes in wanted.items():
        jobs[name] = await api.submit(idempotency_key=name, **changes)
        api.clock.advance(1)
    for directive in await api.pull("ocr", max=10):
        if directive["jobId"] == jobs["done"]:
            (await api.succeed(directive)).ok()
        if directive["jobId"] == jobs["gone"]:
            (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
    return api, jobs


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["waits", "gone", "three", "done"]),
        ("tenant_id=globex", ["gone", "three"]),
        ("tenant_id=%20GLOBEX", ["gone", "three"]),
        ("status=SUCCEEDED", ["done"]),
        ("status=FAILED_FINAL&tenant_id=globex", ["gone"]),
        ("request_type=OCR", ["gone", "done"]),
        ("request_type=OCR_EMBEDDING_SIS", ["three"]),
        ("request_type=NOPE", []),
        ("blocked_on=HANDOVER", ["waits"]),
        ("blocked_on=ACK", ["three"]),
        ("blocked_on=ACK&tenant_id=acme", []),
        ("created_after=2027-01-15T08:00:01Z", ["waits", "gone"]),
        ("created_after=2027-01-15T09:00:02%2B01:00", ["waits"]),
        ("created_after=2027-01-15T09:00:02+01:00", ["waits"]),
        ("created_after=2027-01-15T08:00:00.999Z&tenant_id=globex&status=IN_PROGRESS&blocked_on=ACK", ["three"]),
        ("created_after=9999-12-31T23:59:59Z", []),
        ("created_after=0001-01-01T00:00:00Z&limit=1", ["waits"]),
        ("doc_id=d-1", ["done"]),
        ("doc_id=d-1&tenant_id=globex", []),
        ("correlation_id=c-1", ["three", "done"]),
        ("correlation_id=c-1&status=SUCCEEDED", ["done"]),
        ("target=deal/7", ["three"]),
        ("target=deal/8", []),
        ("error_code=BROKEN", ["gone"]),
        ("completed_after=2027-01-15T08:00:03Z", ["gone", "done"]),
        ("completed_after=2027-01-15T08:00:03Z&tenant_id=acme", ["done"]),
        ("completed_before=2027-01-15T08:00:04Z", []),
    ],
)
async def test_list_is_newest_first_and_supports_every_filter(
    shop: tuple[Api, dict[str, str]], query: str, names: list[str]
) -> None:
    api, jobs = shop
    assert await api.jobs(query) == [jobs[name] for name in names]


async def test_cursor_walks_a_list_while_jobs_are_added(shop: tuple[Api, dict[str, str]]) -> None:
    api, jobs = shop
    walked: list[str] = []
    cursor = ""
    for added in range(10):
        page = (await api.get(f"/v1/jobs?limit=1{cursor}")).ok()
        walked += [job["jobId"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
        await api.submit(idempotency_key=f"late {added}")
    assert walked == [jobs[name] for name in ("waits", "gone", "three", "done")]


async def test_cursor_keeps_its_filter(shop: tuple[Api, dict[str, str]]) -> None:
    api, jobs = shop
    page = (await api.get("/v1/jobs?tenant_id=globex&limit=1")).ok()
    assert await api.jobs(f"tenant_id=globex&limit=1&cursor={page['next_cursor']}") == [jobs["three"]]


async def test_list_entry_is_the_job_without_its_steps(shop: tuple[Api, dict[str, str]]) -> None:
    api, jobs = shop
    listed = {job["jobId"]: job for job in (await api.get("/v1/jobs")).ok()["jobs"]}
    whole = await api.job(jobs["three"])
    assert listed[jobs["three"]].keys() == JOB_FIELDS
    assert listed[jobs["three"]] == {name: whole[name] for name in JOB_FIELDS}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("status=DONE", "INVALID_QUERY"),
        ("blocked_on=NOTHING", "INVALID_QUERY"),
        ("limit=0", "INVALID_QUERY"),
        ("limit=201", "INVALID_QUERY"),
        ("limit=many", "INVALID_QUERY"),
        ("created_after=yesterday", "INVALID_QUERY"),
        ("completed_after=yesterday", "INVALID_QUERY"),
        ("completed_before=1", "INVALID_QUERY"),
        ("target=deal", "INVALID_QUERY"),
        ("target=/x", "INVALID_QUERY"),
        ("doc_id=", "INVALID_QUERY"),
        ("doc_id=d%00", "INVALID_QUERY"),
        ("id_prefix=abcdefgh&doc_id=d-1", "INVALID_QUERY"),
        ("created_after=2027-01-15T08:00:01", "INVALID_QUERY"),
        ("cursor=bm9wZQ", "INVALID_CURSOR"),
        ("cursor=%00", "INVALID_CURSOR"),
        ("tenant_id=a%2Fb", "INVALID_TENANT"),
    ],
)
async def test_invalid_query_is_refused_naming_the_parameter(api: Api, query: str, code: str) -> None:
    problem = (await api.get(f"/v1/jobs?{query}")).problem(422, code)
    assert query.partition("=")[0] in problem["detail"]


async def test_invalid_time_or_target_is_explained(api: Api) -> None:
    problem = (await api.get("/v1/jobs?completed_after=yesterday")).problem(422, "INVALID_QUERY")
    expected = "completed_after: 'yesterday' is not an RFC 3339 time such as 2026-01-31T12:00:00Z"
    assert problem["detail"] == expected
    problem = (await api.get("/v1/jobs?target=x")).problem(422, "INVALID_QUERY")
    assert problem["detail"] == "target: must be the type and the id with a slash between them"


async def test_key_sees_only_jobs_of_its_tenants(start: Start, ledger_url: str) -> None:
    keys = [key_entry("acmes", "read", "operate", "submit", tenants=("acme",))]
    api = await start({"api_keys": keys}, ledger_url=ledger_url)
    ours, theirs = await api.submit(), await api.submit(tenant_id="globex")
    api.key = "acmes"
    assert await api.jobs() == [ours]
    (await api.get("/v1/jobs?tenant_id=globex")).problem(403, "FORBIDDEN_TENANT")
    for path in ("", "/steps", "/attempts", "/events"):
        missing = (await api.get(f"/v1/jobs/{theirs}{path}")).problem(404, "JOB_NOT_FOUND")
        never = (await api.get(f"/v1/jobs/never{path}")).problem(404, "JOB_NOT_FOUND")
        assert missing["detail"].replace(theirs, "never") == never["detail"]
    (await api.get(f"/v1/jobs/{theirs}/events", headers={"accept": "text/event-stream"})).problem(404, "JOB_NOT_FOUND")
    (await api.post(f"/v1/jobs/{theirs}:cancel")).problem(404, "JOB_NOT_FOUND")
    assert (await api.post("/v1/commands", api.command(tenant_id="globex"))).problem(403, "FORBIDDEN_TENANT")


async def test_wait_answers_as_soon_as_the_job_has_ended(api: Api) -> None:
    job_id = await api.submit()
    waiting = asyncio.create_task(api.get(f"/v1/jobs/{job_id}?wait=60"))
    await asyncio.sleep(0)
    await api.finish(job_id)
    assert (await waiting).ok()["status"] == "SUCCEEDED"
    assert (await api.get(f"/v1/jobs/{job_id}?wait=60")).ok()["status"] == "SUCCEEDED"


async def test_wait_answers_like_a_read_and_needs_none_on_postgres(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    store, looks = api.runtime.store, list[str]()
    read = store.jobs.job

    async def look(job_id: str) -> JobSnapshot | None:
        looks.append(job_id)
        return await read(job_id)

    job_id = await api.submit()
    directive = await api.pull_one()
    waiting = asyncio.create_task(api.get(f"/v1/jobs/{job_id}?wait=60"))
    await until(lambda: job_id in api.runtime.notifier.awaited_jobs)  # its next state is then known without a read
    monkeypatch.setattr(store.jobs, "job", look)
    (await api.succeed(directive)).ok()
    answer = (await waiting).ok()
    assert len(looks) == (0 if isinstance(store, PostgresStore) else 1)
    assert answer == await api.job(job_id)


async def test_wait_answers_the_current_job_when_the_time_is_over(api: Api) -> None:
    job_id = await api.submit()
    assert (await api.get(f"/v1/jobs/{job_id}?wait=0.01")).ok()["status"] == "DISPATCHING"


@pytest.mark.parametrize("wait", ["-1", "nan", "soon", ""])
async def test_invalid_wait_is_refused(api: Api, wait: str) -> None:
    (await api.get(f"/v1/jobs/{await api.submit()}?wait={wait}")).problem(422, "INVALID_QUERY")


async def test_jobs_are_listed_by_a_prefix_of_their_ids(api: Api) -> None:
    job_id = await api.submit()
    found = (await api.get(f"/v1/jobs?id_prefix={job_id[:20]}&tenant_id=acme")).ok(200)["jobs"]
    assert [job["jobId"] for job in found] == [job_id]
    assert (await api.get("/v1/jobs?id_prefix=ffffffff")).ok(200)["jobs"] == []
    assert (await api.get(f"/v1/jobs?id_prefix={job_id[:20]}&tenant_id=globex")).ok(200)["jobs"] == []
    (await api.get(f"/v1/jobs?id_prefix={job_id[:7]}")).problem(422, "INVALID_QUERY")
    (await api.get(f"/v1/jobs?id_prefix={job_id[:20]}&status=QUEUED")).problem(422, "INVALID_QUERY")
    (await api.get("/v1/jobs?id_prefix=%00%00%00%00%00%00%00%00")).problem(422, "INVALID_QUERY")
