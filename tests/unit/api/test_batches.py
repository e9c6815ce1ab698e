"""Batches: each item is answered on its own, in order, as it would have been alone."""

from typing import Any

import pytest

from lucius.core.inputs import Ack
from tests.support.api import Api, identity
from tests.unit.api.conftest import Start, key_entry


async def submit(api: Api, *commands: Any, **options: Any) -> list[Any]:
    results: list[Any] = (await api.post("/v1/commands:batch", {"commands": commands}, **options)).ok()["results"]
    assert len(results) == len(commands)
    return results


async def send(api: Api, *callbacks: Any) -> list[Any]:
    results: list[Any] = (await api.post("/v1/callbacks:batch", {"callbacks": callbacks}, key="")).ok()["results"]
    assert len(results) == len(callbacks)
    return results


def item(kind: str, directive: dict[str, Any], **said: Any) -> dict[str, Any]:
    return {"type": kind, "callback_token": directive["callback_token"], **identity(directive), **said}


async def test_good_and_bad_commands_are_told_apart(start: Start, ledger_url: str) -> None:
    keys = [key_entry("acmes", "submit", "read", tenants=("acme",))]
    api = await start({"api_keys": keys, "tenants": {"acme": {"max_inflight": 2}}}, ledger_url=ledger_url)
    api.key = "acmes"
    one, twin = api.command(idempotency_key="1"), api.command(idempotency_key="1")
    clash = api.command(idempotency_key="1", input_ref="blob://in/b.pdf")
    results = await submit(
        api,
        one,
        twin,
        clash,
        5,
        api.command(tenant_id="globex"),
        api.command(request_type="NOPE"),
        api.command(idempotency_key="2"),
        api.command(idempotency_key="3"),
    )
    codes = [(result["status_code"], result.get("code")) for result in results]
    assert codes == [
        (202, None),
        (202, None),
        (409, "IDEMPOTENCY_KEY_REUSED"),
        (422, "INVALID_ENVELOPE"),
        (403, "FORBIDDEN_TENANT"),
        (422, "UNKNOWN_REQUEST_TYPE"),
        (202, None),
        (429, "TENANT_LIMIT"),
    ]
    assert [results[i]["duplicate"] for i in (0, 1, 6)] == [False, True, False]
    assert results[0]["jobId"] == results[1]["jobId"] == results[2]["jobId"]
    assert results[0]["status"] == "DISPATCHING"
    assert results[5]["errors"][0]["pointer"] == "/request_type"
    assert results[7]["retry_after_seconds"] >= 1
    assert set(await api.jobs()) == {results[0]["jobId"], results[6]["jobId"]}


async def test_a_command_of_a_batch_is_the_job_it_would_have_been_alone(api: Api) -> None:
    (result,) = await submit(api, api.command(doc_id="d", mode="BURST"))
    again = (await api.post("/v1/commands", api.command(doc_id="d", mode="BURST"))).ok(202)
    assert again == {"jobId": result["jobId"], "status": "DISPATCHING", "duplicate": True}


async def test_callbacks_are_answered_each_on_its_own(api: Api) -> None:
    for i in range(3):
        await api.submit(idempotency_key=str(i))
    one, two, three = await api.pull(max=3)
    results = await send(
        api,
        item("ack", one),
        item("result", one, status="SUCCEEDED", result=1),
        item("ack", one),
        item("ack", two) | {"callback_token": "forged.token"},
        item("ack", two) | {"lease_id": "another"},
        item("heartbeat", two, progress=0.5),
        item("result", three),
        "not an object",
        {"type": "ack", **identity(three)},
        item("wave", three),
        item("result", three, status="FAILED", failure_class="NON_RETRYABLE"),
    )
    told = [(result["status_code"], result.get("disposition") or result["code"]) for result in results]
    assert told == [
        (200, "APPLIED"),
        (200, "APPLIED"),
        (200, "DUPLICATE"),
        (401, "INVALID_CALLBACK_TOKEN"),
        (403, "CALLBACK_TOKEN_MISMATCH"),
        (200, "APPLIED"),
        (422, "INVALID_CALLBACK"),
        (422, "INVALID_CALLBACK"),
        (401, "INVALID_CALLBACK_TOKEN"),
        (422, "INVALID_CALLBACK"),
        (200, "APPLIED"),
    ]
    statuses = [(await api.job(directive["jobId"]))["status"] for directive in (one, two, three)]
    assert statuses == ["SUCCEEDED", "IN_PROGRESS", "FAILED_FINAL"]
    assert (await api.step(two["jobId"]))["progress"] == 0.5


async def test_a_stale_callback_of_a_batch_says_so(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    await api.sweep(after=31)
    await api.sweep(after=61)
    (result,) = await send(api, item("result", directive, status="SUCCEEDED"))
    assert (result["status_code"], result["code"], result["disposition"]) == (409, "STALE_CALLBACK", "STALE")


async def test_what_goes_wrong_with_one_item_is_that_items_answer(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [await api.submit(idempotency_key=str(i)) for i in range(2)]
    good, bad = await api.pull(max=2)
    apply, submit_ = api.runtime.callbacks.apply, api.runtime.ingress.submit

    async def breaks_once(job_id: str, said: list[Any]) -> Any:
        if job_id == bad["jobId"]:
            raise RuntimeError("a bug of ours")
        return await apply(job_id, said)

    async def breaks_for_ninth(body: bytes, principal: Any) -> Any:
        if b'"ninth"' in body:
            raise RuntimeError("a bug of ours")
        return await submit_(body, principal)

    monkeypatch.setattr(api.runtime.callbacks, "apply", breaks_once)
    monkeypatch.setattr(api.runtime.ingress, "submit", breaks_for_ninth)
    told = await send(api, item("ack", good), item("ack", bad))
    assert [result["status_code"] for result in told] == [200, 500]
    assert "bug" not in str(told)
    accepted = await submit(api, api.command(idempotency_key="ninth"), api.command(idempotency_key="tenth"))
    assert [result["status_code"] for result in accepted] == [500, 202]
    assert len(await api.jobs()) == len(jobs) + 1


@pytest.mark.parametrize("path", ["/v1/commands:batch", "/v1/callbacks:batch"])
async def test_a_batch_has_its_limits(start: Start, path: str) -> None:
    api = await start(max_batch_bytes=4096, max_body_bytes=1024)
    name = "commands" if "commands" in path else "callbacks"
    (await api.post(path, {name: [{}] * 501})).problem(422, "BATCH_TOO_LARGE")
    (await api.post(path, {name: ["x" * 4096]})).problem(413, "BODY_TOO_LARGE")
    assert len((await api.post(path, {name: ["x" * 2048]})).ok()["results"]) == 1  # more than a single body may have
    assert (await api.post(path, {name: []})).ok() == {"results": []}
    wrongs: list[Any] = [{}, {name: {}}, {name: [], "more": 1}, [], {name: None}]
    for wrong in wrongs:
        (await api.post(path, wrong)).problem(422, "INVALID_ENVELOPE")
    (await api.post(path, b'{"' + name.encode() + b'": [}')).problem(400, "MALFORMED_JSON")


async def test_callbacks_of_one_step_are_one_commit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.submit()
    directive = await api.pull_one()
    seen: list[Any] = []
    apply = api.runtime.jobs.apply

    async def noting(job_id: str, inputs: Any, step_id: str | None = None) -> Any:
        seen.append(inputs)
        return await apply(job_id, inputs, step_id)

    monkeypatch.setattr(api.runtime.jobs, "apply", noting)
    await send(api, item("ack", directive), item("result", directive, status="SUCCEEDED"))
    (inputs,) = seen
    assert isinstance(inputs[0], Ack)
    assert len(inputs) == 2
