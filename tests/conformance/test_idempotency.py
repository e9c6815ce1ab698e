"""The suite that every idempotency store passes: what services may rely on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lucius.worker.idempotency import (
    NEW,
    RUNNING,
    AttemptKey,
    ClaimOutcome,
    Finished,
    IdempotencyStore,
    MemoryIdempotency,
)
from lucius.worker.idempotency_redis import RedisIdempotency
from lucius.worker.idempotency_sqlite import SqliteIdempotency
from lucius.worker.journal import Journal
from tests.support.redis import RedisServer, age_entries

RETENTION = 1000.0
SHARED = ("sqlite", "redis")
RUN_OUT = ("memory", "redis")
"""Stores whose claims expire. The SQLite store knows which processes live: its claims last as long as their process."""


class Clock:
    def __init__(self) -> None:
        self.time = 50.0

    def __call__(self) -> float:
        return self.time


class Stores:
    """Opens stores that share their attempts, as processes of one service would."""

    def __init__(self, kind: str, folder: Path, server: RedisServer, stack: AsyncExitStack) -> None:
        self.kind = kind
        self._folder = folder
        self._server = server
        self._stack = stack
        self._clock = Clock()

    def open(self, capacity: int = 10_000, retention: float = RETENTION) -> IdempotencyStore:
        store = self._new(capacity, retention)
        self._stack.push_async_callback(store.close)
        return store

    async def pass_time(self, seconds: float) -> None:
        self._clock.time += seconds
        if self.kind == "redis":
            await age_entries(self._server, seconds)

    def _new(self, capacity: int, retention: float) -> IdempotencyStore:
        if self.kind == "memory":
            return MemoryIdempotency(capacity, retention, now=self._clock)
        if self.kind == "redis":
            return RedisIdempotency(self._server.url, retention)
        clock = self._clock
        journal = Journal(self._folder, capacity=capacity, retention=retention, wall=clock)
        self._stack.callback(journal.close)
        return SqliteIdempotency(journal)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    started = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield started
    started.stop()


@pytest.fixture(params=("memory", "sqlite", "redis"))
async def stores(request: pytest.FixtureRequest, tmp_path: Path, server: RedisServer) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        yield Stores(request.param, tmp_path, server, stack)


@pytest.fixture
def store(stores: Stores) -> IdempotencyStore:
    return stores.open()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> AttemptKey:
    return AttemptKey(f"job-of-{request.node.name}", "ocr", 1, "lease-1")


async def claim(store: IdempotencyStore, key: AttemptKey, seconds: float = 60.0) -> ClaimOutcome:
    (standing,) = await store.claim([key], seconds)
    return standing


async def test_first_claim_is_new_and_later_ones_find_it_running(store: IdempotencyStore, key: AttemptKey) -> None:
    assert await claim(store, key) == NEW
    assert await claim(store, key) == RUNNING


async def test_claim_of_many_attempts_answers_in_order(store: IdempotencyStore, key: AttemptKey) -> None:
    keys = [key._replace(attempt_no=number) for number in range(1, 5)]
    await store.claim(keys[:1], 60)
    await store.finish(keys[2], b"{}")
    assert await store.claim(keys, 60) == [RUNNING, NEW, Finished(b"{}"), NEW]


async def test_empty_claim_and_renewal_are_accepted(store: IdempotencyStore) -> None:
    assert await store.claim([], 60) == []
    await store.renew([], 60)


async def test_attempt_claimed_twice_in_one_call_is_new_once(store: IdempotencyStore, key: AttemptKey) -> None:
    assert await store.claim([key, key], 60) == [NEW, RUNNING]


async def test_concurrent_claims_of_one_attempt_are_new_once(store: IdempotencyStore, key: AttemptKey) -> None:
    standings = await asyncio.gather(*(claim(store, key) for _ in range(8)))
    assert sorted(map(repr, standings)) == ["New()"] + 7 * ["Running()"]


@pytest.mark.parametrize(
    "differ",
    [
        lambda key: key._replace(jobId=key.jobId + "0"),
        lambda key: key._replace(stepId="another"),
        lambda key: key._replace(attempt_no=2),
        lambda key: key._replace(lease_id="another"),
    ],
    ids=["job", "step", "attempt", "lease"],
)
async def test_another_attempt_has_its_own_claim(
    store: IdempotencyStore, key: AttemptKey, differ: Callable[[AttemptKey], AttemptKey]
) -> None:
    await store.claim([key], 60)
    assert await claim(store, differ(key)) == NEW


async def test_ids_with_separators_do_not_collide(store: IdempotencyStore, key: AttemptKey) -> None:
    names = [f"{key.jobId}/a", f'{key.jobId}","a', f"{key.jobId}|a", f"{key.jobId}\x00a"]
    split = [AttemptKey(name, "b", 1, "c") for name in names] + [
        AttemptKey(key.jobId, f"a{mark}b", 1, "c") for mark in '/",|'
    ]
    assert await store.claim(split, 60) == [NEW] * len(split)


async def test_claim_of_a_finished_attempt_returns_its_result(store: IdempotencyStore, key: AttemptKey) -> None:
    await store.claim([key], 60)
    await store.finish(key, b'{"status":"SUCCEEDED","\x00":"\xff"}')
    assert await claim(store, key) == Finished(b'{"status":"SUCCEEDED","\x00":"\xff"}')


async def test_large_result_is_returned_completely(store: IdempotencyStore, key: AttemptKey) -> None:
    result = bytes(range(256)) * 1024
    await store.finish(key, result)
    assert await claim(store, key) == Finished(result)


async def test_first_result_of_an_attempt_is_kept(store: IdempotencyStore, key: AttemptKey) -> None:
    await store.claim([key], 60)
    assert await store.finish(key, b"first") == b"first"
    assert await store.finish(key, b"second") == b"first"
    assert await claim(store, key) == Finished(b"first")


async def test_released_attempt_can_be_claimed_again(store: IdempotencyStore, key: AttemptKey) -> None:
    await store.claim([key], 60)
    await store.release(key)
    assert await claim(store, key) == NEW


async def test_release_and_renew_leave_a_result_alone(store: IdempotencyStore, key: AttemptKey) -> None:
    await store.finish(key, b"kept")
    await store.renew([key], 60)
    await store.release(key)
    assert await claim(store, key) == Finished(b"kept")


@pytest.mark.parametrize("stores", RUN_OUT, indirect=True)
async def test_claim_expires(stores: Stores, key: AttemptKey) -> None:
    store = stores.open()
    await store.claim([key], 60)
    await stores.pass_time(61)
    assert await claim(store, key) == NEW


async def test_renewed_claim_lasts_longer(stores: Stores, key: AttemptKey) -> None:
    store = stores.open()
    await store.claim([key], 300)
    await store.renew([key], 3000)
    await stores.pass_time(400)
    assert await claim(store, key) == RUNNING


async def test_a_renewal_shortens_no_claim(stores: Stores, key: AttemptKey) -> None:
    store = stores.open()
    await store.claim([key], 60)
    await store.renew([key], 3000)
    await store.renew([key], 60)
    await stores.pass_time(400)
    assert await claim(store, key) == RUNNING


async def test_expired_claim_can_be_renewed_if_not_taken(stores: Stores, key: AttemptKey) -> None:
    store = stores.open()
    await store.claim([key], 60)
    await stores.pass_time(61)
    await store.renew([key], 60)
    assert await claim(store, key) == RUNNING


async def test_result_is_forgotten_after_the_retention(stores: Stores, key: AttemptKey) -> None:
    store = stores.open(retention=200)
    await store.finish(key, b"{}")
    await stores.pass_time(201)
    assert await claim(store, key) == NEW
    assert await claim(store, key) == RUNNING


async def test_renewal_after_the_result_is_ignored(stores: Stores, key: AttemptKey) -> None:
    store = stores.open(retention=200)
    await store.claim([key], 60)
    await store.finish(key, b"{}")
    await store.renew([key], 3600)
    await stores.pass_time(201)
    assert await claim(store, key) == NEW


async def test_result_is_kept_although_the_claim_expired(stores: Stores, key: AttemptKey) -> None:
    store = stores.open()
    await store.claim([key], 60)
    await stores.pass_time(61)
    await store.finish(key, b"late")
    assert await claim(store, key) == Finished(b"late")


@pytest.mark.parametrize("stores", ["memory", "sqlite"], indirect=True)
async def test_oldest_results_are_forgotten_first(stores: Stores, key: AttemptKey) -> None:
    store = stores.open(capacity=100)
    keys = [key._replace(attempt_no=number) for number in range(1, 1200)]
    for one in keys:
        await store.claim([one], 60)
        await store.finish(one, b"{}")
    known = [isinstance(standing, Finished) for standing in await store.claim(keys, 60)]
    assert all(known[-100:])
    assert not any(known[:500])
    assert sum(known) <= 700  # pruned in steps


async def test_large_results_do_not_fill_the_memory(key: AttemptKey) -> None:
    store = MemoryIdempotency(max_bytes=1000)
    keys = [key._replace(attempt_no=number) for number in range(1, 6)]
    for one in keys:
        await store.finish(one, b"x" * 400)
    assert [isinstance(standing, Finished) for standing in await store.claim(keys, 60)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("stores", SHARED, indirect=True)
class TestShared:
    """Two processes of one service share a store."""

    async def test_claim_of_one_process_is_seen_by_the_other(self, stores: Stores, key: AttemptKey) -> None:
        one, other = stores.open(), stores.open()
        assert await claim(one, key) == NEW
        assert await claim(other, key) == RUNNING

    async def test_result_of_one_process_is_seen_by_the_other(self, stores: Stores, key: AttemptKey) -> None:
        one, other = stores.open(), stores.open()
        await one.claim([key], 60)
        await one.finish(key, b"{}")
        assert await claim(other, key) == Finished(b"{}")

    async def test_claim_of_another_process_is_neither_renewed_nor_released(
        self, stores: Stores, key: AttemptKey
    ) -> None:
        one, other = stores.open(), stores.open()
        await one.claim([key], 100)
        await other.renew([key], 60)
        await other.release(key)
        assert await claim(other, key) == RUNNING
        await stores.pass_time(101)
        assert await claim(other, key) == (NEW if stores.kind == "redis" else RUNNING)

    async def test_racing_processes_claim_each_attempt_once(self, stores: Stores, key: AttemptKey) -> None:
        racing = [stores.open() for _ in range(4)]
        keys = [key._replace(attempt_no=number) for number in range(1, 51)]
        standings = await asyncio.gather(*(store.claim(keys, 60) for store in racing))
        for of_one_key in zip(*standings, strict=True):
            assert sorted(map(repr, of_one_key)) == ["New()"] + 3 * ["Running()"]


@pytest.mark.parametrize("stores", ["redis"], indirect=True)
class TestLostClaims:
    async def test_a_claim_that_was_lost_is_not_renewed(self, stores: Stores, key: AttemptKey) -> None:
        one, other = stores.open(), stores.open()
        await one.claim([key], 60)
        await stores.pass_time(61)
        await other.claim([key], 60)
        await one.renew([key], 60)
        await one.release(key)
        assert await claim(one, key) == RUNNING
        await other.release(key)
        assert await claim(one, key) == NEW

    async def test_result_of_a_lost_claim_is_kept(self, stores: Stores, key: AttemptKey) -> None:
        one, other = stores.open(), stores.open()
        await one.claim([key], 60)
        await stores.pass_time(61)
        await other.claim([key], 60)
        await one.finish(key, b"one")
        assert await other.finish(key, b"other") == b"one"
        assert await claim(other, key) == Finished(b"one")
