"""The control plane in this process: API, engine or both behind uvicorn, until told to stop."""

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
from lucius.cli.errors import CliError, Misused
from lucius.drain import Drain
from lucius.observability.readiness import Role
from lucius.settings import Settings
from lucius.wiring import Runtime, open_runtime

KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """The address is ours before anything is opened, so that a port that is taken costs nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: Exception) -> CliError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return CliError(f"port {port} on {host} is taken: stop what listens there, or choose another with --port")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Misused(f"can't listen on {host} port {port}: {reason}")


def base_url(listener: socket.socket) -> str:
    """How this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


@asynccontextmanager
async def serving(
    settings: Settings, listener: socket.socket, drain: Drain, role: Role = Role.WHOLE
) -> AsyncIterator[asyncio.Task[None]]:
    """A control plane that answers on `listener`; the task ends only if the server does."""
    _log_through_structlog()
    async with open_runtime(settings, role=role, drain=drain) as runtime:
        app = health_app if role in (Role.ENGINE, Role.WORKER) else create_app
        config = uvicorn.Config(
            app(lambda: nullcontext(runtime)),
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
        )
        server = _Server(config)
        collect_less()
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield task
        finally:
            await _let_go(runtime, server, task)


async def _let_go(runtime: Runtime, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Requests in flight are answered, and no new ones taken. What the engine has under way comes after that."""
    drain, settings = runtime.drain, runtime.settings
    await drain.pause(settings.drain_delay)  # until those who send us requests have seen that we want no more
    drain.start_clock(settings.drain_seconds)
    runtime.hub.close()  # long polls and streams end now, and not when their time is over
    server.should_exit = True
    await drain.unless_at_once(serving)
    server.force_exit = True
    await asyncio.wait({serving})


@asynccontextmanager
async def driving(settings: Settings, drain: Drain, role: Role) -> AsyncIterator[None]:
    """The engine alone, and nobody who could ask how it is."""
    async with open_runtime(settings, role=role, drain=drain):
        try:
            yield
        finally:
            drain.start_clock(settings.drain_seconds)


class _Server(uvicorn.Server):
    """Signals are the command's business: it has children to stop first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def drain_on_signals() -> Drain:
    """SIGINT or SIGTERM asks for the end, a second one for it at once; a third is the system's to answer."""
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
    """Until a signal, or the server's own end, which is an error."""
    stopping = asyncio.create_task(drain.asked.wait())
    await asyncio.wait({server, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if server.done():
        server.result()
        raise CliError("the server stopped by itself; its log says why")


class _ToStructlog(logging.Handler):
    """What uvicorn and asyncio have to say, in the same form as all else."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


def _log_through_structlog() -> None:
    logging.basicConfig(handlers=[_ToStructlog()], level=logging.WARNING, force=True)
