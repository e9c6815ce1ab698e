"""`/healthz`, `/readyz` and `/metrics` of a service process, for whoever keeps it running."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lucius.worker.callbacks import CallbackSender
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import Runtime
from lucius.worker.service import Hook, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHECK_SECONDS = 5.0


class Health:
    """What the process says about itself."""

    def __init__(
        self, services: Sequence[Service], runtimes: Mapping[str, Runtime], sender: CallbackSender, metrics: Metrics
    ) -> None:
        self._services = services
        self._runtimes = runtimes
        self._sender = sender
        self._metrics = metrics

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether going on makes sense. That this was answered says that the loop turns."""
        stuck = sorted(name for name, runtime in self._runtimes.items() if runtime.stuck)
        return not stuck, {"status": "stuck" if stuck else "ok", **({"stuck": stuck} if stuck else {})}

    async def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether each service's last pull was answered, and what its author checks is there."""
        services = {name: runtime.ready for name, runtime in self._runtimes.items()}
        checks = {
            f"{service.name}.{name}": await _check(hook)
            for service in self._services
            for name, hook in service.checks.items()
        }
        good = bool(services) and all(services.values()) and all(said == "ok" for said in checks.values())
        return good, {"status": "ok" if good else "unavailable", "services": services, "checks": checks}

    def metrics(self) -> bytes:
        for name, runtime in self._runtimes.items():
            self._metrics.running.labels(name).set(len(runtime.attempts))
            self._metrics.stray.labels(name).set(runtime.stray)
        self._metrics.undelivered.set(self._sender.undelivered)
        return self._metrics.text()


async def _check(hook: Hook) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await (hook() if inspect.iscoroutinefunction(hook) else asyncio.to_thread(hook))
    except Exception as error:  # noqa: BLE001 - an author's check may raise anything: that is its answer
        return f"{type(error).__name__}: {error}"
    return "ok"


@asynccontextmanager
async def health_server(port: int, health: Health, address: str = "0.0.0.0") -> "AsyncIterator[int]":
    """Serve until left; yields the port, which matters when asked for port 0."""

    async def healthz(_: web.Request) -> web.Response:
        good, said = health.live()
        return web.json_response(said, status=200 if good else 503)

    async def readyz(_: web.Request) -> web.Response:
        good, said = await health.ready()
        return web.json_response(said, status=200 if good else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=health.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
