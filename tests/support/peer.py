"""A real HTTP server for testing outgoing calls: it records requests and returns configured answers."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec import Struct

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Seen(Struct, frozen=True):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """Records requests. `answer` may be replaced at any time; requests wait until `gate` is set."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.seen: list[Seen] = []
        self.at_once = 0
        self.most_at_once = 0
        self._came = asyncio.Condition()
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Handler = ok

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append(Seen(request.method, request.path_qs, headers, await request.read()))
        async with self._came:
            self._came.notify_all()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
            return await self.answer(request)
        finally:
            self.at_once -= 1

    async def saw(self, count: int) -> None:
        """Wait until `count` requests have arrived."""
        async with asyncio.timeout(5), self._came:
            await self._came.wait_for(lambda: len(self.seen) >= count)


async def ok(request: web.Request) -> web.StreamResponse:
    return web.json_response({"ok": True})


def always(status: int = 200, body: Any = None, *, text: str | None = None, **headers: str) -> Handler:
    """Return a handler with a constant answer; underscores in header names become dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(request: web.Request) -> web.StreamResponse:
        if text is not None:
            return web.Response(status=status, text=text, headers=named)
        written = {"Content-Type": "application/json", **named}
        return web.Response(status=status, body=json.dumps(body).encode(), headers=written)

    return answer


def in_turn(*answers: Handler) -> Handler:
    """Return a handler that gives the answers in order and repeats the last one."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


@asynccontextmanager
async def peer(tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    server = Peer()
    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server.port = runner.addresses[0][1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.port}"
    try:
        yield server
    finally:
        server.gate.set()
        await runner.cleanup()
