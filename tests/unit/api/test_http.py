"""What HTTP itself asks of us: sizes, media types, methods, paths that lead nowhere, clients that hang up."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.api import Api
from tests.unit.api.conftest import Start

POSTS = ["/v1/commands", "/v1/jobs/x:cancel", "/v1/admin/outbox/retry", "/v1/services/ocr/directives:pull"]


@pytest.fixture
async def small(start: Start) -> Api:
    return await start(max_body_bytes=1024, max_batch_bytes=2048)


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_over_the_limit_is_refused_whether_its_length_is_declared_or_not(small: Api, path: str) -> None:
    body = json.dumps(small.command(input_ref="blob://in/" + "x" * 1100)).encode()
    problem = (await small.post(path, body)).problem(413, "BODY_TOO_LARGE")
    assert "1024" in problem["detail"]
    chunks = [body[i : i + 100] for i in range(0, len(body), 100)]
    (await small.post(path, chunks=chunks)).problem(413, "BODY_TOO_LARGE")
    assert await small.jobs() == []


async def test_a_declared_length_over_the_limit_is_refused_before_the_body_is_read(small: Api) -> None:
    scope = small._scope("POST", "/v1/commands", None, {"content-length": "999999999"}, None)
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    await small.app(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_nobody_unknown_gets_a_body_read(small: Api) -> None:
    for path in (*POSTS, "/v1/commands:batch", "/v1/callbacks/result"):
        scope = small._scope("POST", path, "unknown", {"content-length": "100"}, None)
        sent: list[Any] = []

        async def receive() -> Any:
            raise AssertionError("the body was read")

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await small.app(scope, receive, send)
        assert sent[0]["status"] == 401


async def test_a_body_in_chunks_is_taken_as_a_whole(api: Api) -> None:
    body = json.dumps(api.command()).encode()
    assert (await api.post("/v1/commands", chunks=[body[:7], b"", body[7:90], body[90:]])).status == 202


@pytest.mark.parametrize("media_type", ["text/plain", "application/octet-stream", "application/jsonp", "json"])
@pytest.mark.parametrize("path", [*POSTS, "/v1/commands:batch", "/v1/callbacks:batch"])
async def test_what_is_declared_as_something_else_than_json_is_refused(api: Api, path: str, media_type: str) -> None:
    answer = await api.post(path, b"{}", headers={"content-type": media_type})
    answer.problem(415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.lucius.v1+json", ""]
)
async def test_json_by_its_other_names_is_taken(api: Api, media_type: str) -> None:
    answer = await api.post("/v1/commands", api.command(), headers={"content-type": media_type})
    assert answer.status == 202


async def test_a_get_may_declare_whatever_it_likes(api: Api) -> None:
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
        ("DELETE", "/v1/jobs/x", "GET"),
        ("POST", "/v1/jobs", "GET"),
        ("GET", "/v1/jobs/x:cancel", "POST"),
        ("PATCH", "/v1/admin/outbox/retry", "POST"),
        ("POST", "/healthz", "GET"),
    ],
)
async def test_another_method_is_told_which_is_right(api: Api, method: str, path: str, allowed: str) -> None:
    answer = await api.call(method, path)
    answer.problem(405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/jobs/",
        "/v1/commands/",
        "/v1/jobs/a/b/c",
        "/v1/services/OCR!/directives:pull",
        "/v1/jobs/" + "x" * 200,
    ],
)
async def test_what_is_not_there_is_not_found(api: Api, path: str) -> None:
    for method in ("GET", "POST"):
        (await api.call(method, path)).problem(404, "NOT_FOUND")


async def test_a_client_that_hangs_up_within_its_body_leaves_nothing_behind(api: Api) -> None:
    await api.submit()
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": True}, {"type": "http.disconnect"}]
    scope = api._scope("POST", "/v1/services/ocr/directives:pull", None, None, None)

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        """Nobody listens."""

    async with asyncio.timeout(5):
        await api.app(scope, receive, send)
    assert len(await api.pull()) == 1


async def test_a_bug_of_ours_is_a_problem_too_and_says_nothing_of_itself(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("with a secret in it")

    job_id = await api.submit()
    monkeypatch.setattr(api.runtime.queries, "_view", broken)
    assert "secret" not in str((await api.get(f"/v1/jobs/{job_id}")).problem(500, "INTERNAL"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    # The outermost layer of FastAPI answers and raises again, for the server to log.
    with pytest.raises(RuntimeError):
        await api.app(api._scope("GET", f"/v1/jobs/{job_id}/steps", None, None, None), receive, send)
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["code"] == "INTERNAL"
    assert b"secret" not in sent[1]["body"]
