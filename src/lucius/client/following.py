"""Events of a job in order: the existing ones page by page, and new ones as they occur."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from lucius.client.errors import LuciusError, NotLucius, RequestRefused, Unreachable
from lucius.client.http import Http, job_path
from lucius.client.retry import NOT_EXECUTED_STATUSES
from lucius.client.waiting import TERMINAL
from lucius.contract import EventList, EventView, JobView

Events = AsyncGenerator[EventView, None]

PAGE_EVENTS = 500


async def pages(http: Http, job_id: str, after: int, retry_for: float | None = None) -> Events:
    """Yield the existing events after that sequence number."""
    cursor: int | None = after
    while cursor is not None:
        params = {"cursor": str(cursor), "limit": str(PAGE_EVENTS)}
        page = http.read(await http.get(f"{job_path(job_id)}/events", params, retry_for=retry_for), EventList)
        for event in page.events:
            yield event
        cursor = page.next_cursor


async def follow(http: Http, job_id: str, after: int, retry_for: float | None = None) -> Events:
    """Yield each event once until the job has ended, across restarts of the server."""
    tries = http.tries(retry_for)
    ended = False
    while not ended:
        broken: LuciusError | None = None
        opened = asyncio.Event()
        try:
            async with aclosing(_stream(http, job_id, after, opened.set)) as events:
                async for event in events:
                    tries.reset()
                    after = event.seq
                    yield event
        except (Unreachable, NotLucius, RequestRefused) as error:
            broken = error
        if opened.is_set() or (isinstance(broken, RequestRefused) and broken.status in NOT_EXECUTED_STATUSES):
            # A stopping server ends its streams, a proxy cuts or buffers quiet ones, and a server with too many streams
            # refuses new ones. Poll instead: if the server answers, it is not down.
            job = http.read(await http.get(job_path(job_id), retry_for=retry_for), JobView)
            ended = job.status in TERMINAL
            async for event in pages(http, job_id, after, retry_for):
                after = event.seq
                yield event
            tries.restart_period()
        if not ended:
            await tries.pause_or_raise(broken or Unreachable(http.url, "lost", "the stream ended before the job"), True)


async def _stream(http: Http, job_id: str, after: int, opened: Callable[[], None]) -> Events:
    async with aclosing(http.stream(f"{job_path(job_id)}/events", after, opened)) as sent:
        async for event in sent:
            if event.name == "end":
                return
            received = http.read(event.data, EventView)
            if received.seq > after:
                after = received.seq
                yield received
