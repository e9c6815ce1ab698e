"""Rules for the request line: valid names, known query parameters, HEAD."""

import asyncio
import difflib
import json
from typing import Any

import pytest

from tests.integration.api.conftest import Start, key_entry
from tests.support.api import identity

NUL = "a\x00b"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/jobs/{NUL}"),
        ("GET", f"/v1/jobs/{NUL}/steps"),
        ("GET", f"/v1/jobs/{NUL}/attempts"),
        ("GET", f"/v1/jobs/{NUL}/events"),
        ("GET", f"/v1/jobs/{NUL}/audit"),
        ("POST", f"/v1/jobs/{NUL}:cancel"),
        ("POST", f"/v1/jobs/x/steps/{NUL}:approve"),
        ("GET", f"/v1/review/{NUL}"),
        ("POST", f"/v1/review/{NUL}:retry"),
        ("GET", f"/v1/protocols/{NUL}"),
        ("GET", f"/v1/protocols/{NUL}/versions/1"),
        ("POST", f"/v1/services/{NUL}/directives:pull"),
        ("GET", f"/v1/services/{NUL}/backlog"),
    ],
)
async def test_name_with_a_control_character_is_not_found(start: Start, method: str, path: str) -> None:
    api = await start()
    (await api.call(method, path, key="unknown")).problem(401, "UNAUTHENTICATED")
    (await api.call(method, path)).problem(404, "NOT_FOUND")


@pytest.mark.parametrize("query", ["blocked_on=%00", "request_type=O%00CR", "tenant_id=%00", "created_after=%0a"])
async def test_filter_with_a_control_character_is_refused(start: Start, query: str) -> None:
    api = await start()
    problem = (await api.get(f"/v1/jobs?{query}")).problem(422, "INVALID_QUERY")
    assert problem["errors"][0]["pointer"] == query.partition("=")[0]
    (await api.get(f"/v1/jobs?{query}", key="unknown")).problem(401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/jobs?statsu=QUEUED", "did you mean status?"),
        ("/v1/jobs?tenant=acme", "did you mean tenant_id?"),
        ("/v1/jobs/x?wiat=1", "did you mean wait?"),
        ("/v1/jobs/x/events?curser=1", "did you mean cursor?"),
        ("/v1/jobs/x/steps?limit=1", "takes no query"),
        ("/v1/review?job_id=1", "did you mean jobId?"),
        ("/v1/protocols?zzz=1", "there are status"),
    ],
)
async def test_unknown_query_parameter_is_refused_with_the_nearest_name(start: Start, path: str, hint: str) -> None:
    api = await start()
    assert hint in (await api.get(path)).problem(422, "INVALID_QUERY")["detail"]
    (await api.get(path, key="unknown")).problem(401, "UNAUTHENTICATED")


async def test_post_accepts_no_query(start: Start) -> None:
    api = await start()
    for path in ("/v1/commands", "/v1/commands:batch", "/v1/services/ocr/directives:pull", "/v1/jobs/x:cancel"):
        (await api.post(f"{path}?dry_run=1", {})).problem(422, "INVALID_QUERY")
    assert await api.jobs() == []


async def test_health_probes_accept_unknown_query_parameters(start: Start) -> None:
    api = await start()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await api.get(f"{path}?probe=1", key="")).status == 200


async def test_every_declared_query_parameter_is_known(start: Start) -> None:
    api = await start()
    paths = (await api.get("/openapi.json")).ok()["paths"]
    for path, operations in paths.items():
        names = [p["name"] for p in operations.get("get", {}).get("parameters", []) if p["in"] == "query"]
        for name in names:
            at = path.replace("{", "").replace("}", "")
            assert b"unknown query" not in (await api.get(f"{at}?{name}=1")).body, (path, name)


async def test_head_answers_like_get_without_the_body(start: Start) -> None:
    api = await start({"api_keys": [key_entry("no-reader", "submit", tenants=("acme",))]})
    job_id = await api.submit()
    paths = (await api.get("/openapi.json")).ok()["paths"]
    for path in [*(path for path, item in paths.items() if "get" in item), "/openapi.json", "/docs"]:
        at = path.replace("{job_id}", job_id).replace("{request_type}", "OCR").replace("{service}", "ocr")
        at = at.replace("{version}", "1").replace("{other}", "1").replace("{", "").replace("}", "")
        head, get = await api.call("HEAD", at), await api.get(at)
        assert (head.status, head.body) == (get.status, b""), at
        assert head.headers["content-type"] == get.headers["content-type"]
    assert (await api.call("HEAD", f"/v1/jobs/{job_id}", key="no-reader")).status == 403


async def test_head_of_an_event_stream_ends(start: Start) -> None:
    api = await start()
    job_id = await api.submit()
    async with asyncio.timeout(5):
        answer: Any = await api.call("HEAD", f"/v1/jobs/{job_id}/events", headers={"accept": "text/event-stream"})
    assert (answer.status, answer.body) == (200, b"")


async def test_head_of_an_event_stream_has_the_headers_of_the_stream(start: Start) -> None:
    api = await start()
    job_id = await api.submit()
    accept = {"accept": "text/event-stream"}
    head = await api.call("HEAD", f"/v1/jobs/{job_id}/events", headers=accept)
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (head.headers["cache-control"], head.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-length" not in head.headers
    await api.finish(job_id)
    last = {**accept, "last-event-id": "9999"}
    assert (await api.call("HEAD", f"/v1/jobs/{job_id}/events", headers=last)).status == 204
    (await api.get("/v1/jobs/unknown/events", headers=accept)).problem(404, "JOB_NOT_FOUND")


@pytest.mark.parametrize(
    "name", ["completed_after", "completed_before", "created_after", "status", "tenant_id", "request_type", "cursor"]
)
async def test_empty_query_parameter_is_refused(start: Start, name: str) -> None:
    api = await start()
    problem = (await api.get(f"/v1/jobs?{name}=")).problem(422, "INVALID_QUERY")
    assert problem["errors"] == [{"pointer": name, "message": "is empty; leave it out instead"}]


@pytest.mark.parametrize("path", ["/v1/jobs?status=QUEUED&status=PAUSED", "/v1/jobs/x?wait=1&wait=1"])
async def test_repeated_query_parameter_is_refused(start: Start, path: str) -> None:
    api = await start()
    assert "is there more than once" in (await api.get(path)).problem(422, "INVALID_QUERY")["detail"]


async def test_instant_may_have_lower_case_letters(start: Start) -> None:
    api = await start()
    await api.submit()
    assert len((await api.get("/v1/jobs?created_after=2027-01-15t07:59:59z")).ok()["jobs"]) == 1
    assert (await api.get("/v1/jobs?created_after=2027-01-15t08:00:01z")).ok()["jobs"] == []


async def test_every_v1_operation_declares_the_422_response(start: Start) -> None:
    api = await start()
    paths = (await api.get("/openapi.json")).ok()["paths"]
    operations = [(path, method, one) for path, item in paths.items() for method, one in item.items()]
    lacking = [(path, method) for path, method, one in operations if "422" not in one["responses"]]
    assert [path for path, _ in lacking if path.startswith("/v1/")] == []
    assert lacking, "other addresses refuse none"


async def test_body_with_a_content_encoding_is_refused(start: Start) -> None:
    api = await start()
    for path in ("/v1/commands", "/v1/commands:batch", "/v1/callbacks:batch", "/v1/jobs/x:cancel"):
        for encoding in ("gzip", "br", "deflate, gzip"):
            answer = await api.post(path, b"\x1f\x8b", headers={"content-encoding": encoding})
            assert "Content-Encoding" in answer.problem(415, "UNSUPPORTED_MEDIA_TYPE")["detail"]
    assert (await api.post("/v1/commands", api.command(), headers={"content-encoding": "identity"})).status == 202


async def test_duplicate_member_is_refused_in_every_body(start: Start) -> None:
    api = await start()
    good = json.dumps(api.command(payload={"ocr": {"language": "en"}})).encode()
    nested = good.replace(b'"language": "en"', b'"language": "en", "language" : "de"')
    for bad in (good.replace(b"{", b'{"tenant_id":"globex",', 1), nested):
        assert "twice" in (await api.post("/v1/commands", bad)).problem(400, "MALFORMED_JSON")["detail"]
    batch = (await api.post("/v1/commands:batch", b'{"commands":[' + nested + b"," + good + b"]}")).ok()["results"]
    assert [item["status_code"] for item in batch] == [400, 202]
    for path, body in {
        "/v1/commands:batch": b'{"commands":[' + good + b'],"commands":[]}',
        "/v1/callbacks:batch": b'{"callbacks":[{"a":1}],"callb\\u0061cks":[]}',
        "/v1/services/ocr/directives:pull": b'{"max":1,"max":2}',
        "/v1/jobs/x:cancel": b'{"reason":"a","reason":"b"}',
        "/v1/protocols:validate": b'{"a":{"b":1,"b":2}}',
    }.items():
        (await api.post(path, body)).problem(400, "MALFORMED_JSON")
    (directive,) = await api.pull()
    said = json.dumps({**identity(directive), "status": "SUCCEEDED", "result": {"a": 1}}).encode()
    twice = said.replace(b'"a": 1', b'"a": 1, "a": 2')
    (await api.post("/v1/callbacks/result", twice, key=directive["callback_token"])).problem(400, "MALFORMED_JSON")
    token = json.dumps(directive["callback_token"]).encode()
    item = b'{"type":"result","callback_token":' + token + b"," + twice[1:]
    results = (await api.post("/v1/callbacks:batch", b'{"callbacks":[' + item + b"]}")).ok()["results"]
    assert [(one["status_code"], one["code"]) for one in results] == [(400, "MALFORMED_JSON")]


async def test_query_with_many_unknown_parameters_costs_few_comparisons(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await start()
    compared: list[str] = []
    get_close_matches = difflib.get_close_matches

    def counting(word: str, *rest: Any, **options: Any) -> list[str]:
        compared.append(word)
        return get_close_matches(word, *rest, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    problem = (await api.get("/v1/jobs?" + "&".join(f"x{i}" for i in range(60)))).problem(422, "INVALID_QUERY")
    assert len(problem["errors"]) == len(compared) == 5
    compared.clear()
    long = "target_" + "x" * 40
    (await api.get(f"/v1/jobs?{long}=1")).problem(422, "INVALID_QUERY")
    assert compared == [], "an overlong name is no slip of the pen"


async def test_query_with_too_many_parameters_is_refused_without_comparisons(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await start()
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_, **__: pytest.fail("names were compared"))
    for name in ("target_i", "status"):
        query = "&".join(f"{name}=1" for _ in range(2_000))
        for path in ("/v1/jobs", "/v1/jobs/x"):
            problem = (await api.get(f"{path}?{query}")).problem(422, "INVALID_QUERY")
            assert "parameters" in problem["detail"]
            (await api.get(f"{path}?{query}", key="")).problem(401, "UNAUTHENTICATED")
