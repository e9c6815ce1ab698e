"""A job's events, in order: what there is page by page, and what comes as it happens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from lucius.client.errors import LuciusError, NotLucius, RequestRefused, Unavailable, Unreachable
from lucius.client.http import Http, job_path
from lucius.client.waiting import TERMINAL
from lucius.contract import EventList, EventView, JobView

Events = AsyncGenerator[EventView, None]

PAGE = 500


async def pages(http: Http, job_id: str, after: int, retry_for: float | None = None) -> Events:
    """What is there now, after that sequence number."""
    cursor: int | None = after
    while cursor is not None:
        params = {"cursor": str(cursor), "limit": str(PAGE)}
        page = http.read(await http.get(f"{job_path(job_id)}/events", params, retry_for=retry_for), EventList)
        for event in page.events:
            yield event
        cursor = page.next_cursor


async def follow(http: Http, job_id: str, after: int, retry_for: float | None = None) -> Events:
    """Each event once, until the job has ended; over restarts of the server."""
    tries = http.tries(retry_for)
    ended = False
    while not ended:
        broken: LuciusError | None = None
        opened = asyncio.Event()
        try:
            async with aclosing(_stream(http, job_id, after, opened.set)) as events:
                async for event in events:
                    tries.went_well()
                    after = event.seq
                    yield event
        except (Unreachable, NotLucius, RequestRefused) as error:
            broken = error
        if opened.is_set() or isinstance(broken, Unavailable):
            # A server that stops ends its streams, a proxy cuts those that are quiet or held something back, and a
            # server with too many streams says: poll instead. If it answers now, it was not away.
            job = http.read(await http.get(job_path(job_id), retry_for=retry_for), JobView)
            ended = job.status in TERMINAL
            async for event in pages(http, job_id, after, retry_for):
                after = event.seq
                yield event
            tries.alive()
        if not ended:
            await tries.again(broken or Unreachable(http.url, "lost", "the stream ended before the job"), True)


async def _stream(http: Http, job_id: str, after: int, opened: Callable[[], None]) -> Events:
    async with aclosing(http.stream(f"{job_path(job_id)}/events", after, opened)) as sent:
        async for event in sent:
            if event.name == "end":
                return
            told = http.read(event.data, EventView)
            if told.seq > after:
                after = told.seq
                yield told
