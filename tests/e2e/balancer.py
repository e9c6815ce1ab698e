"""TCP load balancer: one address before several servers; connects to any that accepts."""

import asyncio
import contextlib
import random
from typing import Self

CHUNK = 65_536


class Balancer:
    def __init__(self, port: int, backends: list[int]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._backends = backends
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes between client and a backend; without a backend, abort the connection."""
        backend = await self._connect()
        if backend is not None:
            there, back = _copy(reader, backend[1]), _copy(backend[0], writer)
            copies = [asyncio.create_task(copy) for copy in (there, back)]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                backend[1].transport.abort()
        writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in random.sample(self._backends, len(self._backends)):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
