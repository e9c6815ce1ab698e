"""Requirements of HTTP: sizes, media types, methods, unknown paths, clients that disconnect."""

import asyncio
import json
from typing import Any

import pytest

from tests.integration.api.conftest import Start
from tests.support.api import Api

POSTS = ["/v1/commands", "/v1/jobs/x:cancel", "/v1/admin/outbox/retry", "/v1/services/ocr/directives:pull"]


@pytest.fixture
async def small(start: Start) -> Api:
    return await start(max_body_bytes=1024, max_batch_bytes=2048)


@pytest.mark.parametrize("path", POSTS)
async def test_oversized_body_is_refused_with_and_without_a_declared_length(small: Api, path: str) -> None:
    body = json.dumps(small.command(input_ref="blob://in/" + "x" * 1100)).encode()
    problem = (await small.post(path, body)).problem(413, "BODY_TOO_LARGE")
    assert "1024" in problem["detail"]
    chunks = [body[i : i + 100] for i in range(0, len(body), 100)]
    (await small.post(path, chunks=chunks)).problem(413, "BODY_TOO_LARGE")
    assert await small.jobs() == []


async def test_oversized_declared_length_is_refused_before_the_body_is_read(small: Api) -> None:
    scope = small.scope("POST", "/v1/commands", None, {"content-length": "999999999"}, None)
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    await small.app(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_body_of_a_request_with_an_unknown_key_is_not_read(small: Api) -> None:
    for path in (*POSTS, "/v1/commands:batch", "/v1/callbacks/result", "/v1/callbacks:batch"):
        scope = small.scope("POST", path, "unknown", {"content-length": "100"}, None)
        sent: list[Any] = []

        async def receive() -> Any:
            raise AssertionError("the body was read")

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await small.app(scope, receive, send)
        assert sent[0]["status"] == 401


async def test_every_route_checks_the_credential_before_reading_the_body(small: Api) -> None:
    operations = (await small.get("/openapi.json")).ok()["paths"]
    changing = [
        (method.upper(), path.replace("{version}", "1").replace("{", "").replace("}", ""))
        for path, methods in operations.items()
        for method in methods
        if method in ("post", "put", "patch", "delete") and path != "/v1/callbacks:batch"
    ]
    assert len(changing) > 20

    async def receive() -> Any:
        raise AssertionError("the body was read")

    for method, path in changing:
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await small.app(small.scope(method, path, "", {"content-length": "100"}, None), receive, send)
        assert sent[0]["status"] == 401, (method, path)


async def test_chunked_body_is_read_completely(api: Api) -> None:
    body = json.dumps(api.command()).encode()
    assert (await api.post("/v1/commands", chunks=[body[:7], b"", body[7:90], body[90:]])).status == 202


@pytest.mark.parametrize("media_type", ["text/plain", "application/octet-stream", "application/jsonp", "json"])
@pytest.mark.parametrize("path", [*POSTS, "/v1/commands:batch", "/v1/callbacks:batch"])
async def test_body_declared_as_another_media_type_is_refused(api: Api, path: str, media_type: str) -> None:
    answer = await api.post(path, b"{}", headers={"content-type": media_type})
    answer.problem(415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.lucius.v1+json", ""]
)
async def test_json_media_type_variants_are_accepted(api: Api, media_type: str) -> None:
    answer = await api.post("/v1/commands", api.command(), headers={"content-type": media_type})
    assert answer.status == 202


async def test_get_may_declare_any_media_type(api: Api) -> None:
    job_id = await api.submit()
    for path in ("/v1/jobs", f"/v1/jobs/{job_id}"):
        assert (await api.get(path, headers={"content-type": "text/plain"})).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/commands", "POST"),
        ("PUT", "/v1/commands:batch", "POST"),
        ("DELETE", "/v1/callbacks/ack", "POST"),
        ("GET", "/v1/services/ocr/directives:pull", "POST"),
        ("DELETE", "/v1/jobs/x", "GET, HEAD"),
        ("POST", "/v1/jobs", "GET, HEAD"),
        ("HEAD", "/v1/commands", "POST"),
        ("PUT", "/v1/protocols", "GET, HEAD, POST"),
        ("PUT", "/v1/protocols/OCR/versions/1", "DELETE, GET, HEAD"),
        ("GET", "/v1/jobs/x:cancel", "POST"),
        ("PUT", "/v1/review/x:adopt", "POST"),
        ("GET", "/v1/review/x:adopt", "POST"),
        ("PUT", "/v1/review/x", "GET, HEAD"),
        ("PUT", "/v1/protocols/OCR/versions/1:publish", "POST"),
        ("DELETE", "/v1/protocols/OCR/versions/1:deprecate", "POST"),
        ("PATCH", "/v1/admin/outbox/retry", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
async def test_wrong_method_is_refused_naming_the_allowed_ones(api: Api, method: str, path: str, allowed: str) -> None:
    answer = await api.call(method, path)
    if method == "HEAD":
        assert (answer.status, answer.body) == (405, b"")
    else:
        answer.problem(405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/jobs/",
        "/v1/commands/",
        "/v1/jobs/a/b/c",
        "/v1/services/OCR!/directives:pull",
        "/v1/jobs/" + "x" * 200,
    ],
)
async def test_unknown_path_is_not_found(api: Api, path: str) -> None:
    for method in ("GET", "POST"):
        (await api.call(method, path)).problem(404, "NOT_FOUND")


async def test_pull_of_a_client_that_disconnects_within_its_body_takes_nothing(api: Api) -> None:
    await api.submit()
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": True}, {"type": "http.disconnect"}]
    scope = api.scope("POST", "/v1/services/ocr/directives:pull", None, None, None)

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        """Discard the response: the client is gone."""

    async with asyncio.timeout(5):
        await api.app(scope, receive, send)
    assert len(await api.pull()) == 1


async def test_internal_error_is_a_problem_without_details(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("with a secret in it")

    job_id = await api.submit()
    monkeypatch.setattr(api.runtime.store.jobs, "job", broken)
    assert "secret" not in str((await api.get(f"/v1/jobs/{job_id}")).problem(500, "INTERNAL"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    # The outermost layer of FastAPI sends a response and raises again, so that the server logs the error.
    with pytest.raises(RuntimeError):
        await api.app(api.scope("GET", f"/v1/jobs/{job_id}/steps", None, None, None), receive, send)
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["code"] == "INTERNAL"
    assert b"secret" not in sent[1]["body"]
