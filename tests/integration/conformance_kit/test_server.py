"""The kit's orchestrator answers as the real one does, and records what it receives."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lucius.conformance.attempt_log import AttemptLog, PlayedAttempt
from lucius.conformance.directives import DirectiveFactory
from lucius.conformance.feed import LocalFeed, QueuedMessage
from lucius.conformance.server import GRACE_SECONDS, Orchestrator, ResponseOverride

KEY = "the-key"


class Peer:
    """An orchestrator and an HTTP client for it."""

    def __init__(self, server: Orchestrator, news: asyncio.Event, http: aiohttp.ClientSession, folder: Path) -> None:
        self.server = server
        self.news = news
        self.http = http
        self._directive_factory = DirectiveFactory(
            base_url=server.url, folder=folder, service="ocr", step_type="OCR", input_ref="file:///x", ack_seconds=5.0
        )

    def attempt(self, lease: float = 30.0) -> PlayedAttempt:
        return self.server.attempt_log.add(self._directive_factory.directive({}, lease_seconds=lease), 5.0)

    def send(self, attempt: PlayedAttempt) -> PlayedAttempt:
        self.server.feed.send(QueuedMessage(attempt.directive, attempt))
        return attempt

    async def taken(self, **more: Any) -> PlayedAttempt:
        attempt = self.send(self.attempt(**more))
        await self.pull()
        return attempt

    async def pull(self, body: Any = None, key: str = KEY, service: str = "ocr") -> tuple[int, Any]:
        return await self.post(f"/v1/services/{service}/directives:pull", body or {"max": 10}, key)

    async def say(self, kind: str, attempt: PlayedAttempt, token: str | None = None, **more: Any) -> tuple[int, Any]:
        return await self.post(f"/v1/callbacks/{kind}", callback_body(attempt, **more), token or attempt.token)

    async def post(self, path: str, body: Any, token: str, media: str = "application/json") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": media}
        data = aiohttp.payload.JsonPayload(body) if not isinstance(body, bytes) else body
        async with self.http.post(self.server.url + path, data=data, headers=headers) as response:
            return response.status, await response.json(content_type=None)


def callback_body(attempt: PlayedAttempt, **more: Any) -> dict[str, Any]:
    key = attempt.key
    identity = {"jobId": key.job_id, "stepId": key.step_id, "attempt_no": key.attempt_no, "lease_id": key.lease_id}
    return {**identity, "tenant_id": "conformance", **more}


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    news = asyncio.Event()
    attempt_log = AttemptLog(news.set)
    server = Orchestrator(attempt_log, LocalFeed(attempt_log.handed_over), KEY, news.set)
    await server.start()
    async with aiohttp.ClientSession() as http:
        yield Peer(server, news, http, tmp_path)
    await server.go_offline()


async def test_pull_waits_for_a_directive_and_takes_at_most_its_max(peer: Peer) -> None:
    waiting = asyncio.create_task(peer.pull({"max": 1, "wait_seconds": 10}))
    await peer.news.wait()
    first, second = peer.send(peer.attempt()), peer.send(peer.attempt())
    status, body = await waiting
    assert (status, [directive["jobId"] for directive in body["directives"]]) == (200, [first.key.job_id])
    assert first.handed_over
    assert not second.handed_over


async def test_empty_pull_is_answered_after_its_wait(peer: Peer) -> None:
    status, body = await peer.pull({"max": 1, "wait_seconds": 0.2})
    (pull,) = peer.server.pulls
    assert (status, body) == (200, {"directives": []})
    assert pull.answered_at is not None
    assert pull.answered_at - pull.at >= 0.2


async def test_directive_is_not_handed_to_a_disconnected_client(peer: Peer) -> None:
    waiting = asyncio.create_task(peer.pull({"max": 1, "wait_seconds": 10}))
    await peer.news.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await peer.pull()  # after one round trip the server has noticed the disconnect
    attempt = peer.send(peer.attempt())
    status, body = await peer.pull({"max": 1, "wait_seconds": 5})
    assert (status, len(body["directives"])) == (200, 1)
    assert len(attempt.handed_over) == 1


async def test_pull_gets_directives_of_its_lanes_only(peer: Peer) -> None:
    attempt = peer.send(peer.attempt())
    lane = attempt.directive["lane"]
    assert (await peer.pull({"max": 5, "lanes": [(lane + 1) % 16]}))[1] == {"directives": []}
    assert len((await peer.pull({"max": 5, "lanes": [lane]}))[1]["directives"]) == 1


async def test_pull_of_another_service_gets_nothing(peer: Peer) -> None:
    await peer.pull()
    peer.send(peer.attempt())
    assert (await peer.pull(service="other"))[1] == {"directives": []}


@pytest.mark.parametrize(
    ("body", "key", "status"),
    [({"max": 1}, "wrong", 401), ({"max": 0}, KEY, 422), ({"most": 1}, KEY, 422), (b"{", KEY, 400)],
)
async def test_invalid_pull_is_refused_and_recorded_as_a_fault(peer: Peer, body: Any, key: str, status: int) -> None:
    assert (await peer.pull(body, key))[0] == status
    assert len(peer.server.faults) == 1


async def test_ack_heartbeat_and_result_are_applied_once(peer: Peer) -> None:
    attempt = await peer.taken()
    dispositions = [
        (await peer.say("ack", attempt))[1]["disposition"],
        (await peer.say("ack", attempt))[1]["disposition"],
        (await peer.say("heartbeat", attempt, progress=0.5))[1]["disposition"],
        (await peer.say("result", attempt, status="SUCCEEDED", result=1))[1]["disposition"],
        (await peer.say("result", attempt, status="SUCCEEDED", result=1, at="later"))[1]["disposition"],
        (await peer.say("result", attempt, status="SUCCEEDED", result=2))[1]["disposition"],
        (await peer.say("heartbeat", attempt))[1]["disposition"],
    ]
    assert dispositions == ["APPLIED", "DUPLICATE", "APPLIED", "APPLIED", "DUPLICATE", "LATE", "LATE"]
    assert not peer.server.attempt_log.faults()


async def test_callback_answer_has_lease_expiry_and_cancel_request(peer: Peer) -> None:
    attempt = await peer.taken()
    _, first = await peer.say("ack", attempt)
    attempt.cancel_requested = True
    attempt.lease_seconds += 1  # otherwise both may have the same millisecond
    _, second = await peer.say("heartbeat", attempt)
    assert (first["cancel_requested"], second["cancel_requested"]) == (False, True)
    assert second["lease_expires_at"] > first["lease_expires_at"]


async def test_callback_of_a_fenced_attempt_is_stale(peer: Peer) -> None:
    attempt = await peer.taken()
    attempt.fenced = True
    status, body = await peer.say("result", attempt, status="SUCCEEDED")
    assert (status, body["disposition"], body["code"]) == (409, "STALE", "STALE_CALLBACK")
    assert attempt.ended_by is None


async def test_heartbeat_after_a_lost_lease_is_late_and_a_success_is_applied(peer: Peer) -> None:
    attempt = await peer.taken(lease=0.05)
    await peer.say("ack", attempt)
    attempt.lease_until = 0.0
    _, beat = await peer.say("heartbeat", attempt)
    _, end = await peer.say("result", attempt, status="SUCCEEDED")
    assert (beat["disposition"], bool(beat["lease_expires_at"]), end["disposition"]) == ("LATE", True, "APPLIED")


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"token": "nobody's"}, 401, "came with the token nobody's"),
        ({"lease_id": "mine"}, 403, "names another lease_id 'mine'"),
        ({"attempt_no": 2}, 403, "names another attempt_no 2"),
        ({"status": "OK"}, 422, "does not fit the contract"),
        ({"status": "SUCCEEDED", "artifact_refs": "one"}, 422, "does not fit the contract"),
    ],
)
async def test_invalid_callback_is_refused_and_recorded_as_a_fault(
    peer: Peer, more: dict[str, Any], status: int, words: str
) -> None:
    attempt = await peer.taken()
    answered, body = await peer.say("result", attempt, **{"status": "SUCCEEDED", **more})
    assert (answered, body["status"]) == (status, status)
    assert words in peer.server.attempt_log.faults()[0]
    assert attempt.ended_by is None


async def test_body_without_json_content_type_is_refused(peer: Peer) -> None:
    attempt = await peer.taken()
    status, _ = await peer.post("/v1/callbacks/ack", callback_body(attempt), attempt.token, media="text/plain")
    assert status == 415


async def test_two_copies_of_a_directive_are_pulled_separately(peer: Peer) -> None:
    attempt = peer.send(peer.send(peer.attempt()))
    taken = [len((await peer.pull({"max": 1}))[1]["directives"]) for _ in range(3)]
    assert taken == [1, 1, 0]
    assert len(attempt.handed_over) == 2


async def test_body_limits_are_one_mebibyte_and_sixteen_for_a_batch(peer: Peer) -> None:
    attempts = [await peer.taken() for _ in range(2)]
    items = [
        {"type": "result", "callback_token": one.token, **callback_body(one, status="SUCCEEDED", result="x" * 600_000)}
        for one in attempts
    ]
    status, body = await peer.post("/v1/callbacks:batch", {"callbacks": items}, attempts[0].token)
    assert (status, [one["status"] for one in body["results"]]) == (200, [200, 200])
    assert not peer.server.faults
    status, _ = await peer.post("/v1/callbacks:batch", {"callbacks": items}, "")
    assert (status, len(peer.server.faults)) == (413, 1), "without Authorization a batch is as any body"
    status, body = await peer.say("result", attempts[0], status="SUCCEEDED", result="x" * 1_200_000)
    assert (status, body["code"]) == (413, "BODY_TOO_LARGE")
    assert "more than 1048576 bytes" in peer.server.faults[1]


async def test_callback_is_accepted_only_at_the_url_of_its_directive(peer: Peer) -> None:
    attempt = await peer.taken()
    urls = {kind: f"{peer.server.client_url}/hooks/1/{kind}-of-it?for=2" for kind in ("ack", "result")}
    attempt.directive["callback_urls"] |= urls
    async with peer.http.post(
        urls["ack"], json=callback_body(attempt), headers={"Authorization": f"Bearer {attempt.token}"}
    ) as response:
        assert (await response.json())["disposition"] == "APPLIED"
    assert (await peer.say("heartbeat", attempt))[0] == 200
    assert not peer.server.attempt_log.faults()
    status, _ = await peer.say("result", attempt, status="SUCCEEDED")
    batched = {"type": "result", "callback_token": attempt.token, **callback_body(attempt, status="SUCCEEDED")}
    _, batch = await peer.post("/v1/callbacks:batch", {"callbacks": [batched]}, "")
    assert (status, batch["results"][0]["status"]) == (404, 404)
    assert "and its directive's callback_urls name" in peer.server.attempt_log.faults()[0]


async def test_error_of_the_kit_is_not_a_fault_of_the_service(peer: Peer) -> None:
    attempt = await peer.taken()
    attempt.answers = lambda _: 1 // 0  # type: ignore[assignment,return-value]
    async with peer.http.post(
        f"{peer.server.url}/v1/callbacks/ack",
        json=callback_body(attempt),
        headers={"Authorization": f"Bearer {attempt.token}"},
    ) as response:
        assert response.status == 500
    assert isinstance(peer.server.internal_error, ZeroDivisionError)
    assert not peer.server.faults


async def test_batch_answers_each_callback_separately_in_order(peer: Peer) -> None:
    good, other = await peer.taken(), await peer.taken()
    items = [
        {"type": "ack", "callback_token": good.token, **callback_body(good)},
        {"type": "result", "callback_token": good.token, **callback_body(other, status="SUCCEEDED")},
        {"type": "result", "callback_token": good.token, **callback_body(good, status="SUCCEEDED")},
    ]
    status, body = await peer.post("/v1/callbacks:batch", {"callbacks": items}, "")
    assert status == 200
    assert [one["status"] for one in body["results"]] == [200, 403, 200]
    assert [one.get("disposition") for one in body["results"]] == ["APPLIED", None, "APPLIED"]


async def test_absent_server_refuses_connections_and_keeps_its_state(peer: Peer) -> None:
    attempt = await peer.taken()
    await peer.say("ack", attempt)
    await peer.server.go_offline()
    with pytest.raises(aiohttp.ClientConnectionError):
        await peer.say("heartbeat", attempt)
    await peer.server.go_online()
    assert (await peer.say("ack", attempt))[1]["disposition"] == "DUPLICATE"


async def test_planned_fault_refuses_a_callback_or_loses_its_answer(peer: Peer) -> None:
    attempt = await peer.taken()
    overrides = [ResponseOverride(lose_answer=True), ResponseOverride(status=503, retry_after=2)]
    peer.server.on_callbacks = lambda _: overrides.pop() if overrides else None
    status, body = await peer.say("ack", attempt)
    assert (status, body["retry_after_seconds"], attempt.acked_at) == (503, 2, None)
    with pytest.raises(aiohttp.ClientConnectionError):
        await peer.say("ack", attempt)
    assert attempt.acked_at is not None


@pytest.mark.parametrize("kind", ["ack", "heartbeat"])
async def test_callback_about_an_unsent_directive_is_answered(peer: Peer, kind: str) -> None:
    malformed_messages = peer.attempt()
    status, body = await peer.say(kind, malformed_messages)
    assert (status, body["disposition"]) == (200, "APPLIED")
    assert peer.server.internal_error is None


async def test_pull_that_ends_as_the_server_leaves_logs_no_error(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def arrive(seconds: float) -> None:
        began.set()
        await ended.wait()
        peer.server.answers_at_once = True

    monkeypatch.setattr(peer.server.feed, "arrival", arrive)
    pull = asyncio.create_task(peer.pull({"max": 1, "wait_seconds": 20}))
    await began.wait()
    loop = asyncio.get_running_loop()
    loop.call_later(GRACE_SECONDS / 2, ended.set)
    leaves = asyncio.create_task(peer.server.go_offline())
    for _ in range(10):
        await asyncio.sleep(0)
    loop.call_soon(time.sleep, GRACE_SECONDS * 2)  # so that the pull and its timeout end in the same turn of the loop
    await leaves
    await asyncio.gather(pull, return_exceptions=True)
    assert [record.message for record in caplog.records if record.name == "aiohttp.server"] == []
