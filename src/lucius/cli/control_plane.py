"""The control plane in this process: API, engine or both behind uvicorn, until a signal."""

import asyncio
import errno
import logging
import math
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import structlog
import uvicorn

from lucius.api.app import collect_less, create_app, health_app
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.drain import Drain
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import Settings
from lucius.cli.connections import Connections, fit_connections, limited_protocol
from lucius.cli.errors import CliError, Misused
from lucius.observability.readiness import Role

BACKLOG_CONNECTIONS = 2048


def listen(host: str, port: int) -> socket.socket:
    """Bind the address before anything else is opened, so that a port in use fails early. Raises CliError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG_CONNECTIONS)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: Exception) -> CliError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return CliError(
            f"port {port} on {host} is in use: stop the program that listens there, or choose another with --port"
        )
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Misused(f"can't listen on {host} port {port}: {reason}")


def base_url(listener: socket.socket) -> str:
    """Return the URL by which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


@asynccontextmanager
async def serving(
    settings: Settings, listener: socket.socket, drain: Drain, role: Role = Role.WHOLE, *, announce: bool = False
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve a control plane on `listener` during the block; the task ends only if the server does."""
    _log_through_structlog()
    async with open_runtime(settings, role=role, drain=drain) as runtime:
        app = health_app if role in (Role.ENGINE, Role.WORKER) else create_app
        config = uvicorn.Config(
            app(lambda: nullcontext(runtime)),
            log_config=None,
            access_log=False,
            lifespan="on",
            http=limited_protocol(Connections(settings, runtime.metrics, fit_connections(settings.max_connections))),
            ws="none",
            h11_max_incomplete_event_size=settings.max_header_bytes,
            timeout_keep_alive=math.ceil(settings.idle_timeout),
            timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
        )
        server = _Server(config)
        collect_less()
        task = asyncio.create_task(server.serve(sockets=[listener]))
        if announce:
            _log_start(runtime, listener, role)
        try:
            yield task
        finally:
            await _shut_down(runtime, server, task)


def _log_start(runtime: ControlPlane, listener: socket.socket, role: Role) -> None:
    """Log in one line what this process serves, so that an operator sees a wrong setting at once."""
    settings = runtime.settings
    structlog.get_logger().info(
        "control plane started",
        address=base_url(listener),
        ledger=settings.ledger_shown,
        bus=settings.bus_shown,
        engine=settings.engine if role is Role.WHOLE else f"{settings.engine}, in other processes",
        keys=runtime.auth.key_count,
    )


async def _shut_down(runtime: ControlPlane, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Stop the server: finish requests in flight and take no new ones. The engine's own work ends after that."""
    drain, settings = runtime.drain, runtime.settings
    await drain.pause(settings.drain_delay)  # until load balancers have seen that this process takes no more requests
    drain.start_clock(settings.drain_seconds)
    runtime.notifier.close()  # long polls and streams end now rather than at their timeout
    server.should_exit = True
    await drain.unless_at_once(serving)
    server.force_exit = True
    await asyncio.wait({serving})


@asynccontextmanager
async def driving(settings: Settings, drain: Drain, role: Role) -> AsyncIterator[None]:
    """Run the engine alone during the block, without an HTTP server for health checks."""
    async with open_runtime(settings, role=role, drain=drain):
        try:
            yield
        finally:
            drain.start_clock(settings.drain_seconds)


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers: the command stops its children first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def drain_on_signals() -> Drain:
    """Return a drain that the first SIGINT or SIGTERM asks for; the second asks for an immediate end.

    A third is handled by the system's default.
    """
    drain = Drain()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        drain.ask()
        if drain.at_once.is_set():
            for number in numbers:
                loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    return drain


async def until_stopped(server: asyncio.Task[None], drain: Drain) -> None:
    """Wait for a signal, or the server's own end, which is an error. Raises CliError."""
    stopping = asyncio.create_task(drain.asked.wait())
    await asyncio.wait({server, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if server.done():
        server.result()
        raise CliError("the server stopped by itself; see its log for the reason")


class _ToStructlog(logging.Handler):
    """Passes log records of uvicorn and asyncio to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


def _log_through_structlog() -> None:
    logging.basicConfig(handlers=[_ToStructlog()], level=logging.WARNING, force=True)
