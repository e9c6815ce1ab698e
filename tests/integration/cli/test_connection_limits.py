"""Limits on connections, with both of uvicorn's HTTP implementations, over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest

from lucius.adapters.ledger.memory.store import open_memory
from lucius.bootstrap.settings import Settings, load_settings
from lucius.cli.connections import Connections, limited_protocol
from lucius.observability.metrics import Metrics
from lucius.usecases.errors import Rejected
from tests.support.clock import ManualClock
from tests.support.until import until

HOST = "127.0.0.1"
WITHIN = 15.0
LARGE_BYTES = 4_000_000
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


class Running:
    def __init__(self, port: int, metrics: Metrics) -> None:
        self.port = port
        self._metrics = metrics

    async def connect(self) -> "Wire":
        async with asyncio.timeout(WITHIN):
            return Wire(*await asyncio.open_connection(HOST, self.port))

    def metric(self, line: str) -> float:
        found = [row for row in generate_latest(self._registry).decode().splitlines() if row.startswith(line)]
        return float(found[0].split()[-1]) if found else 0.0

    @property
    def _registry(self) -> CollectorRegistry:
        return self._metrics.registry


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> str:
        async with asyncio.timeout(WITHIN):
            return (await self._reader.readuntil(b"\r\n\r\n")).decode()

    async def answer(self) -> tuple[int, bytes]:
        head = (await self.head()).lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        async with asyncio.timeout(WITHIN):
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def problem(self) -> tuple[int, str]:
        """Return the refusal, which must be the only response before the connection closes."""
        async with asyncio.timeout(WITHIN):
            said = await self._reader.read()
        head, _, body = said.partition(b"\r\n\r\n")
        assert b"application/problem+json" in head
        assert b"connection: close" in head
        return int(head.split()[1]), json.loads(body)["code"]

    async def read(self, length: int) -> bytes:
        async with asyncio.timeout(WITHIN):
            return await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        async with asyncio.timeout(WITHIN):
            return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body and answer; `/slow` waits first, `/early` does not read, `/stream` does not end."""
    if scope["type"] != "http":
        return
    more = scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(0.6)
    if scope["path"] == "/stream":
        await _stream(receive, send)
        return
    body = bytes(LARGE_BYTES) if scope["path"] == "/large" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


async def _stream(receive: Any, send: Any) -> None:
    gone = asyncio.ensure_future(receive())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not gone.done():
        await send({"type": "http.response.body", "body": bytes(1_000), "more_body": True})
        await asyncio.sleep(0)


Serve = Callable[..., Awaitable[Running]]


@pytest.fixture(params=["h11", "httptools"])
async def serve(request: pytest.FixtureRequest) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def serve(**limits: Any) -> Running:
            quick = {"header_timeout": 0.3, "body_timeout": 0.3, "idle_timeout": 30.0, "trusted_proxies": ()}
            settings = load_settings({}, **{**quick, **limits})
            return await stack.enter_async_context(serving(settings, request.param))

        yield serve


@asynccontextmanager
async def serving(settings: Settings, implementation: str) -> AsyncIterator[Running]:
    metrics = Metrics(open_memory().jobs, open_memory().reviews, ManualClock())
    protocol = limited_protocol(Connections(settings, metrics), implementation)
    config = uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        h11_max_incomplete_event_size=settings.max_header_bytes,
        timeout_keep_alive=int(settings.idle_timeout),
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server((HOST, 0)) as listener:
        task = asyncio.create_task(server._serve(sockets=[listener]))
        await until(lambda: server.started)
        yield Running(listener.getsockname()[1], metrics)
        server.should_exit = server.force_exit = True
        await task


async def test_complete_request_is_answered_and_the_connection_kept(serve: Serve) -> None:
    wire = await (await serve()).connect()
    for _ in range(3):
        await wire.send(POST + b"body")
        assert await wire.answer() == (200, b"ok")
    await wire.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nho"])
async def test_late_head_is_refused(serve: Serve, sent: bytes) -> None:
    running = await serve()
    wire = await running.connect()
    await wire.send(sent)
    assert await wire.problem() == (408, "REQUEST_TIMEOUT")
    assert running.metric('lucius_connections_refused_total{code="REQUEST_TIMEOUT"}') == 1
    await wire.close()


async def test_slowly_sent_head_gets_no_more_time_on_a_kept_connection(serve: Serve) -> None:
    wire = await (await serve()).connect()
    await wire.send(GET)
    assert await wire.answer() == (200, b"ok")
    dripping = asyncio.create_task(_drip(wire, b"GET / HTTP/1.1\r\nx-a: " + b"a" * 1000))
    assert await wire.problem() == (408, "REQUEST_TIMEOUT")
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    await wire.close()


async def _drip(wire: Wire, data: bytes) -> None:
    for i in range(len(data)):
        await wire.send(data[i : i + 1])
        await asyncio.sleep(0.02)


async def test_late_body_is_refused(serve: Serve) -> None:
    running = await serve()
    wire = await running.connect()
    await wire.send(POST + b"bo")
    assert await wire.problem() == (408, "REQUEST_TIMEOUT")
    await wire.close()


async def test_slow_answer_has_no_deadline(serve: Serve) -> None:
    wire = await (await serve()).connect()
    await wire.send(b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody")
    assert await wire.answer() == (200, b"ok")
    await wire.send(GET)
    assert await wire.answer() == (200, b"ok")
    await wire.close()


async def test_idle_connection_is_closed_silently(serve: Serve) -> None:
    wire = await (await serve(idle_timeout=1.0)).connect()
    await wire.send(GET)
    assert await wire.answer() == (200, b"ok")
    assert await wire.rest() == b""
    await wire.close()


@pytest.mark.parametrize("is_whole", [True, False])
async def test_oversized_head_is_refused(serve: Serve, is_whole: bool) -> None:
    running = await serve(max_header_bytes=2048)
    wire = await running.connect()
    await wire.send(b"GET / HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 4000 + (b"\r\n\r\n" if is_whole else b""))
    assert await wire.problem() == (431, "HEADERS_TOO_LARGE")
    assert running.metric('lucius_connections_refused_total{code="HEADERS_TOO_LARGE"}') == 1
    wire = await running.connect()
    await wire.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n" + b"b" * 9000)
    assert await wire.answer() == (200, b"ok"), "a body is not part of the head"
    await wire.close()


async def test_connections_over_the_limit_are_refused_until_one_is_closed(serve: Serve) -> None:
    running = await serve(max_connections=2, header_timeout=30.0)
    wires = [await running.connect() for _ in range(2)]
    await until(lambda: running.metric("lucius_connections ") == 2)
    refused = await running.connect()
    assert await refused.problem() == (503, "CONNECTION_LIMIT")
    await wires[0].close()
    await until(lambda: running.metric("lucius_connections ") == 1)
    again = await running.connect()
    await again.send(GET)
    assert await again.answer() == (200, b"ok")
    for wire in (*wires, again, refused):
        await wire.close()


async def test_connections_of_one_address_over_its_limit_are_refused(serve: Serve) -> None:
    running = await serve(max_connections_per_address=1, header_timeout=30.0)
    first = await running.connect()
    await until(lambda: running.metric("lucius_connections ") == 1)
    refused = await running.connect()
    assert await refused.problem() == (429, "ADDRESS_LIMIT")
    await first.close()
    await refused.close()


async def test_trusted_proxy_has_no_limit(serve: Serve) -> None:
    trusted = load_settings({"LUCIUS_TRUSTED_PROXIES": "10.0.0.0/8, 127.0.0.1"}).trusted_proxies
    running = await serve(max_connections_per_address=1, trusted_proxies=trusted)
    wires = [await running.connect() for _ in range(3)]
    for wire in wires:
        await wire.send(GET)
        assert await wire.answer() == (200, b"ok")
        await wire.close()


def _count_taken(limits: Connections, peers: list[str]) -> int:
    taken = 0
    for peer in peers:
        with suppress(Rejected):
            limits.take(peer)
            taken += 1
    return taken


def _limits(**changes: Any) -> Connections:
    return Connections(
        load_settings({}, max_connections_per_address=2, **changes),
        Metrics(open_memory().jobs, open_memory().reviews, ManualClock()),
    )


@pytest.mark.parametrize(
    ("peers", "taken"),
    [
        (["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"], 2),
        (["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:3"], 2),
        (["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1"], 3),
        (["fe80::1%eth0", "fe80::2%eth0", "fe80::3%eth0"], 3),
        (["127.0.0.1"] * 3, 3),
        (["::ffff:127.0.0.1"] * 3, 3),
        (["::1"] * 3, 3),
        ([""] * 3, 3),
    ],
)
def test_connections_of_one_client_are_counted_together_on_an_ipv6_socket(peers: list[str], taken: int) -> None:
    limits = _limits(trusted_proxies=load_settings({}).trusted_proxies)
    assert _count_taken(limits, peers) == taken


def test_released_connection_of_an_ipv6_client_makes_room_for_its_next() -> None:
    limits = _limits()
    assert _count_taken(limits, ["2001:db8::1", "2001:db8::2"]) == 2
    limits.release("2001:db8::1")
    assert _count_taken(limits, ["2001:db8::3", "2001:db8::4"]) == 1


async def test_unread_body_does_not_count_as_a_head(serve: Serve) -> None:
    wire = await (await serve(max_header_bytes=2048, body_timeout=30.0, header_timeout=30.0)).connect()
    await wire.send(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n")
    assert await wire.answer() == (200, b"ok")
    await wire.send(b"b" * 200_000 + GET)
    assert await wire.answer() == (200, b"ok")
    await wire.close()


async def test_queued_request_gets_its_deadline_after_the_one_before(serve: Serve) -> None:
    wire = await (await serve()).connect()
    slow = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"
    await wire.send(slow + slow + POST)
    assert await wire.answer() == (200, b"ok")
    assert await wire.answer() == (200, b"ok")
    assert await wire.problem() == (408, "REQUEST_TIMEOUT")
    await wire.close()


def _connect_without_reading(port: int, data: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((HOST, port))
    client.sendall(data)
    return client


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 3, id="pipelined"),
        pytest.param(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", id="last"),
        pytest.param(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n", id="stream"),
    ],
)
async def test_client_that_does_not_read_is_disconnected(serve: Serve, sent: bytes) -> None:
    running = await serve()
    with _connect_without_reading(running.port, sent):
        await until(lambda: running.metric("lucius_connections ") == 1)
        await until(lambda: running.metric("lucius_connections ") == 0)


async def test_slow_reader_gets_a_large_answer_completely(serve: Serve) -> None:
    running = await serve(body_timeout=1.0)
    wire = await running.connect()
    await wire.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    await wire.head()
    for _ in range(40):
        assert len(await wire.read(LARGE_BYTES // 40)) == LARGE_BYTES // 40
        await asyncio.sleep(0.05)
    assert running.metric("lucius_connections ") == 1
    await wire.close()
