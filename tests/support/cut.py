"""A TCP proxy in front of a server that can pass requests on and drop the responses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CutLine:
    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.deaf = False
        """While true, responses are dropped and connections stay open."""
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.hang_up()

    def hang_up(self) -> None:
        """Close every open connection."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, to_there = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, to_there}
        both = [self._pass_on(reader, to_there, False), self._pass_on(there, writer, True)]
        await asyncio.wait([asyncio.create_task(one) for one in both], return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, to_there):
            end.close()
            self._writers.discard(end)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        while data := await reader.read(65536):
            if not (answers and self.deaf):
                writer.write(data)


@asynccontextmanager
async def cut_line(port: int) -> AsyncIterator[CutLine]:
    line = CutLine(port)
    await line.start()
    try:
        yield line
    finally:
        await line.stop()
