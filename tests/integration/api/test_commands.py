"""Submission: the envelope, the order of checks, and what an accepted command creates."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Api

ARROWS = ("OCR→EMBEDDING→SIS", "OCR->EMBEDDING->SIS", "OCR_EMBEDDING_SIS")
SIS = {"sis": {"prompt_set": ["What is due?"]}}


async def test_accepted_command_returns_the_location_of_its_job(api: Api) -> None:
    answer = await api.post("/v1/commands", api.command())
    accepted = answer.ok(202)
    assert accepted == {"jobId": accepted["jobId"], "status": "DISPATCHING", "duplicate": False}
    assert answer.headers["location"] == f"/v1/jobs/{accepted['jobId']}"
    assert answer.headers["content-type"] == "application/json"
    assert (await api.get(answer.headers["location"])).ok()["jobId"] == accepted["jobId"]


async def test_every_optional_member_is_accepted_and_shown(api: Api) -> None:
    given = {
        "mode": "BURST",
        "idempotency_key": "k-1",
        "doc_id": "Doc-1",
        "correlation_id": "corr-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "target": {"type": "ORDER", "id": "42"},
        "protocol_version": 1,
        "callback_urls": {"job": "https://client.example.com/done"},
    }
    job = await api.job(await api.submit(**given))
    shown = ("doc_id", "idempotency_key", "correlation_id", "traceparent", "target", "protocol_version", "mode")
    assert {name: job[name] for name in shown} == {name: given[name] for name in shown}


async def test_null_members_count_as_absent(api: Api) -> None:
    absent = {"mode": None, "idempotency_key": None, "doc_id": None, "callback_urls": None, "target": None}
    job_id = await api.submit(**absent, payload={"ocr": {"language": None}})
    again = (await api.post("/v1/commands", api.command(payload={"ocr": {}}))).ok(202)
    assert again == {"jobId": job_id, "status": "DISPATCHING", "duplicate": True, "accepted_at": ANY}


async def test_null_for_a_required_member_counts_as_missing(api: Api) -> None:
    problem = (await api.post("/v1/commands", api.command(input_ref=None))).problem(422, "INVALID_ENVELOPE")
    assert problem["errors"] == [{"pointer": "/input_ref", "message": "required field is missing"}]


async def test_spellings_of_request_type_and_tenant_are_equivalent(api: Api) -> None:
    answers = [
        (await api.post("/v1/commands", api.command(request_type=name, payload=SIS, tenant_id=tenant))).ok(202)
        for name, tenant in zip(ARROWS, ("acme", " ACME ", "Acme"), strict=True)
    ]
    assert len({answer["jobId"] for answer in answers}) == 1
    assert [answer["duplicate"] for answer in answers] == [False, True, True]
    job = await api.job(answers[0]["jobId"])
    assert (job["request_type"], job["tenant_id"]) == ("OCR_EMBEDDING_SIS", "acme")
    assert await api.jobs("request_type=OCR%E2%86%92EMBEDDING%E2%86%92SIS&tenant_id=ACME") == [job["jobId"]]


async def test_unknown_field_is_refused_with_a_suggestion(api: Api) -> None:
    body = api.command(idempotencykey="x", colour="red", callback_urls={"done": "https://x.example"})
    problem = (await api.post("/v1/commands", body)).problem(422, "INVALID_ENVELOPE")
    pointers = {fault["pointer"]: fault["message"] for fault in problem["errors"]}
    assert set(pointers) == {"/idempotencykey", "/colour", "/callback_urls/done"}
    only = (await api.post("/v1/commands", api.command(idempotencykey="x"))).problem(422, "UNKNOWN_FIELD")
    assert "did you mean idempotency_key?" in only["detail"]


BAD = [
    pytest.param(b"{", 400, "MALFORMED_JSON", "", id="cut off"),
    pytest.param(b"", 400, "MALFORMED_JSON", "", id="empty"),
    pytest.param(b'{"tenant_id": "\xff"}', 400, "MALFORMED_JSON", "", id="not UTF-8"),
    pytest.param(b"[" * 100_000, 422, "INVALID_ENVELOPE", "", id="nested without end"),
    pytest.param([], 422, "INVALID_ENVELOPE", "", id="a list"),
    pytest.param({"tenant_id": 5}, 422, "INVALID_ENVELOPE", "/tenant_id", id="tenant a number"),
    pytest.param({"payload": []}, 422, "INVALID_ENVELOPE", "/payload", id="payload a list"),
    pytest.param({"mode": "FAST"}, 422, "INVALID_ENVELOPE", "/mode", id="unknown mode"),
    pytest.param({"doc_id": ""}, 422, "INVALID_ENVELOPE", "/doc_id", id="empty doc_id"),
    pytest.param({"target": {"type": "x"}}, 422, "INVALID_ENVELOPE", "/target/id", id="half a target"),
    pytest.param({"schema_version": "v2"}, 422, "UNSUPPORTED_SCHEMA_VERSION", "/schema_version", id="version"),
    pytest.param({"tenant_id": "a/b"}, 422, "INVALID_TENANT", "/tenant_id", id="tenant with a slash"),
    pytest.param({"request_type": "OCRR"}, 422, "UNKNOWN_REQUEST_TYPE", "/request_type", id="request type"),
    pytest.param({"protocol_version": 9}, 422, "UNKNOWN_PROTOCOL_VERSION", "/protocol_version", id="no such version"),
    pytest.param({"payload": {"ocr": []}}, 422, "INVALID_PAYLOAD", "/payload/ocr", id="payload member"),
    pytest.param({"payload": {"sis": {}}}, 422, "INVALID_PAYLOAD", "/payload/sis", id="step that is not there"),
    pytest.param(
        {"request_type": "SIS"}, 422, "INVALID_PAYLOAD", "/payload/sis/prompt_set", id="required payload member"
    ),
    pytest.param({"input_ref": "ftp://h/x"}, 422, "FORBIDDEN_REF", "/input_ref", id="scheme"),
    pytest.param({"output_ref": "https://u:p@h/x"}, 422, "FORBIDDEN_REF", "/output_ref", id="user info"),
    pytest.param({"input_ref": "https://h/x?sig=abc"}, 422, "FORBIDDEN_REF", "/input_ref", id="signature"),
    pytest.param(
        {"callback_urls": {"result": "https://evil.example/r"}},
        422,
        "CALLBACK_URL_FORBIDDEN",
        "/callback_urls/result",
        id="result callback",
    ),
    pytest.param(
        {"callback_urls": {"ack": "https://evil.example/a"}},
        422,
        "CALLBACK_URL_FORBIDDEN",
        "/callback_urls/ack",
        id="ack callback",
    ),
    pytest.param(
        {"payload": {"ocr": {"language": 2**60}}}, 422, "INVALID_PAYLOAD", "/payload/ocr/language", id="wrong type"
    ),
    pytest.param({"mode": "BURST"}, 422, "DOC_ID_REQUIRED", None, id="burst without a document"),
]


@pytest.mark.parametrize(("body", "status", "code", "pointer"), BAD)
async def test_invalid_command_is_refused_with_its_pointer_and_creates_nothing(
    api: Api, body: Any, status: int, code: str, pointer: str | None
) -> None:
    sent = api.command(**body) if isinstance(body, dict) else body
    problem = (await api.post("/v1/commands", sent)).problem(status, code)
    if pointer is not None:
        assert problem["errors"][0]["pointer"] == pointer
    assert await api.jobs() == []
    assert await api.runtime.store.jobs.counters("") == {}


async def test_callback_urls_of_an_allowed_host_are_in_the_directive(start: Start) -> None:
    api = await start({"callbacks": {"hosts": ["relay.example.com"]}})
    await api.submit(callback_urls={"ack": "https://relay.example.com/a", "result": "https://relay.example.com/r"})
    urls = (await api.pull_one())["callback_urls"]
    assert (urls["ack"], urls["result"]) == ("https://relay.example.com/a", "https://relay.example.com/r")
    assert urls["heartbeat"].endswith("/v1/callbacks/heartbeat")


async def test_checks_run_in_a_fixed_order(start: Start) -> None:
    """A command with every fault is refused for the first one; with that corrected, for the next."""
    keys = [key_entry("reads", "read", tenants=("*",)), key_entry("submits", "submit", tenants=("acme",))]
    tenants = {"acme": {"max_inflight": 1}}
    api = await start({"api_keys": keys, "tenants": tenants})
    api.key = "submits"
    first = await api.submit(idempotency_key="taken")
    body: dict[str, Any] = {
        "tenant_id": "Globex",
        "request_type": "NOPE",
        "input_ref": "ftp://x/y",
        "output_ref": "blob://out/x",
        "payload": {"ocr": {"language": 1}},
        "schema_version": "v1",
        "mode": "BURST",
        "idempotency_key": "taken",
        "extra": 1,
    }

    async def refused(status: int, code: str, key: str = "submits", **mend: Any) -> None:
        body.update(mend)
        (await api.post("/v1/commands", body, key=key)).problem(status, code)

    (await api.post("/v1/commands", b"{", key="nobody")).problem(401, "UNAUTHENTICATED")
    (await api.post("/v1/commands", b"{", key="reads")).problem(403, "FORBIDDEN_SCOPE")
    await refused(422, "UNKNOWN_FIELD")
    del body["extra"]
    await refused(403, "FORBIDDEN_TENANT")
    await refused(422, "UNKNOWN_REQUEST_TYPE", tenant_id="acme")
    await refused(422, "INVALID_PAYLOAD", request_type="OCR")
    await refused(422, "FORBIDDEN_REF", payload={})
    await refused(409, "IDEMPOTENCY_KEY_REUSED", input_ref="blob://in/other.pdf")
    await refused(403, "MODE_NOT_PERMITTED", idempotency_key="fresh")
    await refused(429, "TENANT_LIMIT", mode="SAFE")
    assert await api.jobs(key="reads") == [first]
