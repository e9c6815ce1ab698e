"""Modes, routing that is pinned at ingress, and the limits for new jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from lucius.core.model.decision import Defaults
from tests.integration.api.conftest import Start
from tests.support.api import Api
from tests.support.until import until

PINNED = ("resolved_mode", "lane", "routing_key_used", "decision_source", "decision_reason")
TENANTS = {
    "acme": {"mode": "BURST", "allow_burst": True},
    "globex": {"allow_burst": True},
    "initech": {},
}


async def pinned(api: Api, **changes: Any) -> dict[str, Any]:
    step = await api.step(await api.submit(**changes))
    return {name: step[name] for name in PINNED}


@pytest.mark.parametrize(
    ("asked", "mode", "source"),
    [
        ({"tenant_id": "acme", "doc_id": "d"}, "BURST", "TENANT_CONFIG"),
        ({"tenant_id": "acme", "doc_id": "d", "mode": "DEFAULT"}, "DEFAULT", "REQUEST"),
        ({"tenant_id": "globex", "mode": "SAFE"}, "DEFAULT", "REQUEST"),
        ({"tenant_id": "globex", "mode": "BURST", "doc_id": "d"}, "BURST", "REQUEST"),
        ({"tenant_id": "globex"}, "DEFAULT", "GLOBAL_CONFIG"),
    ],
)
async def test_mode_of_the_request_precedes_tenant_and_default(
    start: Start, asked: dict[str, Any], mode: str, source: str
) -> None:
    api = await start({"tenants": TENANTS})
    got = await pinned(api, **asked)
    assert (got["resolved_mode"], got["decision_source"]) == (mode, source)
    assert got["decision_reason"]
    assert got["routing_key_used"] == (asked["tenant_id"] + "d" if mode == "BURST" else asked["tenant_id"])


async def test_burst_needs_the_tenants_permission_if_a_file_lists_tenants(start: Start) -> None:
    api = await start({"tenants": TENANTS})
    for tenant in ("initech", "unheard-of"):
        body = api.command(tenant_id=tenant, mode="BURST", doc_id="d")
        (await api.post("/v1/commands", body)).problem(403, "MODE_NOT_PERMITTED")
    assert await api.jobs() == []


async def test_burst_needs_a_document_even_if_the_tenant_config_chose_it(start: Start) -> None:
    api = await start({"tenants": TENANTS})
    (await api.post("/v1/commands", api.command())).problem(422, "DOC_ID_REQUIRED")
    (await api.post("/v1/commands", api.command(doc_id="  "))).problem(422, "DOC_ID_REQUIRED")


async def test_routing_follows_the_published_vectors(api: Api) -> None:
    cases = json.loads((Path(__file__).parents[2] / "data" / "routing.json").read_text())
    assert len(cases) > 10
    for number, case in enumerate(cases):
        got = await pinned(
            api,
            tenant_id=case["tenant_id"],
            doc_id=case.get("doc_id"),
            mode=case["mode"],
            idempotency_key=f"k{number}",
        )
        assert (got["lane"], got["routing_key_used"]) == (case["lane"], case["routing_key_used"])


async def test_routing_is_pinned_on_every_attempt(start: Start, tmp_path: Path) -> None:
    api = await start({"tenants": {"acme": {"mode": "BURST", "allow_burst": True}}}, defaults=Defaults(backoff_scale=0))
    job_id = await api.submit(doc_id="d")
    before = await api.step(job_id)
    config = api.runtime.config.current()
    (tmp_path / "lucius.yaml").write_text("tenants: {acme: {mode: SAFE}}\n")
    await until(lambda: api.runtime.config.current() is not config)
    (await api.fail(await api.pull_one())).ok()
    await api.sweep()
    directive = await api.pull_one()
    assert directive["attempt_no"] == 2
    attempts = (await api.get(f"/v1/jobs/{job_id}/attempts")).ok()["attempts"]
    for attempt in attempts:
        assert {name: attempt[name] for name in PINNED} == {name: before[name] for name in PINNED}
    assert (directive["mode"], directive["lane"]) == ("BURST", before["lane"])


LIMITS: list[Any] = [
    pytest.param({"tenants": {"acme": {"max_inflight": 1}}}, 429, "TENANT_LIMIT", id="limit of the tenant"),
    pytest.param({"limits": {"tenant_max_inflight": 1}}, 429, "TENANT_LIMIT", id="limit of every tenant"),
    pytest.param({"limits": {"modes": {"DEFAULT": 1}}}, 429, "MODE_LIMIT", id="limit of the mode"),
    pytest.param({"limits": {"protocols": {"ocr": 1}}}, 429, "PROTOCOL_LIMIT", id="limit of the protocol"),
    pytest.param({"limits": {"max_inflight": 1}}, 503, "GLOBAL_LIMIT", id="limit of the deployment"),
]


@pytest.mark.parametrize(("config", "status", "code"), LIMITS)
async def test_limit_refuses_new_jobs_until_one_ends(
    start: Start, ledger_url: str, config: dict[str, Any], status: int, code: str
) -> None:
    api = await start(config, ledger_url=ledger_url)
    job_id = await api.submit(idempotency_key="1")
    answer = await api.post("/v1/commands", api.command(idempotency_key="2"))
    problem = answer.problem(status, code)
    assert int(answer.headers["retry-after"]) == problem["retry_after_seconds"] >= 1
    assert await api.jobs() == [job_id]
    await api.finish(job_id)
    assert await api.submit(idempotency_key="2") != job_id


async def test_limits_of_the_environment_apply_if_the_file_has_none(start: Start) -> None:
    api = await start(tenant_inflight=1, global_inflight=2)
    await api.submit(idempotency_key="1")
    (await api.post("/v1/commands", api.command(idempotency_key="2"))).problem(429, "TENANT_LIMIT")
    await api.submit(tenant_id="globex")
    (await api.post("/v1/commands", api.command(tenant_id="initech"))).problem(503, "GLOBAL_LIMIT")


@pytest.mark.parametrize("end", ["cancel", "fail"])
async def test_cancelled_or_failed_job_makes_room(start: Start, ledger_url: str, end: str) -> None:
    api = await start(ledger_url=ledger_url, tenant_inflight=1)
    job_id = await api.submit(idempotency_key="1")
    if end == "cancel":
        (await api.post(f"/v1/jobs/{job_id}:cancel")).ok(202)
    else:
        (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    await api.submit(idempotency_key="2")
    assert (await api.runtime.store.jobs.counters("jobs"))["jobs"] == 1
