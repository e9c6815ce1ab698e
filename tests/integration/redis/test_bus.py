"""The `redis://` bus on a real server: which consumer gets a message, and which one after that consumer died."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from lucius.adapters.bus.redis import consumer_group
from lucius.adapters.bus.redis.address import parse
from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.adapters.bus.redis.dead_letters import RedisDeadLetters
from lucius.adapters.bus.redis.publisher import LATE_SECONDS, RedisPublisher
from lucius.contract import Directive
from lucius.core.model.routing import LANES, topic
from lucius.core.model.statuses import Mode
from lucius.ports.bus import DeadLetter
from lucius.ports.errors import BusDown, MessageRefused, OutcomeUnknown
from tests.integration.worker.support import directive
from tests.support.clock import ManualClock
from tests.support.cut import cut_line
from tests.support.redis import RedisServer
from tests.support.until import until

IDLE = 0.4
SOON = 10.0
STREAM = "lucius:global-bus-p3:ocr"


class Bus:
    """One Redis server and everything that a test opens on it."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = f"{server.url}?idle={IDLE}&deliveries=3"
        self.client: Any = redis.Redis.from_url(server.url)
        self._opened: list[RedisPublisher | RedisConsumer | RedisDeadLetters] = []

    def publisher(self, url: str = "", **options: Any) -> RedisPublisher:
        self._opened.append(opened := RedisPublisher(url or self.url, **options))
        return opened

    def consumer(self, url: str = "", **options: Any) -> RedisConsumer:
        self._opened.append(opened := RedisConsumer(url or self.url, "ocr", **options))
        return opened

    def dead_letters(self) -> RedisDeadLetters:
        self._opened.append(opened := RedisDeadLetters(self.url))
        return opened

    async def publish(self, *numbers: int, lane: int = 3, **changes: Any) -> None:
        publisher = self.publisher()
        await asyncio.gather(
            *(
                publisher.publish(f"global-bus-p{lane}", directive(number=number, lane=lane, **changes))
                for number in numbers
            )
        )

    def length(self, stream: str = STREAM) -> int:
        return int(self.client.xlen(stream))

    def pending(self) -> int:
        """Return the number of pending messages over all lanes."""
        streams = [name for name in self.client.keys("lucius:global-*") if self.client.xinfo_groups(name)]
        return sum(self.client.xpending(stream, "ocr")["pending"] for stream in streams)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()
        self.client.close()


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
async def bus(one_server: RedisServer) -> AsyncIterator[Bus]:
    bus = Bus(one_server)
    bus.client.flushall()
    yield bus
    await bus.close()


@pytest.fixture
async def own_bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Yield a bus on a server that the test may stop."""
    server = RedisServer(tmp_path, durable=True).start()
    bus = Bus(server)
    yield bus
    server.start_if_stopped()
    await bus.close()
    server.stop()


def jobs(directives: list[Directive]) -> list[str]:
    return [one.jobId for one in directives]


def die(consumer: RedisConsumer) -> None:
    """Simulate kill -9 of a consumer: it stops renewing its messages."""
    assert consumer.group.is_renewing
    consumer.group.stop_renewer()


async def pulled(consumer: RedisConsumer, limit: int = 10) -> list[Directive]:
    return await consumer.pull(limit, SOON)


class TestPublisher:
    async def test_message_has_job_step_and_attempt_as_separate_fields(self, bus: Bus) -> None:
        await bus.publish(7, payload={"ä": 1})
        ((_, fields),) = bus.client.xrange(STREAM)
        found_fields = {name.decode(): value.decode() for name, value in fields.items()}
        body = msgspec.json.decode(found_fields.pop("directive"), type=Directive)
        assert found_fields == {
            "job_id": "job-7",
            "step_id": "ocr",
            "tenant_id": "acme",
            "attempt_no": "1",
            "lease_id": "lease-7",
            "ack_deadline_ms": "30000",
        }
        assert body == directive(number=7, payload={"ä": 1})

    async def test_unreachable_redis_raises_bus_down(self, bus: Bus) -> None:
        publisher = bus.publisher("redis://127.0.0.1:1")
        for act in (publisher.publish("t", directive()), publisher.ping()):
            with pytest.raises(BusDown):
                await act

    async def test_redis_without_memory_raises_bus_down_and_refuses_no_message(self, own_bus: Bus) -> None:
        publisher = own_bus.publisher()
        own_bus.client.config_set("maxmemory", 1)
        with pytest.raises(BusDown, match="memory"):
            await publisher.publish("global-bus-p3", directive())
        own_bus.client.config_set("maxmemory", 0)
        await publisher.publish("global-bus-p3", directive())

    async def test_redis_that_refuses_writes_raises_bus_down(self, own_bus: Bus) -> None:
        publisher = own_bus.publisher()
        own_bus.client.config_set("min-replicas-to-write", 1)
        with pytest.raises(BusDown, match="NOREPLICAS"):
            await publisher.publish("global-bus-p3", directive())

    async def test_publisher_reconnects_to_the_new_primary_after_a_failover(self, own_bus: Bus) -> None:
        """The server's name or proxy now leads to a new primary; the old connection would never recover."""
        async with cut_line(own_bus.server.port) as line:
            publisher = own_bus.publisher(f"redis://127.0.0.1:{line.port}")
            await publisher.publish("global-bus-p3", directive())
            own_bus.client.replicaof("127.0.0.1", 1)
            with pytest.raises(BusDown, match="read only"):
                await publisher.publish("global-bus-p3", directive())
            connections = line.connections
            own_bus.client.replicaof("NO", "ONE")
            await publisher.publish("global-bus-p3", directive())
            assert line.connections == connections + 1

    async def test_oversized_message_is_refused_without_affecting_others_in_the_batch(self, bus: Bus) -> None:
        publisher = bus.publisher(max_bytes=2_000)
        sent = (directive(number=1), directive(number=2, payload={"a": "b" * 2_000}), directive(number=3))
        outcomes = await asyncio.gather(
            *(publisher.publish("global-bus-p3", one) for one in sent), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), MessageRefused, type(None)]

    async def test_message_rejected_by_redis_is_refused_without_affecting_others_in_the_batch(self, bus: Bus) -> None:
        bus.client.set("lucius:global-bus-p4:ocr", "no stream")
        publisher = bus.publisher()
        sent = [publisher.publish(f"global-bus-p{lane}", directive()) for lane in (3, 4, 5)]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), MessageRefused, type(None)]

    async def test_lost_publish_answer_raises_outcome_unknown(self, bus: Bus) -> None:
        async with cut_line(bus.server.port) as line:
            publisher = bus.publisher(f"redis://127.0.0.1:{line.port}", call_seconds=0.3)
            await publisher.ping()
            line.deaf = True
            with pytest.raises(OutcomeUnknown):
                await publisher.publish("global-bus-p3", directive())
            assert bus.length() == 1

    async def test_publish_over_a_broken_idle_connection_is_retried(self, own_bus: Bus) -> None:
        publisher = own_bus.publisher()
        for number in range(3):
            await publisher.publish("global-bus-p3", directive(number=number))
            own_bus.server.stop()
            own_bus.server.start()
        assert own_bus.length() == 3

    async def test_hanging_redis_raises_bus_down(self, bus: Bus) -> None:
        publisher = bus.publisher(call_seconds=0.3)
        with bus.server.frozen(), pytest.raises(BusDown):
            await publisher.publish("global-bus-p3", directive())

    async def test_cancelled_publish_is_still_sent(self, bus: Bus) -> None:
        """A cancelled publish is sent all the same and counts as handed over."""
        publisher = bus.publisher()
        given_up = asyncio.create_task(publisher.publish("global-bus-p3", directive()))
        await asyncio.sleep(0)
        given_up.cancel()
        await until(lambda: bus.length() == 1)


class TestTrimming:
    """While a service is away, its messages become outdated and its attempts are replaced by new ones."""

    LATER = "2100-01-01T00:00:00.000Z"

    async def test_outdated_messages_are_trimmed(self, bus: Bus) -> None:
        publisher = bus.publisher(max_waiting=20)
        for number in range(200):
            await publisher.publish("global-bus-p3", directive(number=number))
        assert bus.length() <= 30
        assert "job-199" in jobs(await bus.consumer().pull(100, 0))

    async def test_messages_before_their_ack_deadline_are_never_trimmed(self, bus: Bus) -> None:
        publisher = bus.publisher(max_waiting=20)
        for number in range(50):
            wanted = directive(number=number, ack_deadline=self.LATER)
            await publisher.publish("global-bus-p3", wanted)
        for number in range(50, 100):
            await publisher.publish("global-bus-p3", directive(number=number))
        kept = jobs(await bus.consumer().pull(200, 0))
        assert set(kept) >= {f"job-{number}" for number in range(50)}

    async def test_messages_shortly_after_their_ack_deadline_are_not_trimmed(self, bus: Bus) -> None:
        publisher = bus.publisher(max_waiting=2, late_seconds=10**10)
        for number in range(20):
            await publisher.publish("global-bus-p3", directive(number=number))
        assert bus.length() == 20

    @pytest.mark.parametrize(("seconds", "most"), [(-1, 20), (1, 4)])
    async def test_trimming_uses_the_clock_of_the_ack_deadlines(self, bus: Bus, seconds: int, most: int) -> None:
        deadline = datetime.fromisoformat(directive().ack_deadline).timestamp()
        clock = ManualClock(round((deadline + LATE_SECONDS + seconds) * 1000))
        publisher = bus.publisher(max_waiting=2, now=clock.now)
        for number in range(20):
            await publisher.publish("global-bus-p3", directive(number=number))
        assert most / 2 < bus.length() <= most

    async def test_messages_held_by_a_consumer_are_not_trimmed(self, bus: Bus) -> None:
        publisher = bus.publisher(max_waiting=10)
        consumer = bus.consumer()
        for number in range(10):
            await publisher.publish("global-bus-p3", directive(number=number))
        work = await consumer.pull(10, 0)
        for number in range(10, 100):
            await publisher.publish("global-bus-p3", directive(number=number))
        assert bus.length() <= 10 + 15
        assert await consumer.settle(work) == [True] * 10


class TestConsumer:
    async def test_settled_messages_are_removed_from_the_stream(self, bus: Bus) -> None:
        await bus.publish(*range(5))
        consumer = bus.consumer()
        directives = await pulled(consumer)
        assert (len(directives), bus.length(), bus.pending()) == (5, 5, 5)
        assert await consumer.settle(directives) == [True] * 5
        assert (bus.length(), bus.pending()) == (0, 0)
        assert await consumer.settle(directives) == [False] * 5

    async def test_messages_of_a_dead_consumer_are_claimed_after_the_idle_time(self, bus: Bus) -> None:
        await bus.publish(1, 2)
        dead, living = bus.consumer(), bus.consumer()
        assert len(await pulled(dead)) == 2
        die(dead)
        at = asyncio.get_running_loop().time()
        assert sorted(jobs(await pulled(living))) == ["job-1", "job-2"]
        assert asyncio.get_running_loop().time() - at > IDLE * 0.9

    async def test_message_of_a_slow_consumer_is_not_claimed_by_another(self, bus: Bus) -> None:
        await bus.publish(1)
        slow, idle = bus.consumer(), bus.consumer()
        (work,) = await pulled(slow)
        assert await idle.pull(1, 5 * IDLE) == []
        assert await slow.settle([work]) == [True]

    async def test_message_of_a_consumer_that_blocks_its_event_loop_is_still_renewed(self, bus: Bus) -> None:
        await bus.publish(1)
        blocking = bus.consumer()
        (work,) = await pulled(blocking)
        time.sleep(3 * IDLE)  # noqa: ASYNC251 - as an async step that blocks would
        (held,) = bus.client.xpending_range(STREAM, "ocr", "-", "+", 10)
        assert held["time_since_delivered"] < IDLE * 1000, "no other consumer may claim it"
        assert await blocking.settle([work]) == [True]

    async def test_returned_messages_are_available_to_another_consumer_at_once(self, bus: Bus) -> None:
        await bus.publish(1, 2)
        going, living = bus.consumer(), bus.consumer(f"{bus.server.url}?idle=600")
        work = await pulled(going)
        assert await going.give_back(work) == [True, True]
        assert sorted(jobs(await living.pull(10, 0))) == ["job-1", "job-2"]
        assert await going.give_back(work) == await going.settle(work) == [False, False]

    @pytest.mark.parametrize("stop", ["give_back", "close"])
    async def test_messages_of_a_cancelled_pull_are_available_after_give_back_or_close(
        self, bus: Bus, stop: str
    ) -> None:
        going, living = bus.consumer(f"{bus.server.url}?idle=600"), bus.consumer(f"{bus.server.url}?idle=600")
        await going.pull(1, 0)
        await bus.publish(1, 2)
        cut_off = asyncio.create_task(going.pull(10, SOON))
        while not bus.pending():  # noqa: ASYNC110 - until the server has given them out, and no turn longer
            await asyncio.sleep(0)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        await (going.give_back([]) if stop == "give_back" else going.close())
        assert sorted(jobs(await living.pull(10, 0))) == ["job-1", "job-2"]

    async def test_consumer_that_lost_a_message_cannot_settle_it(self, bus: Bus) -> None:
        await bus.publish(1)
        stalled, thief = bus.consumer(), bus.consumer()
        (work,) = await pulled(stalled)
        die(stalled)
        assert await pulled(thief) == [work]
        assert await stalled.settle([work]) == [False]
        assert bus.length() == 1
        assert await thief.settle([work]) == [True]

    async def test_stalled_consumer_does_not_reclaim_a_message_of_another(self, bus: Bus) -> None:
        await bus.publish(1)
        stalled, thief = bus.consumer(), bus.consumer()
        (work,) = await pulled(stalled)
        die(stalled)
        assert await pulled(thief) == [work]
        stalled.group.renew_claims()
        assert await thief.settle([work]) == [True]

    async def test_pull_claims_at_most_its_limit_over_all_lanes(self, bus: Bus) -> None:
        for lane in range(LANES):
            await bus.publish(*range(3), lane=lane)
        assert len(await bus.consumer().pull(5, 0)) == 5
        assert bus.pending() == 5

    async def test_waiting_pull_claims_at_most_its_limit_from_a_burst(self, bus: Bus) -> None:
        waiting = bus.consumer()
        pull = asyncio.create_task(waiting.pull(1, SOON))
        await until(lambda: bus.client.info("clients")["blocked_clients"] == 1)
        with bus.client.pipeline(transaction=True) as together:
            for lane in (1, 2, 3):
                body = msgspec.json.encode(directive(number=lane))
                together.xadd(f"lucius:global-bus-p{lane}:ocr", {"directive": body})
            together.execute()
        assert len(await pull) == 1
        assert bus.pending() == 1
        assert len(await bus.consumer().pull(10, 0)) == 2

    async def test_all_lanes_are_pulled_in_turn(self, bus: Bus) -> None:
        await bus.publish(*range(40), lane=1)
        await bus.publish(100, lane=9)
        consumer = bus.consumer()
        found = [job for _ in range(LANES) for job in jobs(await consumer.pull(1, 0))]
        assert "job-100" in found

    async def test_concurrent_consumers_get_each_message_once(self, bus: Bus) -> None:
        await bus.publish(*range(150))
        found: list[str] = []

        async def work() -> None:
            consumer = bus.consumer()
            while directives := await consumer.pull(7, 0):
                found.extend(jobs(directives))
                await consumer.settle(directives)

        await asyncio.gather(*(work() for _ in range(8)))
        assert sorted(found) == sorted(f"job-{number}" for number in range(150))

    async def test_directive_published_twice_is_settled_once(self, bus: Bus) -> None:
        await bus.publish(1, 1)
        consumer = bus.consumer()
        first, again = await pulled(consumer)
        assert await consumer.settle([first]) == [True]
        assert await consumer.settle([again]) == [False]
        assert bus.length() == 0

    async def test_stream_names_are_the_topics(self) -> None:
        for layout in ("shared", "isolated"):
            wanted = {f"x:{topic(layout, mode, lane)}:sis" for mode in Mode for lane in range(LANES)}
            assert set(parse("redis://h?prefix=x:").streams("sis", None, layout)) == wanted

    async def test_an_isolated_layout_has_the_lanes_of_both_modes(self, bus: Bus) -> None:
        publisher = bus.publisher()
        await publisher.publish("global-default-p3", directive(number=1))
        await publisher.publish("global-burst-p3", directive(number=2))
        assert sorted(jobs(await bus.consumer(lanes=[3], layout="isolated").pull(10, 0))) == ["job-1", "job-2"]

    async def test_closed_consumer_without_messages_is_removed_from_its_group(self, bus: Bus) -> None:
        await bus.publish(1)
        done, busy = bus.consumer(), bus.consumer()
        await pulled(busy)
        await done.pull(1, 0)
        assert len(bus.client.xinfo_consumers(STREAM, "ocr")) == 2
        await done.close()
        await busy.close()
        assert [one["pending"] for one in bus.client.xinfo_consumers(STREAM, "ocr")] == [1]

    async def test_consumers_absent_for_long_are_removed_from_their_group(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumer_group, "TIDY_SECONDS", 0.0)
        monkeypatch.setattr(consumer_group, "GONE_SECONDS", 0.0)
        await bus.publish(1)
        gone, living = bus.consumer(f"{bus.server.url}?idle=0.05"), bus.consumer(f"{bus.server.url}?idle=0.05")
        await gone.settle(await pulled(gone))
        die(gone)
        await living.pull(1, 0)

        def consumers() -> set[str]:
            return {one["name"].decode() for one in bus.client.xinfo_consumers(STREAM, "ocr")}

        await until(lambda: gone.group.consumer_name not in consumers())


class TestOutages:
    async def test_message_in_a_lost_answer_is_delivered_again(self, bus: Bus) -> None:
        async with cut_line(bus.server.port) as line:
            url = f"redis://127.0.0.1:{line.port}?idle=600"
            consumer = bus.consumer(url, call_seconds=0.3)
            await consumer.pull(1, 0)
            await bus.publish(1)
            line.deaf = True
            with pytest.raises(BusDown):
                await consumer.pull(1, 0)
            line.deaf = False
            assert jobs(await consumer.pull(1, 0)) == ["job-1"]
            assert await consumer.pull(1, 0) == []

    async def test_flushed_redis_is_used_like_a_new_one(self, bus: Bus) -> None:
        consumer = bus.consumer()
        await bus.publish(1)
        (lost,) = await pulled(consumer)
        waiting = asyncio.create_task(pulled(consumer))
        await until(lambda: bus.client.info("clients")["blocked_clients"] == 1)
        bus.client.flushall()
        await bus.publish(2)
        assert jobs(await waiting) == ["job-2"]
        assert await consumer.settle([lost]) == [False]

    async def test_hanging_redis_raises_bus_down_and_loses_nothing(self, bus: Bus) -> None:
        await bus.publish(1)
        consumer = bus.consumer(call_seconds=0.3)
        with bus.server.frozen(), pytest.raises(BusDown):
            await consumer.pull(1, 0)
        assert jobs(await pulled(consumer)) == ["job-1"]

    async def test_redis_freeze_takes_no_message_from_its_consumer(self, bus: Bus) -> None:
        await bus.publish(1)
        url = f"{bus.server.url}?idle=1.2"
        busy, idle = bus.consumer(url, call_seconds=0.5), bus.consumer(url, call_seconds=0.5)
        (work,) = await pulled(busy)
        await idle.pull(1, 0)
        with bus.server.frozen():
            with pytest.raises(BusDown):
                await idle.pull(1, 0)
            await asyncio.sleep(1.5)
        assert await idle.pull(1, 2) == []
        assert await busy.settle([work]) == [True]

    async def test_consumer_works_after_a_redis_restart_ended_its_wait(self, own_bus: Bus) -> None:
        consumer = own_bus.consumer()
        waiting = asyncio.create_task(pulled(consumer))
        await until(lambda: own_bus.client.info("clients")["blocked_clients"] == 1)
        own_bus.server.stop()
        with pytest.raises(BusDown):
            await waiting
        own_bus.server.start()
        await own_bus.publish(1)
        (work,) = await pulled(consumer)
        assert await consumer.settle([work]) == [True]

    async def test_settle_can_be_repeated_after_an_outage(self, own_bus: Bus) -> None:
        await own_bus.publish(1)
        consumer = own_bus.consumer()
        directives = await pulled(consumer)
        own_bus.server.stop()
        with pytest.raises(BusDown):
            await consumer.settle(directives)
        own_bus.server.start()
        assert await consumer.settle(directives) == [True]


async def take_and_die(bus: Bus, times: int) -> None:
    for _ in range(times):
        consumer = bus.consumer()
        assert len(await pulled(consumer)) == 1
        die(consumer)


class TestDeadLetters:
    async def test_message_delivered_too_often_becomes_a_dead_letter(self, bus: Bus) -> None:
        await bus.publish(1)
        await take_and_die(bus, 3)
        assert await bus.consumer().pull(1, 3 * IDLE) == []
        assert (bus.length(), bus.pending()) == (0, 0)
        (letter,) = await bus.dead_letters().take(10, SOON)
        assert letter == DeadLetter(
            entry_id=letter.entry_id,
            reason="DELIVERED_TOO_OFTEN",
            deliveries=3,
            job_id="job-1",
            step_id="ocr",
            tenant_id="acme",
            attempt_no=1,
            lease_id="lease-1",
        )

    @pytest.mark.parametrize("body", [{}, {"directive": "{"}, {"directive": "{}"}, {"directive": b"\xff"}])
    async def test_unreadable_message_becomes_a_dead_letter_and_others_are_delivered(
        self, bus: Bus, body: dict[str, Any]
    ) -> None:
        bus.client.xadd(STREAM, {"job_id": "job-9", "attempt_no": "2", "tenant_id": b"\xff", **body})
        await bus.publish(1)
        consumer = bus.consumer()
        assert jobs(await pulled(consumer)) == ["job-1"]
        (letter,) = await bus.dead_letters().take(10, 0)
        assert (letter.reason, letter.deliveries, letter.job_id, letter.attempt_no) == ("UNREADABLE", 1, "job-9", 2)
        assert bus.length() == 1

    async def test_dead_letter_is_taken_once_and_removed_when_settled(self, bus: Bus) -> None:
        bus.client.xadd("lucius:dead", {"reason": "X", "attempt_no": "many"})
        first, second = bus.dead_letters(), bus.dead_letters()
        letters = await first.take(10, 0)
        assert [(letter.reason, letter.attempt_no, letter.job_id) for letter in letters] == [("X", 0, "")]
        assert await second.take(10, 0) == []
        await first.settle(letters)
        assert bus.length("lucius:dead") == 0

    async def test_dead_letter_of_a_dead_consumer_is_taken_again(self, bus: Bus) -> None:
        bus.client.xadd("lucius:dead", {"reason": "X"})
        for _ in range(5):
            letters = bus.dead_letters()
            assert [letter.reason for letter in await letters.take(10, SOON)] == ["X"]
            assert letters.group.is_renewing
            letters.group.stop_renewer()

    async def test_released_dead_letter_is_taken_by_another_consumer_later(self, bus: Bus) -> None:
        bus.client.xadd("lucius:dead", {"reason": "X"})
        first, second = bus.dead_letters(), bus.dead_letters()
        taken = await first.take(10, 0)
        first.let_go(taken)
        assert await first.take(10, 0) == []
        assert await second.take(10, SOON) == taken
        await second.settle(taken)
        assert bus.length("lucius:dead") == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h", "no Redis at http: URLs"),
        ("redis://h?idle=soon", "idle must be a number"),
        ("redis://h?idle=0", "idle must be a number"),
        ("redis://h?deliveries=0", "deliveries must be a number"),
    ],
)
def test_invalid_bus_url_is_refused_with_its_reason(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(url)


def test_bus_url_options_are_parsed_and_the_rest_is_left_to_the_client() -> None:
    address = parse("rediss://u:p@h:1/2?prefix={t}:&idle=5&deliveries=2&ssl_cert_reqs=none")
    assert (address.url, address.prefix, address.idle_seconds, address.deliveries) == (
        "rediss://u:p@h:1/2?ssl_cert_reqs=none",
        "{t}:",
        5.0,
        2,
    )
