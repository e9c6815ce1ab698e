"""HTTP endpoints `/healthz`, `/readyz` and `/metrics` of a service process."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from lucius.worker.callbacks import CallbackSender
from lucius.worker.definition import ServiceDefinition
from lucius.worker.hooks import Hook, call_hook
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import Runtime
from lucius.worker.settings import BadSetting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log: structlog.stdlib.BoundLogger = structlog.get_logger()

CHECK_TIMEOUT_SECONDS = 5.0
NOT_READY = "not ready"


class Health:
    """Liveness, readiness and metrics of one process."""

    def __init__(
        self,
        services: Sequence[ServiceDefinition],
        runtimes: Mapping[str, Runtime],
        sender: CallbackSender,
        metrics: Metrics,
    ) -> None:
        self._checks = {
            f"{service.name}.{name}": ReadinessCheck(f"{service.name}.{name}", hook)
            for service in services
            for name, hook in service.checks.items()
        }
        self._versions = {service.name: service.version for service in services if service.version}
        self._runtimes = runtimes
        self._sender = sender
        self._metrics = metrics

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Return whether no service is stuck, and the details. An answer at all shows that the event loop runs."""
        stuck = sorted(name for name, runtime in self._runtimes.items() if runtime.is_stuck)
        said: dict[str, Any] = {"status": "stuck" if stuck else "ok"}
        if self._versions:
            said["versions"] = self._versions
        if stuck:
            said["stuck"] = stuck
        return not stuck, said

    async def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return readiness and details: each service's last pull answered, callbacks accepted, all checks passed."""
        services = {name: runtime.is_ready for name, runtime in self._runtimes.items()}
        said = await asyncio.gather(*(check.run() for check in self._checks.values()))
        checks = dict(zip(self._checks, said, strict=True))
        cut_off = self._sender.is_unreachable
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


class ReadinessCheck:
    """Readiness check of a service author. One call runs at a time; callers wait at most 5 s for its answer."""

    def __init__(self, name: str, hook: Hook) -> None:
        self._name = name
        self._hook = hook
        self._running: asyncio.Task[str] | None = None

    async def run(self) -> str:
        asked = self._running
        if asked is None or asked.done():
            asked = self._running = asyncio.create_task(self._run())
        done, _ = await asyncio.wait({asked}, timeout=CHECK_TIMEOUT_SECONDS)
        return asked.result() if done else f"no answer within {CHECK_TIMEOUT_SECONDS:g} s"

    async def _run(self) -> str:
        try:
            said = await call_hook(self._hook, f"check {self._name}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            kind = type(error).__name__  # the text may hold a password: logged at debug level only
            log.warning("not ready", check=self._name, reason=kind)
            log.debug("not ready", check=self._name, reason=kind, text=str(error))
            return kind
        if said is False:
            log.warning("not ready", check=self._name, reason=NOT_READY)
            return NOT_READY
        return "ok"


@asynccontextmanager
async def health_server(port: int, health: Health, address: str = "127.0.0.1") -> "AsyncIterator[int]":
    """Serve until the context is left; yield the port, which differs if 0 was given. Raises BadSetting."""

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
