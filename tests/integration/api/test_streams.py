"""A job's events as server-sent events: resumable, ending with the job."""

import json

import pytest

from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Api


async def test_events_arrive_live_and_the_stream_ends_with_the_job(api: Api) -> None:
    job_id = await api.submit()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        first = await stream.event()
        assert first is not None
        assert (first["id"], first["event"]) == ("1", "JOB_ACCEPTED")
        assert json.loads(first["data"])["jobId"] == job_id
        assert ((await stream.event()) or {})["event"] == "STEP_DISPATCHED"
        directive = await api.pull_one()
        assert ((await stream.event()) or {})["event"] == "STEP_HANDED_OVER"
        (await api.succeed(directive)).ok()
        rest = await stream.rest()
    assert [event["event"] for event in rest][-2:] == ["JOB_SUCCEEDED", "end"]
    told = [int(event["id"]) for event in rest[:-1]]
    assert told == list(range(4, 4 + len(told)))


async def test_stream_resumes_after_the_last_seen_event(api: Api) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    types = await api.event_types(job_id)
    async with api.stream(f"/v1/jobs/{job_id}/events", last_event_id="2") as stream:
        assert [event["event"] for event in await stream.rest()] == [*types[2:], "end"]
    async with api.stream(f"/v1/jobs/{job_id}/events?cursor=1", last_event_id="nonsense") as stream:
        assert [event["event"] for event in await stream.rest()] == [*types[1:], "end"]
    async with api.stream(f"/v1/jobs/{job_id}/events?cursor=99") as stream:
        assert [event["event"] for event in await stream.rest()] == ["end"]


async def test_reconnect_after_the_last_event_of_an_ended_job_gets_204(api: Api) -> None:
    job_id = await api.submit()
    last = len(await api.event_types(job_id))
    async with api.stream(f"/v1/jobs/{job_id}/events", last_event_id=str(last)) as stream:
        assert stream.status == 200, "the job is live"
    await api.finish(job_id)
    last = len(await api.event_types(job_id))
    for seen, status in ((last - 1, 200), (last, 204), (99, 204)):
        async with api.stream(f"/v1/jobs/{job_id}/events", last_event_id=str(seen)) as stream:
            assert stream.status == status


@pytest.mark.parametrize("beyond", [0, 90])
async def test_reconnect_after_the_end_of_a_stream_that_began_at_the_last_event_gets_204(api: Api, beyond: int) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    last = len(await api.event_types(job_id))
    path = f"/v1/jobs/{job_id}/events?cursor={last + beyond}"
    async with api.stream(path) as stream:
        (end,) = await stream.rest()
    assert (end["event"], end["id"]) == ("end", str(last))
    async with api.stream(path, last_event_id=end["id"]) as stream:
        assert stream.status == 204


async def test_stream_headers_forbid_caching_and_buffering(api: Api) -> None:
    job_id = await api.submit()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-cache", "no")


async def test_disconnected_client_is_no_longer_watched(api: Api) -> None:
    job_id = await api.submit()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        await stream.event()
        assert api.runtime.notifier.watched_jobs
    assert not api.runtime.notifier.watched_jobs


async def test_streams_beyond_the_limit_are_refused(start: Start) -> None:
    api = await start(max_streams=1)
    path = f"/v1/jobs/{await api.submit()}/events"
    async with api.stream(path) as first, api.stream(path) as stream:
        assert first.status == 200
        assert (stream.status, stream.headers["retry-after"]) == (503, "5")
    async with api.stream(path) as stream:
        assert stream.status == 200


async def test_streams_of_one_key_are_limited_without_affecting_other_keys(start: Start) -> None:
    keys = [key_entry(name, "read", tenants=("acme",)) for name in ("greedy-key", "modest-key")]
    api = await start({"api_keys": keys}, max_streams_per_key=2)
    path = f"/v1/jobs/{await api.submit()}/events"
    greedy, modest = ({"authorization": f"Bearer {name}-key"} for name in ("greedy", "modest"))
    async with api.stream(path, **greedy), api.stream(path, **greedy):
        async with api.stream(path, **greedy) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (429, "5")
            assert b'"code":"STREAM_LIMIT"' in await refused.body()
        async with api.stream(path, **modest) as stream:
            assert stream.status == 200
    async with api.stream(path, **greedy) as stream:
        assert stream.status == 200
    assert b"lucius_streams 0.0" in (await api.get("/metrics")).body


async def test_streams_of_one_tenant_are_limited_without_affecting_other_tenants(start: Start) -> None:
    api = await start(max_streams_per_tenant=1)
    acme, globex = [f"/v1/jobs/{await api.submit(tenant_id=name)}/events" for name in ("acme", "globex")]
    async with api.stream(acme), api.stream(acme) as refused, api.stream(globex) as stream:
        assert (refused.status, stream.status) == (429, 200)


async def test_stopping_server_ends_streams_without_an_end_event(api: Api) -> None:
    job_id = await api.submit()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        await stream.event()
        api.runtime.notifier.close()
        assert [event["event"] for event in await stream.rest()] == ["STEP_DISPATCHED"]
