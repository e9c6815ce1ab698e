"""`/healthz`, `/readyz` and `/metrics` of a service process, for whoever keeps it running."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from lucius.worker.callbacks import CallbackSender
from lucius.worker.hooks import Hook, call_hook
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import Runtime
from lucius.worker.service import Service
from lucius.worker.settings import BadSetting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log: structlog.stdlib.BoundLogger = structlog.get_logger()

CHECK_SECONDS = 5.0
SAID_NO = "not ready"


class Health:
    """What the process says about itself."""

    def __init__(
        self, services: Sequence[Service], runtimes: Mapping[str, Runtime], sender: CallbackSender, metrics: Metrics
    ) -> None:
        self._checks = {
            f"{service.name}.{name}": Check(f"{service.name}.{name}", hook)
            for service in services
            for name, hook in service.checks.items()
        }
        self._versions = {service.name: service.version for service in services if service.version}
        self._runtimes = runtimes
        self._sender = sender
        self._metrics = metrics

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether going on makes sense. That this was answered says that the loop turns."""
        stuck = sorted(name for name, runtime in self._runtimes.items() if runtime.stuck)
        said: dict[str, Any] = {"status": "stuck" if stuck else "ok"}
        if self._versions:
            said["versions"] = self._versions
        if stuck:
            said["stuck"] = stuck
        return not stuck, said

    async def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether each service's last pull was answered, callbacks are taken, and what its author checks is there."""
        services = {name: runtime.ready for name, runtime in self._runtimes.items()}
        said = await asyncio.gather(*(check.ask() for check in self._checks.values()))
        checks = dict(zip(self._checks, said, strict=True))
        cut_off = self._sender.cut_off
        good = bool(services) and all(
            (*services.values(), *(answer == "ok" for answer in checks.values()), not cut_off)
        )
        told: dict[str, Any] = {"status": "ok" if good else "unavailable", "services": services, "checks": checks}
        if cut_off:
            told["callbacks"] = f"{self._sender.undelivered} wait: the control plane does not answer"
        return good, told

    def metrics(self) -> bytes:
        for name, runtime in self._runtimes.items():
            self._metrics.running.labels(name).set(len(runtime.attempts))
            self._metrics.stray.labels(name).set(runtime.stray)
        self._metrics.undelivered.set(self._sender.undelivered)
        return self._metrics.text()


class Check:
    """An author's check. However long it takes, it runs once at a time, and everyone is answered soon."""

    def __init__(self, name: str, hook: Hook) -> None:
        self._name = name
        self._hook = hook
        self._running: asyncio.Task[str] | None = None

    async def ask(self) -> str:
        asked = self._running
        if asked is None or asked.done():
            asked = self._running = asyncio.create_task(self._run())
        done, _ = await asyncio.wait({asked}, timeout=CHECK_SECONDS)
        return asked.result() if done else f"no answer within {CHECK_SECONDS:g} s"

    async def _run(self) -> str:
        try:
            said = await call_hook(self._hook, f"check {self._name}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            kind = type(error).__name__  # its text may hold a password: for those only who ask for every detail
            log.warning("not ready", check=self._name, reason=kind)
            log.debug("not ready", check=self._name, reason=kind, text=str(error))
            return kind
        if said is False:
            log.warning("not ready", check=self._name, reason=SAID_NO)
            return SAID_NO
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
        try:
            await web.TCPSite(runner, address, port).start()
        except OSError as error:
            raise BadSetting(f"LUCIUS_HEALTH_PORT: can't listen on {port}: {error.strerror}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
