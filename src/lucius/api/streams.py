"""Event streams (SSE) of jobs."""

from collections.abc import AsyncIterator

import msgspec
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lucius.api.slots import RequestSlots
from lucius.usecases.access.auth import Principal
from lucius.usecases.errors import Rejected
from lucius.usecases.queries.jobs import JobEnded, Queries

QUIET_SECONDS = 15.0
NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Tells caches and proxies (nginx) to pass each event on at once."""

_encode = msgspec.json.Encoder().encode


class EventStream(StreamingResponse):
    """A job's events as they happen; holds a slot from before its first byte until after its last."""

    def __init__(
        self, queries: Queries, slots: RequestSlots, principal: Principal, job_id: str, tenant_id: str, after: int
    ) -> None:
        events = encode_events(queries, job_id, principal, after)
        super().__init__(events, media_type="text/event-stream", headers=NO_BUFFERING)
        self._slots = slots
        self._key, self._tenant = principal.name, tenant_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slots.hold(self._key, self._tenant):
            await super().__call__(scope, receive, send)


def stream_headers() -> StreamingResponse:
    """Return a stream's headers without any event."""
    return StreamingResponse(_no_events(), media_type="text/event-stream", headers=NO_BUFFERING)


async def _no_events() -> AsyncIterator[bytes]:
    for event in tuple[bytes, ...]():
        yield event


async def encode_events(queries: Queries, job_id: str, who: Principal, after: int) -> AsyncIterator[bytes]:
    """Encode events until the job has ended, as `event: end` says; without it the client should reconnect.

    A browser reconnects anyway, with the `id` of `end`, and is then told by 204 to stop.
    """
    try:
        async for event in queries.follow(job_id, who, after, QUIET_SECONDS):
            match event:
                case None:
                    yield b": still here\n\n"
                case JobEnded(last_seq):
                    yield b"id: %d\nevent: end\ndata: {}\n\n" % last_seq
                case _:
                    yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), _encode(event))
    except Rejected:  # the key was revoked, or the job is gone: the status has left, so the stream just ends
        return
