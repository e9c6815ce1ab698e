"""`/healthz` and `/readyz` of a service process, for whoever keeps it running."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def health_server(
    port: int, ready: Callable[[], dict[str, bool]], address: str = "0.0.0.0"
) -> "AsyncIterator[int]":
    """Serve until left; yields the port, which matters when asked for port 0."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        services = ready()
        good = bool(services) and all(services.values())
        return web.json_response(
            {"status": "ok" if good else "unavailable", "services": services}, status=200 if good else 503
        )

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
