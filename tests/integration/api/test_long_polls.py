"""Limits on requests that wait: `GET /v1/jobs/{jobId}?wait=` and waiting pulls, and how long they wait at most."""

import asyncio
from typing import Any

import pytest

from lucius.api import fast_handlers
from lucius.bootstrap.settings import load_settings
from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Answer, Api
from tests.support.until import until

PULL = "/v1/services/ocr/directives:pull"
WAITING = {"wait_seconds": 60}


async def poll(api: Api, job_id: str, **options: Any) -> asyncio.Task[Answer]:
    """Start a long poll and return once it waits."""
    before = api.app.app.state.long_polls.held  # type: ignore[attr-defined]
    task = asyncio.create_task(api.get(f"/v1/jobs/{job_id}?wait=60", **options))
    await until(lambda: api.app.app.state.long_polls.held > before or task.done())  # type: ignore[attr-defined]
    return task


async def pull(api: Api, **options: Any) -> asyncio.Task[Answer]:
    """Start a pull and return once it waits."""
    before = api.app.app.state.waiting_pulls.held  # type: ignore[attr-defined]
    task = asyncio.create_task(api.post(PULL, WAITING, **options))
    await until(lambda: api.app.app.state.waiting_pulls.held > before or task.done())  # type: ignore[attr-defined]
    return task


async def metric(api: Api, name: str) -> float:
    lines = (await api.get("/metrics")).body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_key_beyond_its_long_polls_gets_429_and_others_still_wait(start: Start) -> None:
    keys = [key_entry(name, "read", tenants=("acme",)) for name in ("greedy", "modest")]
    api = await start({"api_keys": keys}, max_long_polls_per_key=2)
    job_id = await api.submit()
    waiting = [await poll(api, job_id, key="greedy") for _ in range(2)]
    refused = await api.get(f"/v1/jobs/{job_id}?wait=60", key="greedy")
    assert "LUCIUS_MAX_LONG_POLLS_PER_KEY" in refused.problem(429, "LONG_POLL_LIMIT")["detail"]
    assert refused.headers["retry-after"] == "5"
    assert (await api.get(f"/v1/jobs/{job_id}", key="greedy")).ok()["status"] == "DISPATCHING"
    waiting.append(await poll(api, job_id, key="modest"))
    assert await metric(api, "lucius_long_polls") == 3
    await api.finish(job_id)
    assert [(await task).ok()["status"] for task in waiting] == ["SUCCEEDED"] * 3
    assert await metric(api, "lucius_long_polls") == 0


async def test_long_poll_beyond_the_limit_of_a_job_that_has_ended_is_answered(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, max_long_polls_per_key=1)
    live = await api.submit(idempotency_key="live")
    await poll(api, live)
    ended = await api.submit(idempotency_key="ended")
    (await api.post(f"/v1/jobs/{ended}:cancel")).ok(202)
    assert (await api.get(f"/v1/jobs/{ended}?wait=60")).ok()["status"] == "CANCELLED"


async def test_tenant_beyond_its_long_polls_gets_429_and_others_still_wait(start: Start) -> None:
    api = await start(max_long_polls_per_tenant=1)
    acme, globex = [await api.submit(tenant_id=name) for name in ("acme", "globex")]
    await poll(api, acme)
    (await api.get(f"/v1/jobs/{acme}?wait=60")).problem(429, "LONG_POLL_LIMIT")
    assert not (await poll(api, globex)).done()


async def test_client_that_hung_up_no_longer_counts(start: Start) -> None:
    api = await start(max_long_polls_per_key=1)
    job_id = await api.submit()
    gone = asyncio.Event()
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Discard the response: the client is gone."""

    scope = api.scope("GET", f"/v1/jobs/{job_id}?wait=60", None, None, None)
    polling = asyncio.create_task(api.app(scope, receive, send))
    await until(lambda: api.app.app.state.long_polls.held == 1)  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    assert not polling.done()
    gone.set()
    async with asyncio.timeout(5):
        await polling
    assert not (await poll(api, job_id)).done()


async def test_key_beyond_its_waiting_pulls_gets_429_unless_there_is_a_directive(start: Start, ledger_url: str) -> None:
    keys = [key_entry(name, "serve", service="ocr") for name in ("greedy", "modest")]
    api = await start({"api_keys": keys}, ledger_url=ledger_url, max_waiting_pulls_per_key=1)
    first = await pull(api, key="greedy")
    refused = await api.post(PULL, WAITING, key="greedy")
    assert "LUCIUS_MAX_WAITING_PULLS_PER_KEY" in refused.problem(429, "PULL_LIMIT")["detail"]
    assert refused.headers["retry-after"] == "5"
    assert (await api.post(PULL, {}, key="greedy")).ok()["directives"] == []
    second = await pull(api, key="modest")
    assert await metric(api, "lucius_waiting_pulls") == 2
    jobs = {await api.submit(idempotency_key=str(i)) for i in range(3)}
    pulled = [(await task).ok()["directives"] for task in (first, second)]
    pulled.append((await api.post(PULL, {"wait_seconds": 60, "max": 10}, key="greedy")).ok()["directives"])
    assert {one["jobId"] for directives in pulled for one in directives} == jobs
    assert await metric(api, "lucius_waiting_pulls") == 0


async def test_refused_pull_leaves_the_directive_to_the_next_one(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, max_waiting_pulls_per_key=1)
    waiting = await pull(api)
    (await api.post(PULL, WAITING)).problem(429, "PULL_LIMIT")
    job_id = await api.submit()
    (directive,) = (await waiting).ok()["directives"]
    assert (directive["jobId"], directive["attempt_no"]) == (job_id, 1)


async def test_pulls_of_a_tenants_keys_count_towards_its_limit(start: Start) -> None:
    keys = [
        *(key_entry(name, "serve", service="ocr", tenants=("acme",)) for name in ("one", "two")),
        key_entry("shared", "serve", service="ocr", tenants=("acme", "globex")),
        key_entry("all", "serve", service="ocr"),
    ]
    api = await start({"api_keys": keys}, max_waiting_pulls_per_tenant=1)
    await pull(api, key="one")
    (await api.post(PULL, WAITING, key="two")).problem(429, "PULL_LIMIT")
    for key in ("shared", "all", "shared", "all"):
        assert not (await pull(api, key=key)).done(), key


async def test_service_with_500_instances_waits_under_one_key(start: Start) -> None:
    api = await start({"api_keys": [key_entry("all", "serve", service="ocr")]})
    waiting = [asyncio.create_task(api.post(PULL, WAITING, key="all")) for _ in range(500)]
    await until(lambda: api.app.app.state.waiting_pulls.held == 500)  # type: ignore[attr-defined]
    assert not any(task.done() for task in waiting)


def test_limits_follow_the_number_of_connections() -> None:
    found = load_settings({"LUCIUS_MAX_CONNECTIONS": "1000", "LUCIUS_MAX_WAITING_PULLS_PER_TENANT": "7"})
    assert (found.max_long_polls_per_key, found.max_long_polls_per_tenant) == (250, 250)
    assert (found.max_waiting_pulls_per_key, found.max_waiting_pulls_per_tenant) == (500, 7)
    unlimited = load_settings({"LUCIUS_MAX_CONNECTIONS": "0"})
    assert (unlimited.max_long_polls_per_key, unlimited.max_waiting_pulls_per_key) == (1_000, 2_000)


NGINX_READ_TIMEOUT_SECONDS = 60.0
MARGIN_SECONDS = 10.0


def test_longest_wait_leaves_a_margin_below_the_timeout_of_nginx() -> None:
    assert 0 < fast_handlers.MAX_WAIT_SECONDS <= NGINX_READ_TIMEOUT_SECONDS - MARGIN_SECONDS


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_handlers, "MAX_WAIT_SECONDS", 0.1)


@pytest.mark.usefixtures("short_wait")
async def test_longer_wait_for_a_job_is_cut(api: Api) -> None:
    job_id = await api.submit()
    async with asyncio.timeout(1.0):
        assert (await api.get(f"/v1/jobs/{job_id}?wait=600")).ok()["status"] == "DISPATCHING"


@pytest.mark.usefixtures("short_wait")
async def test_longer_wait_of_a_pull_is_cut(api: Api) -> None:
    async with asyncio.timeout(1.0):
        assert await api.pull(wait_seconds=600) == []
