"""A job's events: each once and in order, over cut streams and restarts."""

import asyncio
from contextlib import ExitStack, aclosing
from typing import Any

import pytest
from aiohttp import web

from lucius.client import AsyncClient, NotFound, Unreachable
from tests.integration.cli.support import event, job, stream
from tests.integration.client.support import OCR, Proxy, Server, client
from tests.support.peer import peer


async def follow(lucius: AsyncClient, job_id: str, **options: Any) -> list[tuple[int, str]]:
    return [(event.seq, event.type) async for event in lucius.stream(job_id, **options)]


async def events_of(server: Server, job_id: str) -> list[tuple[int, str]]:
    return list(enumerate(await server.api.event_types(job_id), start=1))


async def test_events_are_listed_across_pages(
    lucius: AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.client.following.PAGE_EVENTS", 2)
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    await server.api.finish(job_id)
    told = [(event.seq, event.type) async for event in lucius.events(job_id)]
    assert told == await events_of(server, job_id)
    assert [event.seq async for event in lucius.events(job_id, after=3)] == [seq for seq, _ in told[3:]]


async def test_stream_yields_events_until_the_job_has_ended(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    following = asyncio.create_task(follow(lucius, job_id))
    directive = await server.api.pull_one()
    await server.api.callback("ack", directive)
    await server.api.succeed(directive)
    told = await following
    assert told == await events_of(server, job_id)
    assert told[-1][1] == "JOB_SUCCEEDED"
    assert await follow(lucius, job_id, after=len(told) - 1) == told[-1:]


async def test_stream_survives_restarts_without_loss_or_repeats(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR_EMBEDDING", **OCR)).jobId
    following = asyncio.create_task(follow(lucius, job_id))
    directive = await server.api.pull_one("ocr")
    await asyncio.sleep(0.1)
    await server.restart(away=0.2)
    await server.api.succeed(directive)
    directive = await server.api.pull_one("embedding")
    await server.restart()
    await server.api.succeed(directive)
    async with asyncio.timeout(20):
        assert await following == await events_of(server, job_id)


async def test_events_during_a_closed_stream_arrive_later(lucius: AsyncClient, server: Server) -> None:
    """The job ends between the end of the stream and the next request: its last events must arrive all the same."""
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    directive = await server.api.pull_one()
    following = asyncio.create_task(follow(lucius, job_id))
    await asyncio.sleep(0.1)
    server.api.runtime.notifier.close()
    await server.api.succeed(directive)
    async with asyncio.timeout(20):
        assert await following == await events_of(server, job_id)


@pytest.mark.parametrize("events", [1, 2, 3])
async def test_repeatedly_cut_stream_continues_after_the_last_event(
    proxied: AsyncClient, network: Proxy, server: Server, events: int
) -> None:
    """It lasts longer than `retry_for`: each event restarts that period."""
    network.cut_after_events = events
    job_id = (await proxied.submit("OCR", **OCR)).jobId
    for _ in range(5):
        await proxied.pause(job_id)
        await proxied.resume(job_id)
    following = asyncio.create_task(follow(proxied, job_id, retry_for=0.5))
    await asyncio.sleep(0.2)
    await server.api.finish(job_id)
    async with asyncio.timeout(20):
        assert await following == await events_of(server, job_id)
    assert sum(b"text/event-stream" in head for head in network.heads) > 1


@pytest.mark.parametrize(("key", "taken"), [("other-{}", 500), ("dev", 100)])
async def test_server_without_free_streams_is_polled(
    lucius: AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch, key: str, taken: int
) -> None:
    monkeypatch.setattr("lucius.client.retry.pause_after", lambda *_: 0.2)  # the server asks for 5 s
    slots = server.api.app.app.state.streams  # type: ignore[attr-defined]
    held = ExitStack()
    for i in range(taken):
        held.enter_context(slots.hold(key.format(i), f"tenant-{i}"))
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    events = lucius.stream(job_id)
    async with asyncio.timeout(3):
        assert [(await anext(events)).type for _ in range(2)] == ["JOB_ACCEPTED", "STEP_DISPATCHED"]
    await server.api.finish(job_id)
    held.close()
    async with asyncio.timeout(10):
        rest = [event.type async for event in events]
    assert rest[-1] == "JOB_SUCCEEDED"


async def test_stream_after_the_last_event_is_empty(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    await server.api.finish(job_id)
    told = await events_of(server, job_id)
    async with asyncio.timeout(10):
        assert await follow(lucius, job_id, after=len(told)) == []


async def test_stream_gives_up_on_a_server_that_stays_down(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    following = asyncio.create_task(follow(lucius, job_id, retry_for=0.5))
    await asyncio.sleep(0.1)
    await server.stop()
    async with asyncio.timeout(15):
        with pytest.raises(Unreachable):
            await following


async def test_unknown_job_has_no_events(lucius: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await follow(lucius, "nope")
    with pytest.raises(NotFound):
        await anext(lucius.events("nope"))


async def test_closed_stream_is_no_longer_watched_by_the_server(lucius: AsyncClient, server: Server) -> None:
    job_id = (await lucius.submit("OCR", **OCR)).jobId
    async with aclosing(lucius.stream(job_id)) as events:
        assert (await anext(events)).type == "JOB_ACCEPTED"
        assert server.api.runtime.notifier.watched_jobs
    for _ in range(500):
        if not server.api.runtime.notifier.watched_jobs:
            break
        await asyncio.sleep(0.01)
    assert not server.api.runtime.notifier.watched_jobs


async def test_stream_has_its_own_retry_budget(server: Server) -> None:
    """A caller that does not retry requests may still want to follow a job over a restart."""
    async with client(server.url, retry_for=0) as lucius:
        job_id = (await lucius.submit("OCR", **OCR)).jobId
        directive = await server.api.pull_one()
        following = asyncio.create_task(follow(lucius, job_id, retry_for=10))
        await asyncio.sleep(0.1)
        await server.restart(away=0.3)
        await server.api.succeed(directive)
        async with asyncio.timeout(15):
            assert await following == await events_of(server, job_id)


async def test_restarted_stream_yields_no_event_twice() -> None:
    """Not every proxy forwards Last-Event-ID."""
    told = [event(n, "E") for n in (1, 2, 3)]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "last-event-id" in request.headers:
            seen = sum("last-event-id" in one.headers for one in there.seen)
            body = stream(*told[: min(seen + 1, 3)], ended=seen > 2)
            return web.Response(body=body, content_type="text/event-stream")
        if request.path.endswith("/events"):
            return web.json_response({"events": [], "next_cursor": None})
        ended = sum("last-event-id" in one.headers for one in there.seen) > 2
        return web.json_response(job(status="SUCCEEDED" if ended else "IN_PROGRESS"))

    async with peer() as there, client(there.url) as lucius:
        there.answer = answer
        assert await follow(lucius, "j-1") == [(1, "E"), (2, "E"), (3, "E")]


async def test_network_without_streams_is_polled_while_the_job_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lucius.client.retry.pause_after", lambda *_: 0.2)
    looks = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal looks
        if "last-event-id" in request.headers:
            return web.Response(body=b"", content_type="text/event-stream")
        if request.path.endswith("/events"):
            told = [event(n, "E") for n in range(int(request.query["cursor"]) + 1, looks + 1)]
            return web.json_response({"events": told, "next_cursor": None})
        looks += 1
        return web.json_response(job(status="SUCCEEDED" if looks > 4 else "IN_PROGRESS"))

    async with peer() as there, client(there.url, retry_for=0) as lucius:
        there.answer = answer
        # Each of the four pauses is within `retry_for`, their sum is not: the server answers, and that suffices.
        assert await follow(lucius, "j-1", retry_for=0.3) == [(n, "E") for n in range(1, 6)]


async def test_request_after_a_stream_has_the_retry_budget_of_the_stream() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "last-event-id" in request.headers:
            return web.Response(body=stream(event(1, "E")), content_type="text/event-stream")
        if len(there.seen) % 2 == 0:  # every second request is lost
            return web.Response(status=502, text="bad gateway")
        if request.path.endswith("/events"):
            return web.json_response({"events": [event(2, "E")], "next_cursor": None})
        return web.json_response(job())

    async with peer() as there, client(there.url, retry_for=0) as lucius:
        there.answer = answer
        assert await follow(lucius, "j-1", retry_for=5) == [(1, "E"), (2, "E")]


async def test_streams_cut_before_their_first_event_use_up_no_retry_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job waits for an approval behind a proxy that cuts long connections: the server was never down."""
    monkeypatch.setattr("lucius.client.retry.pause_after", lambda *_: 0.2)
    cuts = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal cuts
        if "last-event-id" in request.headers:
            opened = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await opened.prepare(request)
            await opened.write(b": ping\n\n" if cuts < 4 else stream(event(1, "E"), ended=True))
            if cuts < 4 and request.transport is not None:
                request.transport.abort()
            cuts += 1
            return opened
        if request.path.endswith("/events"):
            return web.json_response({"events": [], "next_cursor": None})
        return web.json_response(job(status="SUCCEEDED" if cuts > 4 else "IN_PROGRESS"))

    async with peer() as there, client(there.url, retry_for=0) as lucius:
        there.answer = answer
        assert await follow(lucius, "j-1", retry_for=0.3) == [(1, "E")]


async def test_events_held_back_by_a_buffering_proxy_arrive_by_polling() -> None:
    """With a buffering proxy every stream opens, and none delivers anything."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "last-event-id" in request.headers:
            opened = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await opened.prepare(request)
            assert request.transport is not None
            request.transport.abort()
            return opened
        if request.path.endswith("/events"):
            return web.json_response({"events": [event(1, "E")], "next_cursor": None})
        return web.json_response(job())

    async with peer() as there, client(there.url) as lucius:
        there.answer = answer
        async with asyncio.timeout(5):
            assert await follow(lucius, "j-1", retry_for=1) == [(1, "E")]
