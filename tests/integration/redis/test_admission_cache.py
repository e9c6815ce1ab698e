"""The admission cache on a real server: marked caps and tenants, the duration of marks, and the cost of failures."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog

from lucius.adapters.admission import redis as redis_cache
from lucius.adapters.admission.redis import RedisAdmissionCache
from lucius.core.model.inputs import Cap
from lucius.ports.admission import MARK_SECONDS
from tests.support.cut import cut_line
from tests.support.redis import RedisServer
from tests.support.until import until

TENANT, ALL = Cap("jobs/tenant/acme", 5), Cap("jobs", 100)
WITHIN = 5.0
PATIENT = 2.0  # seconds; enough for a loaded machine

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
async def open_cache() -> AsyncIterator[Open]:
    """Yield a function that opens the caches of any number of replicas, each with its own loop."""
    async with AsyncExitStack() as stack:

        async def open_(url: str, connected: bool = True, **options: float) -> RedisAdmissionCache:
            cache = await stack.enter_async_context(running(url, **({"wait_seconds": PATIENT} | options)))
            if connected:
                await until(lambda: cache.is_available)
            return cache

        yield open_


@asynccontextmanager
async def running(url: str, **options: float) -> AsyncIterator[RedisAdmissionCache]:
    cache = RedisAdmissionCache(url, **options)

    async def turns() -> None:
        while True:
            await cache.run_once()

    task = asyncio.create_task(turns())
    try:
        yield cache
    finally:
        task.cancel()
        await asyncio.wait({task})
        await cache.close()


def client_of(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url)


async def marked(cache: RedisAdmissionCache, *caps: Cap) -> Cap | None:
    """Return the first full cap of `caps`; marks made before are sent with the request."""
    return await cache.full(caps or (TENANT, ALL))


class TestMarks:
    async def test_cap_is_full_only_after_it_was_marked(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url)
        assert await marked(cache) is None
        cache.mark(ALL)
        assert await marked(cache) == ALL
        cache.mark(TENANT)
        assert await marked(cache) == TENANT, "the first full cap of the requested ones"
        assert await marked(cache, Cap("jobs/tenant/globex", 5)) is None

    async def test_replicas_share_marks(self, server: RedisServer, open_cache: Open) -> None:
        one, other = await open_cache(server.url), await open_cache(server.url)
        one.mark(TENANT)
        await marked(one)
        assert await marked(other) == TENANT
        other.unmark([TENANT.counter])
        await marked(other)
        assert await marked(one) is None

    async def test_replicas_with_another_prefix_do_not_share_marks(self, server: RedisServer, open_cache: Open) -> None:
        one, other = await open_cache(f"{server.url}?prefix=a:"), await open_cache(f"{server.url}?prefix=b:")
        one.mark(TENANT)
        await marked(one)
        assert await marked(other) is None
        assert client_of(server).keys() == [b"a:gate:jobs/tenant/acme"]

    async def test_mark_applies_to_its_limit_and_lower_ones(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url)
        cache.mark(TENANT)
        lower, raised = Cap(TENANT.counter, 4), Cap(TENANT.counter, 6)
        assert await marked(cache, lower) == lower
        assert await marked(cache, raised) is None

    async def test_mark_expires(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url)
        cache.mark(TENANT)
        assert await marked(cache) == TENANT
        assert 0 < client_of(server).pttl("lucius:gate:jobs/tenant/acme") <= MARK_SECONDS * 1000
        await asyncio.sleep(MARK_SECONDS)
        assert await marked(cache) is None

    async def test_cap_freed_in_the_same_turn_is_not_marked(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url)
        cache.unmark([TENANT.counter])
        cache.mark(TENANT)
        assert await marked(cache) is None

    async def test_foreign_value_under_a_key_marks_nothing(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url)
        client_of(server).set("lucius:gate:jobs", "everything!")
        assert await marked(cache) is None
        cache.mark(TENANT)
        assert await marked(cache, ALL, TENANT) == TENANT

    async def test_concurrent_requests_share_a_round_trip(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url)
        cache.mark(TENANT)
        before = client_of(server).info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]
        assert await asyncio.gather(*(marked(cache) for _ in range(200))) == [TENANT] * 200
        assert client_of(server).info("commandstats")["cmdstat_mget"]["calls"] - before <= 2

    async def test_queued_changes_are_bounded(
        self, server: RedisServer, open_cache: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_cache, "MAX_QUEUED_MARKS", 10)
        cache = await open_cache(server.url)
        for number in range(100):
            cache.unmark([f"jobs/tenant/t{number}"])
            cache.mark(Cap(f"jobs/tenant/s{number}", 1))
        assert cache.queued_removals == cache.queued_marks == 10


class TestOutages:
    async def test_unreachable_server_adds_no_delay(self, open_cache: Open) -> None:
        cache = await open_cache("redis://127.0.0.1:1", connected=False, pause_seconds=0.01)
        spent = 0.0
        for _ in range(20):
            cache.mark(TENANT)
            cache.unmark([ALL.counter])
            assert not cache.queued_marks
            assert not cache.queued_removals
            spent += await took(marked(cache))
            await asyncio.sleep(0.002)
        assert spent < PATIENT / 2

    async def test_frozen_server_adds_one_short_delay(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url, wait_seconds=0.2, pause_seconds=60)
        cache.mark(TENANT)
        await marked(cache)
        with server.frozen():
            concurrent = [took(marked(cache)) for _ in range(50)]
            assert 0.19 < max(await asyncio.gather(*concurrent)) < 1.0
            assert sum([await took(marked(cache)) for _ in range(20)]) < 0.5

    async def test_slow_server_is_not_asked_during_a_pause(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url, wait_seconds=0.05, pause_seconds=60)
        with server.frozen():
            assert await marked(cache) is None
        await until(lambda: cache.is_in_outage)
        assert not cache.is_available

    async def test_server_is_asked_again_after_a_freeze(self, server: RedisServer, open_cache: Open) -> None:
        cache = await open_cache(server.url, wait_seconds=0.05, pause_seconds=0.05)
        with server.frozen():
            assert await marked(cache) is None
        await until(lambda: cache.is_available)
        cache.mark(TENANT)
        await until(lambda: client_of(server).exists("lucius:gate:jobs/tenant/acme") == 1)

    async def test_server_restarted_empty_is_used_again(self, tmp_path: Path, open_cache: Open) -> None:
        server = RedisServer(tmp_path).start()
        try:
            cache = await open_cache(server.url, pause_seconds=0.05)
            cache.mark(TENANT)
            assert await marked(cache) == TENANT
            server.stop()
            assert await marked(cache) is None
            server.start()
            await until(lambda: cache.is_available)
            assert await marked(cache) is None
            cache.mark(TENANT)
            assert await marked(cache) == TENANT
        finally:
            server.stop()

    async def test_late_answer_is_not_used_for_another_request(
        self, server: RedisServer, open_cache: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_cache, "CALL_SECONDS", 0.05)
        async with cut_line(server.port) as line:
            cache = await open_cache(f"redis://127.0.0.1:{line.port}", pause_seconds=0.01)
            line.deaf = True
            assert await marked(cache) is None
            line.deaf = False
            await until(lambda: cache.is_available)
            cache.mark(ALL)
            assert await marked(cache) == ALL
            assert await marked(cache, TENANT) is None

    async def test_marks_refused_by_a_full_server_are_dropped(self, tmp_path: Path, open_cache: Open) -> None:
        server = RedisServer(tmp_path).start()
        try:
            cache = await open_cache(server.url, pause_seconds=0.2)
            client_of(server).config_set("maxmemory", 1)
            cache.mark(TENANT)
            assert await marked(cache) is None
            await until(lambda: not cache.is_available)
            client_of(server).config_set("maxmemory", 0)
            await until(lambda: cache.is_available)
            cache.mark(ALL)
            assert await marked(cache, ALL) == ALL, "and not the mark from before"
            assert await marked(cache, TENANT) is None
        finally:
            server.stop()

    async def test_outage_and_its_end_are_logged_once_each(self, tmp_path: Path, open_cache: Open) -> None:
        server = RedisServer(tmp_path)
        with structlog.testing.capture_logs() as logs:
            cache = await open_cache(server.url, connected=False, pause_seconds=0.01)
            await until(lambda: cache.is_in_outage)
            await asyncio.sleep(0.1)
            server.start()
            try:
                await until(lambda: cache.is_available)
            finally:
                server.stop()
        assert [entry["log_level"] for entry in logs] == ["warning", "info"]


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1?colour=red", "redis://h:pw@127.0.0.1:port"])
async def test_invalid_url_is_refused_without_showing_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        RedisAdmissionCache(url)
    assert "pw" not in str(refused.value)


async def took(waiting: Any) -> float:
    started = time.perf_counter()
    assert await waiting is None
    return time.perf_counter() - started


@pytest.mark.parametrize("steps", range(6))
async def test_loop_cancelled_in_the_middle_of_a_turn_ends(server: RedisServer, steps: int) -> None:
    async with asyncio.timeout(WITHIN), running(server.url) as cache:
        await until(lambda: cache.is_available)
        cache.unmark([TENANT.counter])
        for _ in range(steps):
            await asyncio.sleep(0)
