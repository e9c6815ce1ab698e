"""The suite that every bus passes, from a consumer's side: what services may rely on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis
from aiohttp import web

from lucius.adapters.bus.local import LocalConsumer, PullRefused
from lucius.adapters.bus.memory import MemoryBus
from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.adapters.bus.redis.publisher import RedisPublisher
from lucius.contract import Directive
from lucius.ports.bus import Consumer, Publisher
from lucius.ports.errors import BusDown, MessageRefused
from tests.conformance.control_plane import QUIET, ControlPlaneUnderTest, control_plane
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive, fake_orchestrator, until
from tests.support.redis import RedisServer


class Bus(Protocol):
    """A bus under test."""

    async def offer(self, *directives: Directive) -> None: ...
    def consumer(self, service: str, lanes: Iterable[int] | None = None) -> Consumer: ...
    async def go_down(self) -> None: ...
    async def come_up(self) -> None: ...
    def waiting(self) -> int:
        """Return the number of pulls that have reached the bus."""


class PushBus(Bus, Protocol):
    """A bus to which the relay publishes."""

    @property
    def publisher(self) -> Publisher: ...


class MemoryHarness:
    def __init__(self) -> None:
        self.bus = self.publisher = MemoryBus()

    async def offer(self, *directives: Directive) -> None:
        for one in directives:
            await self.bus.publish(f"global-bus-p{one.lane}", one)

    def consumer(self, service: str, lanes: Iterable[int] | None = None) -> Consumer:
        return self.bus.consumer(service, lanes)

    async def go_down(self) -> None:
        self.bus.down = True

    async def come_up(self) -> None:
        self.bus.down = False

    def waiting(self) -> int:
        return self.bus.waiting_count


class LocalHarness:
    """Tests LocalConsumer over real HTTP against a real control plane; directives are offered as jobs."""

    def __init__(self, plane: ControlPlaneUnderTest) -> None:
        self._plane = plane

    async def offer(self, *directives: Directive) -> None:
        for one in directives:
            number = int(one.correlation_id.removeprefix("job-"))
            await self._plane.submit(number, one.service, one.lane, payload=one.payload, doc_id=one.doc_id)

    def consumer(self, service: str, lanes: Iterable[int] | None = None) -> Consumer:
        return self._plane.consumer(service, lanes)

    async def go_down(self) -> None:
        await self._plane.stop()

    async def come_up(self) -> None:
        await self._plane.start()

    def waiting(self) -> int:
        return self._plane.waiting()


class RedisHarness:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.publisher = RedisPublisher(server.url)
        self._consumers: list[RedisConsumer] = []

    async def offer(self, *directives: Directive) -> None:
        for one in directives:
            await self.publisher.publish(f"global-bus-p{one.lane}", one)

    def consumer(self, service: str, lanes: Iterable[int] | None = None) -> Consumer:
        consumer = RedisConsumer(self._server.url, service, lanes)
        self._consumers.append(consumer)
        return consumer

    async def go_down(self) -> None:
        self._server.stop()

    async def come_up(self) -> None:
        self._server.start()

    def waiting(self) -> int:
        with redis.Redis.from_url(self._server.url) as client:
            return int(client.info("clients")["blocked_clients"])

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        await self.publisher.close()


@asynccontextmanager
async def memory_bus(_: Path) -> AsyncIterator[PushBus]:
    yield MemoryHarness()


@asynccontextmanager
async def local_bus(folder: Path) -> AsyncIterator[Bus]:
    async with control_plane(folder, **QUIET) as plane:
        yield LocalHarness(plane)


@asynccontextmanager
async def redis_bus(folder: Path) -> AsyncIterator[PushBus]:
    server = RedisServer(folder, durable=True).start()
    bus = RedisHarness(server)
    try:
        yield bus
        await bus.close()
    finally:
        server.stop()


PUSH_BUSES: dict[str, Callable[[Path], AbstractAsyncContextManager[PushBus]]] = {
    "memory": memory_bus,
    "redis": redis_bus,
}
BUSES: dict[str, Callable[[Path], AbstractAsyncContextManager[Bus]]] = {**PUSH_BUSES, "local": local_bus}


@pytest.fixture(params=BUSES)
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bus]:
    async with BUSES[request.param](tmp_path) as bus:
        yield bus


@pytest.fixture(params=PUSH_BUSES)
async def push_bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PushBus]:
    async with PUSH_BUSES[request.param](tmp_path) as bus:
        yield bus


def expected_directive(number: int, **changes: Any) -> Directive:
    """Return the expected directive. Orchestrators choose their own ids, so the correlation id carries the number."""
    return directive(number=number, correlation_id=f"job-{number}", **changes)


def jobs(directives: list[Directive]) -> list[str]:
    return [one.correlation_id for one in directives]


async def test_directive_arrives_as_it_was_sent(bus: Bus) -> None:
    sent = expected_directive(1, service="sis", payload={"prompt_set": ["ä"], "min_score": 0.5}, doc_id="d", lane=7)
    await bus.offer(sent)
    (got,) = await bus.consumer("sis").pull(10, 0)
    assert (got.correlation_id, got.service, got.lane, got.doc_id) == ("job-1", "sis", 7, "d")
    assert sent.payload.items() <= got.payload.items()


async def test_directives_are_pulled_oldest_first_up_to_the_limit(bus: Bus) -> None:
    await bus.offer(*(expected_directive(number) for number in range(5)))
    consumer = bus.consumer("ocr")
    assert jobs(await consumer.pull(2, 0)) == ["job-0", "job-1"]
    assert jobs(await consumer.pull(10, 0)) == ["job-2", "job-3", "job-4"]


async def test_a_directive_is_handed_out_once(bus: Bus) -> None:
    await bus.offer(*(expected_directive(number) for number in range(20)))
    pulled = await asyncio.gather(*(bus.consumer("ocr").pull(3, 0) for _ in range(10)))
    found = [job for directives in pulled for job in jobs(directives)]
    assert sorted(found) == sorted(f"job-{number}" for number in range(20))


async def test_pull_without_waiting_on_an_empty_bus_returns_at_once(bus: Bus) -> None:
    assert await bus.consumer("ocr").pull(1, 0) == []


async def test_pull_returns_empty_when_its_wait_ends(bus: Bus) -> None:
    assert await bus.consumer("ocr").pull(1, 0.01) == []


async def test_waiting_pull_gets_a_new_directive(bus: Bus) -> None:
    waiting = asyncio.create_task(bus.consumer("ocr").pull(1, 30))
    await until(lambda: bus.waiting() == 1)
    await bus.offer(expected_directive(1))
    assert jobs(await asyncio.wait_for(waiting, 10)) == ["job-1"]


async def test_consumer_gets_only_directives_of_its_service(bus: Bus) -> None:
    await bus.offer(expected_directive(1, service="sis"), expected_directive(2))
    assert jobs(await bus.consumer("ocr").pull(10, 0)) == ["job-2"]
    assert jobs(await bus.consumer("sis").pull(10, 0)) == ["job-1"]


async def test_consumer_of_some_lanes_leaves_other_lanes_alone(bus: Bus) -> None:
    await bus.offer(*(expected_directive(lane, lane=lane) for lane in range(16)))
    assert jobs(await bus.consumer("ocr", [2, 5]).pull(10, 0)) == ["job-2", "job-5"]
    assert len(await bus.consumer("ocr").pull(100, 0)) == 14


async def test_cancelled_pull_loses_no_directive(bus: Bus) -> None:
    waiting = asyncio.create_task(bus.consumer("ocr").pull(1, 30))
    await until(lambda: bus.waiting() == 1)
    waiting.cancel()
    await asyncio.wait({waiting})
    await bus.go_down()
    await bus.come_up()
    await bus.offer(expected_directive(1))
    assert jobs(await bus.consumer("ocr").pull(1, 0)) == ["job-1"]


async def test_pull_from_a_bus_that_is_down_raises_and_loses_nothing(bus: Bus) -> None:
    await bus.offer(expected_directive(1))
    consumer = bus.consumer("ocr")
    await bus.go_down()
    with pytest.raises(BusDown):
        await consumer.pull(1, 0)
    await bus.come_up()
    assert jobs(await consumer.pull(1, 0)) == ["job-1"]


async def test_settled_directive_is_not_delivered_again(bus: Bus) -> None:
    await bus.offer(expected_directive(1), expected_directive(2))
    consumer = bus.consumer("ocr")
    directives = await consumer.pull(10, 0)
    assert await consumer.settle(directives) == [True, True]
    assert await bus.consumer("ocr").pull(10, 0) == []


async def test_ping_of_a_publisher_fails_while_the_bus_is_down(push_bus: PushBus) -> None:
    publisher = push_bus.publisher
    await publisher.ping()
    await push_bus.go_down()
    with pytest.raises(BusDown):
        await publisher.ping()
    await push_bus.come_up()
    await publisher.ping()


class TestMemory:
    async def test_publish_to_a_full_queue_raises_bus_down(self) -> None:
        bus = MemoryBus(capacity=1)
        await bus.publish("t", directive(number=1))
        with pytest.raises(BusDown):
            await bus.publish("t", directive(number=2))
        await bus.publish("t", directive(number=3, service="sis"))

    async def test_memory_bus_refuses_messages_selected_by_the_test(self) -> None:
        bus = MemoryBus(refuse=lambda one: one.jobId == "job-2")
        await bus.publish("t", directive(number=1))
        with pytest.raises(MessageRefused):
            await bus.publish("t", directive(number=2))

    async def test_publish_and_waiting_pulls_fail_while_the_memory_bus_is_down(self) -> None:
        bus = MemoryBus()
        waiting = asyncio.create_task(bus.consumer("ocr").pull(1, 30))
        await until(lambda: bus.waiting_count > 0)
        bus.down = True
        with pytest.raises(BusDown):
            await bus.publish("t", directive())
        with pytest.raises(BusDown):
            await waiting


class TestLocal:
    @pytest.fixture
    async def orchestrator(self) -> AsyncIterator[FakeOrchestrator]:
        async with fake_orchestrator() as server:
            yield server

    @pytest.fixture
    async def consumer(self, orchestrator: FakeOrchestrator) -> AsyncIterator[LocalConsumer]:
        consumer = LocalConsumer(orchestrator.url + "/", "ocr", API_KEY, [5, 2])
        yield consumer
        await consumer.close()

    async def test_pull_request_names_limit_wait_and_lanes(
        self, orchestrator: FakeOrchestrator, consumer: LocalConsumer
    ) -> None:
        await consumer.pull(7, 0)
        assert orchestrator.pulls == [{"max": 7, "wait_seconds": 0.0, "lanes": [2, 5]}]

    async def test_wrong_api_key_raises_pull_refused(self, orchestrator: FakeOrchestrator) -> None:
        consumer = LocalConsumer(orchestrator.url, "ocr", "wrong")
        with pytest.raises(PullRefused, match="API key"):
            await consumer.pull(1, 0)
        await consumer.close()

    @pytest.mark.parametrize(
        ("status", "body", "error"),
        [
            (500, "", BusDown),
            (503, '{"code": "UNAVAILABLE"}', BusDown),
            (404, '{"code": "NOT_FOUND"}', PullRefused),
            (422, '{"code": "INVALID_REQUEST"}', PullRefused),
            (404, "<html>no such backend</html>", BusDown),
            (404, '{"message": "no route"}', BusDown),
        ],
    )
    async def test_error_answers_are_mapped_to_bus_down_or_pull_refused(
        self, orchestrator: FakeOrchestrator, consumer: LocalConsumer, status: int, body: str, error: type[Exception]
    ) -> None:
        """A gateway error without a backend is no refusal: it can pass, so retrying makes sense."""
        orchestrator.pull_answers.append(web.Response(status=status, text=body))
        with pytest.raises(error):
            await consumer.pull(1, 0)

    @pytest.mark.parametrize("url", ["http://a..b", f"http://{'a' * 64}.example", "http://me:pw@"])
    async def test_invalid_orchestrator_url_raises_pull_refused(self, url: str) -> None:
        consumer = LocalConsumer(url, "ocr", API_KEY)
        with pytest.raises(PullRefused, match="not an address"):
            await consumer.pull(1, 0)
        await consumer.close()

    async def test_consumer_sends_no_pull_during_retry_after(
        self, orchestrator: FakeOrchestrator, consumer: LocalConsumer
    ) -> None:
        orchestrator.pull_answers.append(web.Response(status=429, headers={"Retry-After": "60"}))
        assert await consumer.pull(1, 0) == []
        assert await consumer.pull(1, 0) == []
        assert len(orchestrator.pulls) == 1

    async def test_unreadable_directive_is_skipped_and_others_are_returned(
        self, orchestrator: FakeOrchestrator, consumer: LocalConsumer
    ) -> None:
        orchestrator.offer(expected_directive(1, lane=2, lease_seconds="soon"), expected_directive(2, lane=2))
        assert jobs(await consumer.pull(10, 0)) == ["job-2"]
