"""The kit's orchestrator answers as the real one does, and remembers what it heard."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lucius.conformance.book import Attempt, Book
from lucius.conformance.directives import Maker
from lucius.conformance.feed import LocalFeed, Parcel
from lucius.conformance.server import Mood, Orchestrator

KEY = "the-key"


class Peer:
    """An orchestrator, and someone who talks to it."""

    def __init__(self, server: Orchestrator, news: asyncio.Event, http: aiohttp.ClientSession, folder: Path) -> None:
        self.server = server
        self.news = news
        self.http = http
        self._maker = Maker(
            base_url=server.url, folder=folder, service="ocr", step_type="OCR", input_ref="file:///x", ack_seconds=5.0
        )

    def attempt(self, lease: float = 30.0) -> Attempt:
        return self.server.book.add(self._maker.directive({}, lease_seconds=lease), 5.0)

    def send(self, attempt: Attempt) -> Attempt:
        self.server.feed.send(Parcel(attempt.directive, attempt))
        return attempt

    async def taken(self, **more: Any) -> Attempt:
        attempt = self.send(self.attempt(**more))
        await self.pull()
        return attempt

    async def pull(self, body: Any = None, key: str = KEY, service: str = "ocr") -> tuple[int, Any]:
        return await self.post(f"/v1/services/{service}/directives:pull", body or {"max": 10}, key)

    async def say(self, kind: str, attempt: Attempt, token: str | None = None, **more: Any) -> tuple[int, Any]:
        return await self.post(f"/v1/callbacks/{kind}", said(attempt, **more), token or attempt.token)

    async def post(self, path: str, body: Any, token: str, media: str = "application/json") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": media}
        data = aiohttp.payload.JsonPayload(body) if not isinstance(body, bytes) else body
        async with self.http.post(self.server.url + path, data=data, headers=headers) as response:
            return response.status, await response.json(content_type=None)


def said(attempt: Attempt, **more: Any) -> dict[str, Any]:
    key = attempt.key
    identity = {"jobId": key.job_id, "stepId": key.step_id, "attempt_no": key.attempt_no, "lease_id": key.lease_id}
    return {**identity, "tenant_id": "conformance", **more}


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    news = asyncio.Event()
    book = Book(news.set)
    server = Orchestrator(book, LocalFeed(book.handed_over), KEY, news.set)
    await server.start()
    async with aiohttp.ClientSession() as http:
        yield Peer(server, news, http, tmp_path)
    await server.away()


async def test_a_pull_waits_for_a_directive_and_takes_no_more_than_it_asked_for(peer: Peer) -> None:
    waiting = asyncio.create_task(peer.pull({"max": 1, "wait_seconds": 10}))
    await peer.news.wait()
    first, second = peer.send(peer.attempt()), peer.send(peer.attempt())
    status, body = await waiting
    assert (status, [directive["jobId"] for directive in body["directives"]]) == (200, [first.key.job_id])
    assert first.handed_over
    assert not second.handed_over


async def test_an_empty_pull_is_answered_after_the_wait_it_asked_for(peer: Peer) -> None:
    status, body = await peer.pull({"max": 1, "wait_seconds": 0.2})
    (pull,) = peer.server.pulls
    assert (status, body) == (200, {"directives": []})
    assert pull.answered_at is not None
    assert pull.answered_at - pull.at >= 0.2


async def test_a_directive_is_not_handed_to_someone_who_hung_up(peer: Peer) -> None:
    waiting = asyncio.create_task(peer.pull({"max": 1, "wait_seconds": 10}))
    await peer.news.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await peer.pull()  # a round trip later the server knows
    attempt = peer.send(peer.attempt())
    status, body = await peer.pull({"max": 1, "wait_seconds": 5})
    assert (status, len(body["directives"])) == (200, 1)
    assert len(attempt.handed_over) == 1


async def test_a_pull_for_some_lanes_gets_those_only(peer: Peer) -> None:
    attempt = peer.send(peer.attempt())
    lane = attempt.directive["lane"]
    assert (await peer.pull({"max": 5, "lanes": [(lane + 1) % 16]}))[1] == {"directives": []}
    assert len((await peer.pull({"max": 5, "lanes": [lane]}))[1]["directives"]) == 1


async def test_a_pull_for_another_service_gets_nothing(peer: Peer) -> None:
    await peer.pull()
    peer.send(peer.attempt())
    assert (await peer.pull(service="other"))[1] == {"directives": []}


@pytest.mark.parametrize(
    ("body", "key", "status"),
    [({"max": 1}, "wrong", 401), ({"max": 0}, KEY, 422), ({"most": 1}, KEY, 422), (b"{", KEY, 400)],
)
async def test_a_pull_that_is_wrong_is_refused_and_held_against_the_service(
    peer: Peer, body: Any, key: str, status: int
) -> None:
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
    assert not peer.server.book.faults()


async def test_an_answer_says_until_when_the_lease_is_and_whether_to_stop(peer: Peer) -> None:
    attempt = await peer.taken()
    _, first = await peer.say("ack", attempt)
    attempt.cancel_requested = True
    attempt.lease_seconds += 1  # or both may fall into one millisecond
    _, second = await peer.say("heartbeat", attempt)
    assert (first["cancel_requested"], second["cancel_requested"]) == (False, True)
    assert second["lease_expires_at"] > first["lease_expires_at"]


async def test_a_callback_of_a_fenced_attempt_is_stale(peer: Peer) -> None:
    attempt = await peer.taken()
    attempt.fenced = True
    status, body = await peer.say("result", attempt, status="SUCCEEDED")
    assert (status, body["disposition"], body["code"]) == (409, "STALE", "STALE_CALLBACK")
    assert attempt.ended_by is None


async def test_a_lost_lease_makes_a_heartbeat_late_and_still_takes_a_success(peer: Peer) -> None:
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
async def test_what_no_orchestrator_takes_is_refused_and_held_against_the_service(
    peer: Peer, more: dict[str, Any], status: int, words: str
) -> None:
    attempt = await peer.taken()
    answered, body = await peer.say("result", attempt, **{"status": "SUCCEEDED", **more})
    assert (answered, body["status"]) == (status, status)
    assert words in peer.server.book.faults()[0]
    assert attempt.ended_by is None


async def test_a_body_that_is_not_said_to_be_json_is_refused(peer: Peer) -> None:
    attempt = await peer.taken()
    status, _ = await peer.post("/v1/callbacks/ack", said(attempt), attempt.token, media="text/plain")
    assert status == 415


async def test_two_copies_of_a_directive_are_taken_one_by_one(peer: Peer) -> None:
    attempt = peer.send(peer.send(peer.attempt()))
    taken = [len((await peer.pull({"max": 1}))[1]["directives"]) for _ in range(3)]
    assert taken == [1, 1, 0]
    assert len(attempt.handed_over) == 2


async def test_a_body_may_have_a_mebibyte_and_a_batch_sixteen(peer: Peer) -> None:
    attempts = [await peer.taken() for _ in range(2)]
    items = [
        {"type": "result", "callback_token": one.token, **said(one, status="SUCCEEDED", result="x" * 600_000)}
        for one in attempts
    ]
    status, body = await peer.post("/v1/callbacks:batch", {"callbacks": items}, "")
    assert (status, [one["status"] for one in body["results"]]) == (200, [200, 200])
    assert not peer.server.faults
    status, body = await peer.say("result", attempts[0], status="SUCCEEDED", result="x" * 1_200_000)
    assert (status, body["code"]) == (413, "BODY_TOO_LARGE")
    assert "more than 1048576 bytes" in peer.server.faults[0]


async def test_a_callback_is_taken_where_its_directive_says_only(peer: Peer) -> None:
    attempt = await peer.taken()
    urls = {kind: f"{peer.server.elsewhere_url}/hooks/1/{kind}-of-it?for=2" for kind in ("ack", "result")}
    attempt.directive["callback_urls"] |= urls
    async with peer.http.post(
        urls["ack"], json=said(attempt), headers={"Authorization": f"Bearer {attempt.token}"}
    ) as response:
        assert (await response.json())["disposition"] == "APPLIED"
    assert (await peer.say("heartbeat", attempt))[0] == 200
    assert not peer.server.book.faults()
    status, _ = await peer.say("result", attempt, status="SUCCEEDED")
    batched = {"type": "result", "callback_token": attempt.token, **said(attempt, status="SUCCEEDED")}
    _, batch = await peer.post("/v1/callbacks:batch", {"callbacks": [batched]}, "")
    assert (status, batch["results"][0]["status"]) == (404, 404)
    assert "and its directive's callback_urls name" in peer.server.book.faults()[0]


async def test_a_surprise_in_the_kit_is_not_taken_for_the_services_fault(peer: Peer) -> None:
    attempt = await peer.taken()
    attempt.answers = lambda _: 1 // 0  # type: ignore[assignment,return-value]
    async with peer.http.post(
        f"{peer.server.url}/v1/callbacks/ack", json=said(attempt), headers={"Authorization": f"Bearer {attempt.token}"}
    ) as response:
        assert response.status == 500
    assert isinstance(peer.server.surprise, ZeroDivisionError)
    assert not peer.server.faults


async def test_a_batch_answers_each_callback_on_its_own_in_order(peer: Peer) -> None:
    good, other = await peer.taken(), await peer.taken()
    items = [
        {"type": "ack", "callback_token": good.token, **said(good)},
        {"type": "result", "callback_token": good.token, **said(other, status="SUCCEEDED")},
        {"type": "result", "callback_token": good.token, **said(good, status="SUCCEEDED")},
    ]
    status, body = await peer.post("/v1/callbacks:batch", {"callbacks": items}, "")
    assert status == 200
    assert [one["status"] for one in body["results"]] == [200, 403, 200]
    assert [one.get("disposition") for one in body["results"]] == ["APPLIED", None, "APPLIED"]


async def test_away_it_refuses_connections_and_it_comes_back_with_all_it_knew(peer: Peer) -> None:
    attempt = await peer.taken()
    await peer.say("ack", attempt)
    await peer.server.away()
    with pytest.raises(aiohttp.ClientConnectionError):
        await peer.say("heartbeat", attempt)
    await peer.server.back()
    assert (await peer.say("ack", attempt))[1]["disposition"] == "DUPLICATE"


async def test_a_mood_refuses_without_hearing_or_hears_without_answering(peer: Peer) -> None:
    attempt = await peer.taken()
    moods = [Mood(lose_answer=True), Mood(status=503, retry_after=2)]
    peer.server.on_callbacks = lambda _: moods.pop() if moods else None
    status, body = await peer.say("ack", attempt)
    assert (status, body["retry_after_seconds"], attempt.acked_at) == (503, 2, None)
    with pytest.raises(aiohttp.ClientConnectionError):
        await peer.say("ack", attempt)
    assert attempt.acked_at is not None
