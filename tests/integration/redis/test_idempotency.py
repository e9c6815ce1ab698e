"""The idempotency store on a real Redis: outages, lost answers and claims that expire by the server's clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from lucius.worker.idempotency import NEW, RUNNING, AttemptKey, ClaimOutcome, Finished, IdempotencyStore, StoreDown
from lucius.worker.idempotency_redis import RedisIdempotency
from tests.support.redis import RedisServer, age_entries


@pytest.fixture
def key(request: pytest.FixtureRequest) -> AttemptKey:
    return AttemptKey(f"job-of-{request.node.name}", "ocr", 1, "lease-1")


async def claim(store: IdempotencyStore, key: AttemptKey, seconds: float = 60.0) -> ClaimOutcome:
    (standing,) = await store.claim([key], seconds)
    return standing


CALLS: dict[str, Callable[[IdempotencyStore, AttemptKey], Awaitable[object]]] = {
    "claim": lambda store, key: store.claim([key], 60),
    "renew": lambda store, key: store.renew([key], 60),
    "finish": lambda store, key: store.finish(key, b"{}"),
    "release": lambda store, key: store.release(key),
}


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    started = RedisServer(tmp_path).start()
    yield started
    started.stop()


@pytest.mark.parametrize("call", CALLS)
async def test_stopped_redis_raises_store_down_until_it_is_back(
    own_server: RedisServer, key: AttemptKey, call: str
) -> None:
    store = RedisIdempotency(own_server.url)
    await store.claim([key], 60)
    own_server.stop()
    with pytest.raises(StoreDown):
        await CALLS[call](store, key)
    own_server.start()
    await CALLS[call](store, key)
    await store.close()


@pytest.mark.parametrize("call", CALLS)
async def test_restarted_redis_is_used_without_an_error(own_server: RedisServer, key: AttemptKey, call: str) -> None:
    store = RedisIdempotency(own_server.url)
    await store.claim([key], 60)
    own_server.stop()
    own_server.start()
    await CALLS[call](store, key)
    await store.close()


@pytest.mark.parametrize("call", CALLS)
async def test_hanging_redis_raises_store_down_in_time(own_server: RedisServer, key: AttemptKey, call: str) -> None:
    store = RedisIdempotency(own_server.url, call_seconds=0.5)
    await store.claim([key], 60)
    began = time.monotonic()
    with own_server.frozen(), pytest.raises(StoreDown):
        await CALLS[call](store, key)
    assert 0.45 < time.monotonic() - began < 0.9  # includes the retry
    await store.close()


async def test_empty_claim_on_an_unreachable_redis_raises_store_down() -> None:
    """A service checks the store with an empty claim before it pulls work that it could not begin."""
    store = RedisIdempotency("redis://127.0.0.1:1")
    with pytest.raises(StoreDown):
        await store.claim([], 60)
    await store.close()


async def test_claim_with_a_lost_answer_is_repeated(own_server: RedisServer, key: AttemptKey) -> None:
    store = RedisIdempotency(own_server.url, call_seconds=0.2)
    await store.claim([key._replace(attempt_no=9)], 60)
    with own_server.frozen(), pytest.raises(StoreDown):
        await store.claim([key], 60)  # already sent: the server reads it when it resumes
    assert await claim(store, key, 600) == NEW
    await age_entries(own_server, 61)
    assert await claim(store, key) == RUNNING
    await store.close()


async def test_attempt_whose_result_could_not_be_stored_stays_claimed(own_server: RedisServer, key: AttemptKey) -> None:
    store = RedisIdempotency(own_server.url, call_seconds=0.2)
    await store.claim([key], 60)
    await _refuse_writes(own_server, True)
    with pytest.raises(StoreDown):
        await store.finish(key, b"{}")
    await _refuse_writes(own_server, False)
    assert await claim(store, key) == RUNNING
    await store.close()


async def _refuse_writes(server: RedisServer, on: bool) -> None:
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("maxmemory", "1" if on else "0")


async def test_claim_in_redis_expires_by_the_clock_of_the_server(own_server: RedisServer, key: AttemptKey) -> None:
    store = RedisIdempotency(own_server.url)
    await store.claim([key], 0.05)
    async with asyncio.timeout(5):
        while await claim(store, key) != NEW:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.01)
    await store.close()


async def test_many_concurrent_calls_all_succeed(own_server: RedisServer, key: AttemptKey) -> None:
    store = RedisIdempotency(own_server.url)
    keys = [key._replace(attempt_no=number) for number in range(1, 201)]
    await asyncio.gather(*(store.finish(one, b"{}") for one in keys))
    assert await store.claim(keys, 60) == [Finished(b"{}")] * 200
    await store.close()
