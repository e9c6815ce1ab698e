"""The pull bus: directives as in the contract, lanes, long polls, keys of services, and the dispatch window."""

import asyncio
from typing import Any

import pytest

from lucius.usecases.handover import row_holds
from tests.integration.api.conftest import Start, key_entry
from tests.support.api import WITHIN, Api
from tests.support.until import until

FIELDS = set(
    "message_id jobId stepId tenant_id protocol_id protocol_version request_type step_type kind service "  # noqa: SIM905
    "attempt_no lease_id lease_seconds ack_deadline idempotency_key lane mode routing_key_used input_ref workspace_ref "
    "output_ref payload callback_urls callback_token correlation_id last_step inputs".split()
)


async def test_directive_has_all_fields_of_the_contract(api: Api) -> None:
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


async def test_pull_takes_the_oldest_up_to_its_max(api: Api) -> None:
    jobs = [await api.submit(idempotency_key=str(i)) for i in range(5)]
    assert [d["jobId"] for d in await api.pull(max=2)] == jobs[:2]
    assert [d["jobId"] for d in await api.pull(max=500)] == jobs[2:]


async def test_pull_takes_only_its_lanes_and_its_service(api: Api) -> None:
    lanes = {}
    for i in range(20):
        job_id = await api.submit(mode="BURST", doc_id=f"d{i}", idempotency_key=str(i))
        lanes[job_id] = (await api.step(job_id))["lane"]
    wanted = sorted(set(lanes.values()))[:2]
    pulled = await api.pull(max=100, lanes=wanted)
    assert {d["jobId"] for d in pulled} == {job for job, lane in lanes.items() if lane in wanted}
    assert await api.pull("embedding", max=100) == []
    assert len(await api.pull(max=100)) == 20 - len(pulled)


async def test_pull_waits_for_the_first_directive(api: Api) -> None:
    waiting = asyncio.create_task(api.pull(wait_seconds=60))
    await asyncio.sleep(0)
    job_id = await api.submit()
    assert [d["jobId"] for d in await waiting] == [job_id]


async def test_pull_waits_for_a_directive_whose_hand_over_failed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_holds, "SET_ASIDE_SECONDS", 0.3)
    job_id = await api.submit()

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as broken:
        broken.setattr(api.runtime.store.ledger, "load", fail)
        (await api.post("/v1/services/ocr/directives:pull", {})).problem(500, "INTERNAL")
    (directive,) = await api.pull(wait_seconds=WITHIN)
    assert directive["jobId"] == job_id


async def test_pull_without_directives_answers_when_its_time_is_over(api: Api) -> None:
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
async def test_invalid_pull_is_refused_and_takes_nothing(api: Api, asked: dict[str, Any], pointer: str) -> None:
    await api.submit()
    answer = await api.post("/v1/services/ocr/directives:pull", asked)
    assert answer.problem(422, "INVALID_ENVELOPE")["errors"][0]["pointer"] == pointer
    assert len(await api.pull()) == 1


async def test_pull_with_an_empty_body_takes_one(api: Api) -> None:
    await api.submit()
    assert len((await api.post("/v1/services/ocr/directives:pull")).ok()["directives"]) == 1


async def test_serve_key_pulls_for_its_own_service_only(start: Start) -> None:
    keys = [key_entry("ocrs", "serve", service="ocr"), key_entry("reads", "read", tenants=("*",))]
    api = await start({"api_keys": keys})
    await api.submit()
    (await api.post("/v1/services/sis/directives:pull", key="ocrs")).problem(403, "FORBIDDEN_SCOPE")
    (await api.post("/v1/services/ocr/directives:pull", key="reads")).problem(403, "FORBIDDEN_SCOPE")
    assert len((await api.post("/v1/services/ocr/directives:pull", key="ocrs")).ok()["directives"]) == 1


async def test_serve_key_with_tenants_pulls_no_directives_of_other_tenants(start: Start, ledger_url: str) -> None:
    keys = [key_entry("acmes", "serve", service="ocr", tenants=("acme",)), key_entry("all", "serve", service="ocr")]
    api = await start({"api_keys": keys}, ledger_url=ledger_url)
    path, pull = "/v1/services/ocr/directives:pull", {"max": 10, "wait_seconds": 0}

    async def pulled(key: str) -> list[str]:
        return [one["jobId"] for one in (await api.post(path, pull, key=key)).ok()["directives"]]

    globex = [await api.submit(tenant_id="globex", idempotency_key=str(i)) for i in range(3)]
    assert await pulled("acmes") == []
    acme = await api.submit()
    assert await pulled("acmes") == [acme]
    waiting = asyncio.create_task(api.post(path, {"max": 10, "wait_seconds": 60}, key="acmes"))
    await until(lambda: bool(api.runtime.notifier.pulls.waiting("ocr")))
    globex.append(await api.submit(tenant_id="globex", idempotency_key="while it waits"))
    acme = await api.submit(idempotency_key="while it waits")
    assert [one["jobId"] for one in (await waiting).ok()["directives"]] == [acme]
    assert sorted(await pulled("all")) == sorted(globex)


async def test_unacknowledged_directives_of_a_service_are_limited(start: Start, ledger_url: str) -> None:
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


PULL = "/v1/services/ocr/directives:pull"
BOUND = [key_entry("acmes", "serve", service="ocr", tenants=("acme",)), key_entry("all", "serve", service="ocr")]


async def pull_as(api: Api, key: str, wait_seconds: float = 0) -> list[dict[str, Any]]:
    answer = await api.post(PULL, {"max": 10, "wait_seconds": wait_seconds}, key=key)
    directives: list[dict[str, Any]] = answer.ok()["directives"]
    return directives


async def submit_three(api: Api, tenant_id: str) -> list[str]:
    return [await api.submit(tenant_id=tenant_id, idempotency_key=str(i)) for i in range(3)]


async def test_tenants_own_service_that_never_acknowledges_takes_no_room_of_the_shared_one(
    start: Start, ledger_url: str
) -> None:
    api = await start({"api_keys": BOUND}, ledger_url=ledger_url, max_unacked=2)
    acme = await submit_three(api, "acme")
    own = await pull_as(api, "acmes")
    assert [one["jobId"] for one in own] == acme[:2]
    assert await pull_as(api, "acmes") == []
    globex = await submit_three(api, "globex")
    shared = await pull_as(api, "all")
    assert len(shared) == 2
    assert await pull_as(api, "all") == []
    assert b'lucius_unacked{service="ocr"} 4.0' in (await api.get("/metrics")).body
    assert (await api.get("/v1/services/ocr/backlog")).ok()["unacked"] == 4
    (service,) = (await api.get("/v1/services")).ok()["services"]
    assert service["unacked"] == 4
    for directive in shared:
        (await api.callback("ack", directive)).ok()
    shared += await pull_as(api, "all")
    assert sorted(one["jobId"] for one in shared) == sorted([acme[2], *globex])
    later = await api.submit(idempotency_key="later")
    assert await pull_as(api, "acmes") == []
    (await api.callback("ack", own[0])).ok()
    assert [one["jobId"] for one in await pull_as(api, "acmes")] == [later]


async def test_shared_service_that_never_acknowledges_takes_no_room_of_a_tenants_own(
    start: Start, ledger_url: str
) -> None:
    api = await start({"api_keys": BOUND}, ledger_url=ledger_url, max_unacked=2)
    await submit_three(api, "globex")
    assert len(await pull_as(api, "all")) == 2
    waiting = asyncio.create_task(pull_as(api, "all", 60))
    await until(lambda: bool(api.runtime.notifier.pulls.waiting("ocr")))
    own = asyncio.create_task(pull_as(api, "acmes", 60))
    await until(lambda: len(api.runtime.notifier.pulls.waiting("ocr")) == 2)
    job_id = await api.submit(idempotency_key="later")
    assert [one["jobId"] for one in await own] == [job_id]
    waiting.cancel()


async def test_waiting_pulls_of_both_kinds_are_woken_by_their_own_pick_ups(start: Start, ledger_url: str) -> None:
    api = await start({"api_keys": BOUND}, ledger_url=ledger_url, max_unacked=1)
    acme = await submit_three(api, "acme")
    (own,) = await pull_as(api, "acmes")
    (shared,) = await pull_as(api, "all")
    pulls = {key: asyncio.create_task(pull_as(api, key, 60)) for key in ("acmes", "all")}
    await until(lambda: len(api.runtime.notifier.pulls.waiting("ocr")) == 2)
    (await api.callback("ack", own)).ok()
    (following,) = await pulls["acmes"]
    assert {one["jobId"] for one in (own, shared, following)} == set(acme)
    assert not pulls["all"].done()
    fourth = await api.submit(idempotency_key="fourth")
    (await api.callback("ack", shared)).ok()
    assert [one["jobId"] for one in await pulls["all"]] == [fourth]


async def test_job_waits_for_the_dispatch_window_only_if_all_its_ways_are_closed(start: Start, ledger_url: str) -> None:
    api = await start({"api_keys": BOUND}, ledger_url=ledger_url, max_unacked=1)
    acme = await submit_three(api, "acme")
    await pull_as(api, "acmes")

    async def reason(job_id: str) -> str:
        found: str = (await api.job(job_id))["blocked_on"]["reason"]
        listed = await api.jobs(f"blocked_on={found}")
        other = {"HANDOVER": "DISPATCH_WINDOW", "DISPATCH_WINDOW": "HANDOVER"}[found]
        assert (job_id in listed, job_id in await api.jobs(f"blocked_on={other}")) == (True, False)
        return found

    assert await reason(acme[1]) == "DISPATCH_WINDOW", "as far as is known, only the tenant's own service pulls"
    globex = await submit_three(api, "globex")
    assert await reason(globex[0]) == "HANDOVER"
    (shared,) = await pull_as(api, "all")
    assert await reason(acme[2]) == "DISPATCH_WINDOW"
    assert await reason(globex[1]) == "DISPATCH_WINDOW"
    (await api.succeed(shared)).ok()
    assert await reason(globex[1]) == "HANDOVER"


async def test_list_by_dispatch_window_has_no_empty_page_before_a_job_that_waits_for_it(
    start: Start, ledger_url: str
) -> None:
    api = await start({"api_keys": BOUND}, ledger_url=ledger_url, max_unacked=2)
    globex = await submit_three(api, "globex")
    assert len(await pull_as(api, "all")) == 2
    acme = await submit_three(api, "acme")
    assert len((await api.post(PULL, {"max": 1}, key="acmes")).ok()["directives"]) == 1  # its own window has room
    page = (await api.get("/v1/jobs?blocked_on=DISPATCH_WINDOW&limit=1")).ok()
    assert [job["jobId"] for job in page["jobs"]] == globex[2:]
    page = (await api.get("/v1/jobs?blocked_on=HANDOVER&limit=1")).ok()
    assert [job["jobId"] for job in page["jobs"]] == acme[2:]


async def test_pull_of_a_disconnected_client_takes_nothing(api: Api) -> None:
    """A directive handed to a disconnected client would cost an attempt and the ACK timeout."""
    asked = b'{"wait_seconds": 60}'
    scope = api.scope("POST", "/v1/services/ocr/directives:pull", None, None, len(asked))
    gone = asyncio.Event()
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": asked}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Discard the response: the client is gone."""

    pulling = asyncio.create_task(api.app(scope, receive, send))
    await asyncio.sleep(0)
    gone.set()
    async with asyncio.timeout(5):
        await pulling
    job_id = await api.submit()
    assert (await api.step(job_id))["status"] == "DISPATCHING"
    assert (await api.pull_one())["attempt_no"] == 1
