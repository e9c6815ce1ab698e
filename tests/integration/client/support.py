"""A real control plane on a real port that can be stopped and restarted, and an unreliable network in front of it."""

import asyncio
import re
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from lucius.client import AsyncClient
from tests.support.api import KEY, Api, serving, settings_for
from tests.support.ports import free_port

WITHIN = 10.0
OCR: dict[str, Any] = {"tenant": "acme", "input": "blob://in/a.pdf", "output": "blob://out/a.json"}


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self.stops = asyncio.Event()

    async def main_loop(self) -> None:
        await self.stops.wait()  # at once, not at the next tick

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """Runs on the same port and the same ledger every time. Tests use `api` to act as services."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        here = {"ledger_url": f"sqlite:///{folder / 'ledger.db'}", "dev_file_roots": (str(folder),)}
        self._settings = settings_for(folder / "server", **here, **settings)
        self._running: AsyncExitStack | None = None
        self.api: Api

    async def start(self) -> None:
        self._running = AsyncExitStack()
        self.api = await self._running.enter_async_context(serving(self._settings))
        await self._running.enter_async_context(self._listening())

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()

    async def restart(self, away: float = 0.0) -> None:
        await self.stop()
        await asyncio.sleep(away)
        await self.start()

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        config = uvicorn.Config(self.api.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = _Uvicorn(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(WITHIN):
            await server.listens.wait()
        try:
            yield
        finally:
            self.api.runtime.notifier.close()  # as a stopping server does: long polls and streams end
            server.stops.set()
            await task
            listener.close()


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    server = Server(folder, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


Fault = str
"""Fate of one request: pass, cut (the answer is lost), late (the answer takes a second), hang (no answer),
refuse (no connection), or a status that the proxy itself answers, such as `502`.
"""


class Proxy:
    """Proxy between client and server: each request meets the next fault of the plan; when it is used up, they pass."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.plan: deque[Fault] = deque()
        self.seen: list[str] = []
        self.heads: list[bytes] = []
        self.cut_after_events: int | None = None
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _message(reader):
                self.seen.append(request.split(b" HTTP/", 1)[0].decode())
                self.heads.append(request.partition(b"\r\n\r\n")[0])
                fault = self.plan.popleft() if self.plan else "pass"
                if not await self._meet(fault, request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _meet(self, fault: Fault, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Apply the fault; return True if the connection stays open."""
        if fault == "hang":
            await asyncio.sleep(WITHIN)
            return False
        if fault.isdigit():
            page = b"<html>no</html>"
            head = f"HTTP/1.1 {fault} Nope\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"
            writer.write(head.encode() + page)
            await writer.drain()
            return True
        reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            upstream.write(request)
            await upstream.drain()
            if b"text/event-stream" in request:
                await self._pass_stream(reader, writer)
                return False
            answer = await _message(reader)
        finally:
            upstream.close()
        if fault == "cut":
            return False
        if fault == "late":
            await asyncio.sleep(1)
        writer.write(answer)
        await writer.drain()
        return True

    async def _pass_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cut_after_events
        while chunk := await reader.read(65536):
            if left is not None:
                ends = [found.end() for found in re.finditer(rb"data: [^\n]*\n\n", chunk)]
                if len(ends) >= left:
                    writer.write(chunk[: ends[left - 1]])
                    await writer.drain()
                    return
                left -= len(ends)
            writer.write(chunk)
            await writer.drain()
            if chunk.endswith(b"0\r\n\r\n"):
                return


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Return one complete request or response; empty at the end of the stream."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    return head + await reader.readexactly(length)


@asynccontextmanager
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    made = Proxy(server.port)
    listening = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listening.close()


def client(url: str, **options: Any) -> AsyncClient:
    return AsyncClient(url, **{"api_key": KEY, "retry_for": 10.0, "timeout": 5.0, **options})


@contextmanager
def server_in_a_thread(folder: Path, **settings: Any) -> Iterator[tuple[Server, Callable[[Any], Any]]]:
    """Run a server beside blocking code; yield it with a function that runs a coroutine in the server's loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(WITHIN)

    server = Server(folder, **settings)
    do(server.start())
    try:
        yield server, do
    finally:
        do(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WITHIN)
        loop.close()


@contextmanager
def unused_address() -> Iterator[str]:
    """Yield an address that refuses connections and that no other process gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
