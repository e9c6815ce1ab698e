"""The admission gate on a real server: what is marked, for whom, how long, and what trouble of the server costs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog

from lucius.adapters import gates_redis
from lucius.adapters.gates_redis import RedisGate
from lucius.core.inputs import Cap
from lucius.ports.gates import MARK_SECONDS
from tests.support.cut import cut_line
from tests.support.redis import RedisServer
from tests.support.until import until

TENANT, ALL = Cap("jobs/tenant/acme", 5), Cap("jobs", 100)
WITHIN = 5.0
PATIENT = 2.0  # for a loaded machine

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def server(one_server: RedisServer) -> RedisServer:
    one_server.start_if_stopped()
    client_of(one_server).flushall()
    return one_server


@pytest.fixture
async def gates() -> AsyncIterator[Open]:
    """Opens gates of as many replicas as a test wants, each with its loop."""
    async with AsyncExitStack() as stack:

        async def open_(url: str, connected: bool = True, **options: float) -> RedisGate:
            gate = await stack.enter_async_context(running(url, **({"wait_seconds": PATIENT} | options)))
            if connected:
                await until(lambda: gate._answers)
            return gate

        yield open_


@asynccontextmanager
async def running(url: str, **options: float) -> AsyncIterator[RedisGate]:
    gate = RedisGate(url, **options)

    async def turns() -> None:
        while True:
            await gate.turn()

    task = asyncio.create_task(turns())
    try:
        yield gate
    finally:
        task.cancel()
        await asyncio.wait({task})
        await gate.close()


def client_of(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url)


async def marked(gate: RedisGate, *caps: Cap) -> Cap | None:
    """What was said before is carried with the question."""
    return await gate.full(caps or (TENANT, ALL))


class TestMarks:
    async def test_nothing_is_full_until_somebody_says_so(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url)
        assert await marked(gate) is None
        gate.shut(ALL)
        assert await marked(gate) == ALL
        gate.shut(TENANT)
        assert await marked(gate) == TENANT, "the first of those that were asked about"
        assert await marked(gate, Cap("jobs/tenant/globex", 5)) is None

    async def test_replicas_share_marks(self, server: RedisServer, gates: Open) -> None:
        one, other = await gates(server.url), await gates(server.url)
        one.shut(TENANT)
        await marked(one)
        assert await marked(other) == TENANT
        other.reopen([TENANT.counter])
        await marked(other)
        assert await marked(one) is None

    async def test_those_with_another_prefix_do_not(self, server: RedisServer, gates: Open) -> None:
        one, other = await gates(f"{server.url}?prefix=a:"), await gates(f"{server.url}?prefix=b:")
        one.shut(TENANT)
        await marked(one)
        assert await marked(other) is None
        assert client_of(server).keys() == [b"a:gate:jobs/tenant/acme"]

    async def test_a_mark_is_good_for_its_limit_and_lower_ones(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url)
        gate.shut(TENANT)
        lower, raised = Cap(TENANT.counter, 4), Cap(TENANT.counter, 6)
        assert await marked(gate, lower) == lower
        assert await marked(gate, raised) is None

    async def test_a_mark_ends_by_itself(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url)
        gate.shut(TENANT)
        assert await marked(gate) == TENANT
        assert 0 < client_of(server).pttl("lucius:gate:jobs/tenant/acme") <= MARK_SECONDS * 1000
        await asyncio.sleep(MARK_SECONDS)
        assert await marked(gate) is None

    async def test_what_is_freed_in_the_same_moment_is_not_marked(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url)
        gate.reopen([TENANT.counter])
        gate.shut(TENANT)
        assert await marked(gate) is None

    async def test_what_others_wrote_there_marks_nothing(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url)
        client_of(server).set("lucius:gate:jobs", "everything!")
        assert await marked(gate) is None
        gate.shut(TENANT)
        assert await marked(gate, ALL, TENANT) == TENANT

    async def test_many_questions_share_a_round_trip(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url)
        gate.shut(TENANT)
        before = client_of(server).info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]
        assert await asyncio.gather(*(marked(gate) for _ in range(200))) == [TENANT] * 200
        assert client_of(server).info("commandstats")["cmdstat_mget"]["calls"] - before <= 2

    async def test_what_waits_for_the_server_is_bounded(
        self, server: RedisServer, gates: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gates_redis, "MOST_NAMES", 10)
        gate = await gates(server.url)
        for number in range(100):
            gate.reopen([f"jobs/tenant/t{number}"])
            gate.shut(Cap(f"jobs/tenant/s{number}", 1))
        assert len(gate._next.freed) == len(gate._next.shut) == 10


class TestTrouble:
    async def test_nobody_there_costs_no_time(self, gates: Open) -> None:
        gate = await gates("redis://127.0.0.1:1", connected=False, pause_seconds=0.01)
        spent = 0.0
        for _ in range(20):
            gate.shut(TENANT)
            gate.reopen([ALL.counter])
            assert not gate._next.shut
            assert not gate._next.freed
            spent += await took(marked(gate))
            await asyncio.sleep(0.002)
        assert spent < PATIENT / 2

    async def test_a_frozen_server_costs_a_moment_and_then_nothing(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url, wait_seconds=0.2, pause_seconds=60)
        gate.shut(TENANT)
        await marked(gate)
        with server.frozen():
            crowd = [took(marked(gate)) for _ in range(50)]
            assert 0.19 < max(await asyncio.gather(*crowd)) < 1.0
            assert sum([await took(marked(gate)) for _ in range(20)]) < 0.5

    async def test_one_that_answers_slowly_is_left_alone_for_a_while(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url, wait_seconds=0.05, pause_seconds=60)
        with server.frozen():
            assert await marked(gate) is None
        await until(lambda: gate._missed)
        assert not gate._answers

    async def test_after_a_freeze_it_is_asked_again(self, server: RedisServer, gates: Open) -> None:
        gate = await gates(server.url, wait_seconds=0.05, pause_seconds=0.05)
        with server.frozen():
            assert await marked(gate) is None
        await until(lambda: gate._answers)
        gate.shut(TENANT)
        await until(lambda: client_of(server).exists("lucius:gate:jobs/tenant/acme") == 1)

    async def test_a_server_that_came_back_empty_is_used_as_it_is(self, tmp_path: Path, gates: Open) -> None:
        server = RedisServer(tmp_path).start()
        try:
            gate = await gates(server.url, pause_seconds=0.05)
            gate.shut(TENANT)
            assert await marked(gate) == TENANT
            server.stop()
            assert await marked(gate) is None
            server.start()
            await until(lambda: gate._answers)
            assert await marked(gate) is None
            gate.shut(TENANT)
            assert await marked(gate) == TENANT
        finally:
            server.stop()

    async def test_an_answer_that_comes_late_is_not_taken_for_another(
        self, server: RedisServer, gates: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gates_redis, "CALL_SECONDS", 0.05)
        async with cut_line(server.port) as line:
            gate = await gates(f"redis://127.0.0.1:{line.port}", pause_seconds=0.01)
            line.deaf = True
            assert await marked(gate) is None
            line.deaf = False
            await until(lambda: gate._answers)
            gate.shut(ALL)
            assert await marked(gate) == ALL
            assert await marked(gate, TENANT) is None

    async def test_a_server_that_takes_no_marks_leaves_all_to_the_ledger(self, tmp_path: Path, gates: Open) -> None:
        server = RedisServer(tmp_path).start()
        try:
            gate = await gates(server.url, pause_seconds=0.2)
            client_of(server).config_set("maxmemory", 1)
            gate.shut(TENANT)
            assert await marked(gate) is None
            await until(lambda: not gate._answers)
            client_of(server).config_set("maxmemory", 0)
            await until(lambda: gate._answers)
            gate.shut(ALL)
            assert await marked(gate, ALL) == ALL, "and not what was left over from before"
            assert await marked(gate, TENANT) is None
        finally:
            server.stop()

    async def test_an_outage_is_told_once_and_its_end_too(self, tmp_path: Path, gates: Open) -> None:
        server = RedisServer(tmp_path)
        with structlog.testing.capture_logs() as logs:
            gate = await gates(server.url, connected=False, pause_seconds=0.01)
            await until(lambda: gate._missed)
            await asyncio.sleep(0.1)
            server.start()
            try:
                await until(lambda: gate._answers)
            finally:
                server.stop()
        assert [entry["log_level"] for entry in logs] == ["warning", "info"]


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1?colour=red", "redis://h:pw@127.0.0.1:port"])
async def test_a_url_that_can_not_be_one_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        RedisGate(url)
    assert "pw" not in str(refused.value)


async def took(waiting: Any) -> float:
    started = time.perf_counter()
    assert await waiting is None
    return time.perf_counter() - started


@pytest.mark.parametrize("steps", range(6))
async def test_a_loop_that_is_stopped_in_the_middle_of_a_turn_ends(server: RedisServer, steps: int) -> None:
    async with asyncio.timeout(WITHIN), running(server.url) as gate:
        await until(lambda: gate._answers)
        gate.reopen([TENANT.counter])
        for _ in range(steps):
            await asyncio.sleep(0)
