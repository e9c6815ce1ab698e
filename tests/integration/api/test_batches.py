"""Each item of a batch is answered separately, in order, as if sent alone."""

import asyncio
import time
from typing import Any
from unittest.mock import ANY

import pytest

from lucius.api import batches
from lucius.core.model.inputs import Ack
from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Api, identity


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


async def test_commands_of_a_batch_are_answered_separately(start: Start, ledger_url: str) -> None:
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


async def test_batch_command_creates_the_same_job_as_a_single_command(api: Api) -> None:
    (result,) = await submit(api, api.command(doc_id="d", mode="BURST"))
    again = (await api.post("/v1/commands", api.command(doc_id="d", mode="BURST"))).ok(202)
    assert again == {"jobId": result["jobId"], "status": "DISPATCHING", "duplicate": True, "accepted_at": ANY}


async def test_callbacks_of_a_batch_are_answered_separately(api: Api) -> None:
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
        item("heartbeat", two, progress={"done": 1, "total": 2, "unit": "page"}),
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


async def test_stale_callback_in_a_batch_is_reported(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    await api.sweep(after=31)
    await api.sweep(after=61)
    (result,) = await send(api, item("result", directive, status="SUCCEEDED"))
    assert (result["status_code"], result["code"], result["disposition"]) == (409, "STALE_CALLBACK", "STALE")


async def test_unexpected_error_of_one_item_fails_only_that_item(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [await api.submit(idempotency_key=str(i)) for i in range(2)]
    good, bad = await api.pull(max=2)
    apply, submit_ = api.runtime.callbacks.apply, api.runtime.intake.submit

    async def breaks_once(job_id: str, *said: Any) -> Any:
        if job_id == bad["jobId"]:
            raise RuntimeError("a bug of ours")
        return await apply(job_id, *said)

    async def breaks_for_ninth(body: bytes, principal: Any, *rest: Any) -> Any:
        if b'"ninth"' in body:
            raise RuntimeError("a bug of ours")
        return await submit_(body, principal, *rest)

    monkeypatch.setattr(api.runtime.callbacks, "apply", breaks_once)
    monkeypatch.setattr(api.runtime.intake, "submit", breaks_for_ninth)
    told = await send(api, item("ack", good), item("ack", bad))
    assert [result["status_code"] for result in told] == [200, 500]
    assert "bug" not in str(told)
    accepted = await submit(api, api.command(idempotency_key="ninth"), api.command(idempotency_key="tenth"))
    assert [result["status_code"] for result in accepted] == [500, 202]
    assert len(await api.jobs()) == len(jobs) + 1


@pytest.mark.parametrize("path", ["/v1/commands:batch", "/v1/callbacks:batch"])
async def test_batch_is_limited_in_items_and_bytes(start: Start, path: str) -> None:
    api = await start(max_batch_bytes=4096, max_body_bytes=1024)
    name = "commands" if "commands" in path else "callbacks"
    (await api.post(path, {name: [{}] * 501})).problem(422, "BATCH_TOO_LARGE")
    (await api.post(path, {name: ["x" * 4096]})).problem(413, "BODY_TOO_LARGE")
    (result,) = (await api.post(path, {name: ["x" * 2048]})).ok()["results"]
    assert (result["status_code"], result["code"]) == (413, "BODY_TOO_LARGE"), "as it would be alone"
    assert (await api.post(path, {name: []})).ok() == {"results": []}
    wrongs: list[Any] = [{}, {name: {}}, {name: [], "more": 1}, [], {name: None}]
    for wrong in wrongs:
        (await api.post(path, wrong)).problem(422, "INVALID_ENVELOPE")
    (await api.post(path, b'{"' + name.encode() + b'": [}')).problem(400, "MALFORMED_JSON")


async def test_callbacks_of_one_step_are_one_commit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.submit()
    directive = await api.pull_one()
    seen: list[Any] = []
    apply = api.runtime.engine.apply

    async def noting(job_id: str, inputs: Any, step_id: str | None = None) -> Any:
        seen.append(inputs)
        return await apply(job_id, inputs, step_id)

    monkeypatch.setattr(api.runtime.engine, "apply", noting)
    await send(api, item("ack", directive), item("result", directive, status="SUCCEEDED"))
    (inputs,) = seen
    assert isinstance(inputs[0], Ack)
    assert len(inputs) == 2


async def test_batch_of_callbacks_without_authorization_has_small_limits(start: Start) -> None:
    api = await start()
    path = "/v1/callbacks:batch"
    assert len((await api.post(path, {"callbacks": [{}] * 100}, key="")).ok()["results"]) == 100
    problem = (await api.post(path, {"callbacks": [{}] * 101}, key="")).problem(422, "BATCH_TOO_LARGE")
    assert "callback_token" in problem["detail"]
    large = {"callbacks": ["x" * 2**20]}
    (await api.post(path, large, key="")).problem(413, "BODY_TOO_LARGE")
    assert len((await api.post(path, large)).ok()["results"]) == 1


async def test_batch_of_callbacks_with_a_callback_token_or_serve_key_has_large_limits(start: Start) -> None:
    keys = [key_entry("serving-key", "serve", service="ocr"), key_entry("reading-key", "read", tenants=("acme",))]
    api = await start({"api_keys": keys})
    path = "/v1/callbacks:batch"
    await api.submit()
    token = (await api.pull_one())["callback_token"]
    for key in (token, "serving-key"):
        assert len((await api.post(path, {"callbacks": [{}] * 500}, key=key)).ok()["results"]) == 500
        (await api.post(path, {"callbacks": [{}] * 501}, key=key)).problem(422, "BATCH_TOO_LARGE")
    (await api.post(path, {"callbacks": []}, key="reading-key")).problem(403, "FORBIDDEN_SCOPE")
    (await api.post(path, {"callbacks": []}, key=token + "x")).problem(401, "UNAUTHENTICATED")
    api.clock.advance(30 * 86_400)
    (await api.post(path, {"callbacks": [{}] * 101}, key=token)).problem(422, "BATCH_TOO_LARGE")


async def test_items_are_counted_before_the_batch_is_decoded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(body: bytes) -> Any:
        raise AssertionError("the batch was decoded")

    monkeypatch.setitem(batches.DECODERS, "callbacks", never)
    flood = b'{"callbacks":[' + b'{"a":"],[,"},' * 250_000 + b"{}]}"
    (await api.post("/v1/callbacks:batch", flood)).problem(422, "BATCH_TOO_LARGE")


async def test_large_batch_of_few_items_with_many_members_is_accepted(api: Api) -> None:
    nested = b'{"a":[' + b"1," * 500_000 + b'2],"b":"\\"],[,"}'
    answer = await api.post("/v1/callbacks:batch", b'{"callbacks":[' + nested + b"," + nested + b"]}")
    assert [result["code"] for result in answer.ok()["results"]] == ["INVALID_CALLBACK_TOKEN"] * 2


ANONYMOUS = {"key": ""}
MANY = 340_000
HOSTILE = {
    "unterminated string of escapes": b"," * 200_001 + b'"' + b'\\"' * 400_000,
    "only escapes": b"," * 200_001 + b'\\"' * 400_000,
    "large unterminated string": b"," * 200_001 + b'"' + b'\\"' * 8_000_000,
    "large item of objects": b'{"callbacks":[{"y":[' + b"{}," * 5_000_000 + b"{}]}]}",
    "large item of strings": b'{"callbacks":[[' + b'"",' * 5_000_000 + b"{}]]}",
    "strings without commas": b"," * 200_001 + b'""' * 8_000_000,
    "nesting": b'{"callbacks":[' + b"[" * 16_000_000,
    "many items": b'{"callbacks":[' + b"1," * 8_000_000 + b"1]}",
    "wrapper twice": b'{"callbacks":[],"callbacks":[[' + b'{"a":{}},' * 1_500_000 + b"{}]]}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_batch_is_refused_within_a_bound_of_cpu_time(start: Start, body: bytes) -> None:
    api = await start()
    began = time.process_time()
    answer = await api.post("/v1/callbacks:batch", body)
    assert time.process_time() - began < 2.5
    assert answer.status in (400, 413, 422)


@pytest.mark.parametrize(
    "item",
    [
        b'{"x":"\\":","y":[' + b"{}," * MANY + b"1]}",
        b'{"y":[' + b"{}," * MANY + b"1]}",
        b",".join([b'{"x":"\\":","y":[' + b"{}," * 300 + b"1]}"] * 100),
        b'{"y":"' + b"a" * 1_000_000 + b'"}',
        b'{"callback_token":"a.b","type":[' + b"{}," * 20_000 + b"1]}",
        b"1," * 500_000 + b"1",
    ],
)
async def test_batch_without_a_genuine_token_is_never_decoded(
    start: Start, monkeypatch: pytest.MonkeyPatch, item: bytes
) -> None:
    api = await start()

    def never(*_: Any) -> Any:
        raise AssertionError("an item was decoded or read for duplicates")

    for name in ("_decode_any", "count_members", "refuse_duplicates", "_scan_items"):
        monkeypatch.setattr(batches, name, never)
    began = time.process_time()
    answer = await api.post("/v1/callbacks:batch", b'{"callbacks":[' + item + b"]}", **ANONYMOUS)
    assert time.process_time() - began < 0.2
    if answer.status == 200:
        assert {result["code"] for result in answer.json["results"]} == {"INVALID_CALLBACK_TOKEN"}
    else:
        assert answer.json["code"] in ("BATCH_TOO_LARGE", "BODY_TOO_LARGE")


async def test_large_item_needs_authorization_on_the_batch(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    said = item("result", directive, status="SUCCEEDED", result={"text": "x" * 70_000})
    answer = await api.post("/v1/callbacks:batch", {"callbacks": [said]}, **ANONYMOUS)
    assert "Authorization" in answer.problem(413, "BODY_TOO_LARGE")["detail"]
    token = directive["callback_token"]
    (result,) = (await api.post("/v1/callbacks:batch", {"callbacks": [said]}, key=token)).ok()["results"]
    assert result["disposition"] == "APPLIED"


async def test_expired_genuine_token_permits_a_large_item(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    api.clock.advance(30 * 86_400)
    said = item("result", directive, status="SUCCEEDED", result={"text": "x" * 70_000})
    answer = await api.post("/v1/callbacks:batch", {"callbacks": [said]}, key=directive["callback_token"])
    assert [result["code"] for result in answer.ok()["results"]] == ["CALLBACK_TOKEN_EXPIRED"]


async def test_oversized_result_in_a_batch_ends_its_attempt(start: Start) -> None:
    api = await start(max_body_bytes=4096)
    await api.submit()
    await api.submit(idempotency_key="2")
    large, small = await api.pull(max=2)
    said = item("result", large, status="SUCCEEDED", result={"text": "x" * 5_000})
    body = {"callbacks": [said, item("ack", small)]}
    first, second = (await api.post("/v1/callbacks:batch", body, key=large["callback_token"])).ok()["results"]
    assert (first["status_code"], first["code"]) == (413, "BODY_TOO_LARGE")
    assert second["disposition"] == "APPLIED"
    assert (await api.job(large["jobId"]))["status"] == "FAILED_FINAL"


async def test_large_batch_yields_to_other_requests_between_items(start: Start) -> None:
    api = await start()
    dense = b'{"y":[' + b"{}," * 30_000 + b"1]}"
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(count_turns())
    for name in ("commands", "callbacks"):
        turns = 0
        body = b'{"%s":[%s]}' % (name.encode(), b",".join([dense] * 10))
        assert len((await api.post(f"/v1/{name}:batch", body)).ok()["results"]) == 10
        assert turns >= 10, name
    others.cancel()
