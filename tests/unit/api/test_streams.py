"""Live updates: a job's events as server-sent events, resumable, ending with the job."""

import json

from tests.support.api import Api
from tests.unit.api.conftest import Start


async def test_events_arrive_as_they_happen_and_the_stream_ends_with_the_job(api: Api) -> None:
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
    told = [int(event["id"]) for event in rest if "id" in event]
    assert told == list(range(4, 4 + len(told)))


async def test_a_stream_resumes_after_the_last_event_that_was_seen(api: Api) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    types = await api.event_types(job_id)
    async with api.stream(f"/v1/jobs/{job_id}/events", last_event_id="2") as stream:
        assert [event["event"] for event in await stream.rest()] == [*types[2:], "end"]
    async with api.stream(f"/v1/jobs/{job_id}/events?cursor=1", last_event_id="nonsense") as stream:
        assert [event["event"] for event in await stream.rest()] == [*types[1:], "end"]
    async with api.stream(f"/v1/jobs/{job_id}/events", last_event_id="99") as stream:
        assert [event["event"] for event in await stream.rest()] == ["end"]


async def test_a_client_that_hangs_up_is_forgotten(api: Api) -> None:
    job_id = await api.submit()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        await stream.event()
        assert api.runtime.hub._watchers
    assert not api.runtime.hub._watchers


async def test_more_streams_than_there_is_room_for_are_refused(start: Start) -> None:
    api = await start()
    job_id = await api.submit()
    slots = api.app._app.state.streams  # type: ignore[attr-defined]
    while not slots.locked():
        await slots.acquire()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        assert (stream.status, stream.headers["retry-after"]) == (503, "5")
    slots.release()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        assert stream.status == 200


async def test_a_stopping_server_lets_streams_go(api: Api) -> None:
    job_id = await api.submit()
    async with api.stream(f"/v1/jobs/{job_id}/events") as stream:
        await stream.event()
        api.runtime.hub.close()
        assert (await stream.rest())[-1]["event"] == "end"
