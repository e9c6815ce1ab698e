"""The pull bus: directives as the contract has them, lanes, long polls, keys of services, and the dispatch window."""

import asyncio
from typing import Any

import pytest

from lucius.service import dispatch
from tests.support.api import WITHIN, Api
from tests.unit.api.conftest import Start, key_entry

FIELDS = set(
    "message_id jobId stepId tenant_id protocol_id protocol_version request_type step_type kind service "  # noqa: SIM905
    "attempt_no lease_id lease_seconds ack_deadline idempotency_key lane mode routing_key_used input_ref workspace_ref "
    "output_ref payload callback_urls callback_token correlation_id last_step inputs".split()
)


async def test_a_directive_has_all_that_the_contract_names(api: Api) -> None:
    job_id = await api.submit(payload={"ocr": {"language": "de"}}, doc_id="d", correlation_id="c")
    directive = await api.pull_one()
    assert directive.keys() >= FIELDS
    step = await api.step(job_id)
    assert directive["message_id"] == f"{job_id}/ocr/1"
    assert directive["payload"]["language"] == "de"
    assert directive["ack_deadline"] == step["ack_deadline"] == "2027-01-15T08:00:30.000Z"
    assert (directive["lease_seconds"], directive["doc_id"], directive["correlation_id"]) == (900, "d", "c")
    assert directive["idempotency_key"] == step["idempotency_key"]
    assert directive["callback_urls"]["result"] == "http://127.0.0.1:8080/v1/callbacks/result"
    assert (await api.job(job_id))["status"] == "IN_PROGRESS"
    assert await api.pull() == []


async def test_a_pull_takes_the_oldest_up_to_its_max(api: Api) -> None:
    jobs = [await api.submit(idempotency_key=str(i)) for i in range(5)]
    assert [d["jobId"] for d in await api.pull(max=2)] == jobs[:2]
    assert [d["jobId"] for d in await api.pull(max=500)] == jobs[2:]


async def test_a_pull_takes_its_lanes_and_its_service_only(api: Api) -> None:
    lanes = {}
    for i in range(20):
        job_id = await api.submit(mode="BURST", doc_id=f"d{i}", idempotency_key=str(i))
        lanes[job_id] = (await api.step(job_id))["lane"]
    wanted = sorted(set(lanes.values()))[:2]
    pulled = await api.pull(max=100, lanes=wanted)
    assert {d["jobId"] for d in pulled} == {job for job, lane in lanes.items() if lane in wanted}
    assert await api.pull("embedding", max=100) == []
    assert len(await api.pull(max=100)) == 20 - len(pulled)


async def test_a_pull_waits_for_the_first_directive(api: Api) -> None:
    waiting = asyncio.create_task(api.pull(wait_seconds=60))
    await asyncio.sleep(0)
    job_id = await api.submit()
    assert [d["jobId"] for d in await waiting] == [job_id]


async def test_a_pull_waits_for_what_could_not_be_handed_over_a_while_ago(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "ASIDE_SECONDS", 0.3)
    job_id = await api.submit()

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as broken:
        broken.setattr(api.runtime.store, "load", fail)
        (await api.post("/v1/services/ocr/directives:pull", {})).problem(500, "INTERNAL")
    (directive,) = await api.pull(wait_seconds=WITHIN)
    assert directive["jobId"] == job_id


async def test_a_pull_with_nothing_to_do_answers_when_its_time_is_over(api: Api) -> None:
    assert await api.pull(wait_seconds=0.01) == []


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"max": 0}, "/max"),
        ({"max": 501}, "/max"),
        ({"wait_seconds": -1}, "/wait_seconds"),
        ({"lanes": []}, "/lanes"),
        ({"lanes": [16]}, "/lanes/0"),
        ({"topic": "x"}, "/topic"),
    ],
)
async def test_a_wrong_pull_is_refused_and_takes_nothing(api: Api, asked: dict[str, Any], pointer: str) -> None:
    await api.submit()
    answer = await api.post("/v1/services/ocr/directives:pull", asked)
    assert answer.problem(422, "INVALID_ENVELOPE")["errors"][0]["pointer"] == pointer
    assert len(await api.pull()) == 1


async def test_an_empty_body_pulls_one(api: Api) -> None:
    await api.submit()
    assert len((await api.post("/v1/services/ocr/directives:pull")).ok()["directives"]) == 1


async def test_a_key_serves_its_service_and_every_tenant(start: Start) -> None:
    keys = [key_entry("ocrs", "serve", service="ocr"), key_entry("reads", "read", tenants=("*",))]
    api = await start({"api_keys": keys})
    await api.submit()
    (await api.post("/v1/services/sis/directives:pull", key="ocrs")).problem(403, "FORBIDDEN_SCOPE")
    (await api.post("/v1/services/ocr/directives:pull", key="reads")).problem(403, "FORBIDDEN_SCOPE")
    assert len((await api.post("/v1/services/ocr/directives:pull", key="ocrs")).ok()["directives"]) == 1


async def test_a_service_gets_no_more_than_it_has_picked_up(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, max_unacked=2)
    jobs = [await api.submit(idempotency_key=str(i)) for i in range(4)]
    other = await api.submit(request_type="EMBEDDING")
    first, second = await api.pull(max=10)
    assert await api.pull(max=10) == []
    for job_id in jobs[2:]:
        why = (await api.job(job_id))["blocked_on"]
        assert (why["reason"], why["until"]) == ("DISPATCH_WINDOW", None)
        assert "unacknowledged" in why["message"]
    assert await api.jobs("blocked_on=DISPATCH_WINDOW") == jobs[:1:-1]
    assert (await api.job(other))["blocked_on"]["reason"] == "HANDOVER"
    assert await api.jobs("blocked_on=HANDOVER") == [other]
    waiting = asyncio.create_task(api.pull(max=10, wait_seconds=60))
    await asyncio.sleep(0)
    (await api.callback("ack", second)).ok()
    assert [d["jobId"] for d in await waiting] == jobs[2:3]
    (await api.succeed(first)).ok()
    assert [d["jobId"] for d in await api.pull(max=10)] == jobs[3:]
    assert await api.jobs("blocked_on=DISPATCH_WINDOW") == []


async def test_a_puller_that_hung_up_gets_nothing(api: Api) -> None:
    """A directive handed to nobody would cost an attempt and the ACK timeout."""
    asked = b'{"wait_seconds": 60}'
    scope = api._scope("POST", "/v1/services/ocr/directives:pull", None, None, len(asked))
    gone = asyncio.Event()
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": asked}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody listens."""

    pulling = asyncio.create_task(api.app(scope, receive, send))
    await asyncio.sleep(0)
    gone.set()
    async with asyncio.timeout(5):
        await pulling
    job_id = await api.submit()
    assert (await api.step(job_id))["status"] == "DISPATCHING"
    assert (await api.pull_one())["attempt_no"] == 1
