"""The admission cache over the API: commands over a limit are refused without a commit; others never are for long."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import redis

from lucius.adapters.admission.redis import RedisAdmissionCache
from lucius.bootstrap.settings import load_settings
from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Cap
from lucius.ports.admission import MARK_SECONDS
from lucius.ports.errors import SettingsError
from lucius.usecases.submit import admission_cache
from tests.integration.api.conftest import Start, write_config
from tests.support.api import Answer, Api
from tests.support.redis import RedisServer
from tests.support.until import until

ONE_EACH: dict[str, Any] = {"limits": {"tenant_max_inflight": 1}}
WITHIN = 5.0
NEVER = 3_600.0
MARK = "lucius:gate:jobs/tenant/acme"

StartWithCache = Callable[..., Awaitable[Api]]


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def server(module_server: RedisServer) -> RedisServer:
    module_server.start_if_stopped()
    client_of(module_server).flushall()
    return module_server


@pytest.fixture
def start_cached(start: Start, server: RedisServer) -> StartWithCache:
    """Return a function that starts a server with a connected cache that does not time out on a loaded machine."""

    async def start_cached(config: dict[str, Any] = ONE_EACH, **changes: Any) -> Api:
        api = await start(config, **{"gate_url": server.url, **changes})
        cache = cache_of(api)
        cache.wait_seconds, cache.pause_seconds = WITHIN, 0.02
        await until(lambda: cache.is_available)
        return api

    return start_cached


@pytest.fixture
def without_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_cache, "REPAIR_INTERVAL_SECONDS", NEVER)


@pytest.fixture
def long_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make marks last, so that a mark that ends was removed explicitly."""
    monkeypatch.setattr("lucius.adapters.admission.redis.MARK_SECONDS", NEVER)
    monkeypatch.setattr(admission_cache, "MARK_SECONDS", NEVER)


def client_of(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url)


def cache_of(api: Api) -> RedisAdmissionCache:
    cache = api.runtime.admission.cache
    assert isinstance(cache, RedisAdmissionCache)
    return cache


def record_commits(api: Api) -> list[Decision]:
    """Return a list of the decisions that the ledger is asked to commit from now on."""
    asked: list[Decision] = []
    commit = api.runtime.store.ledger.commit

    async def counting(decision: Decision) -> None:
        asked.append(decision)
        await commit(decision)

    api.runtime.store.ledger.commit = counting  # type: ignore[method-assign]
    return asked


async def submit(api: Api, key: str, **changes: Any) -> Answer:
    return await api.post("/v1/commands", api.command(idempotency_key=key, **changes))


async def fill_tenant(api: Api) -> str:
    """Bring a tenant to its limit, and let the cache learn of it; return the job id."""
    job_id = await api.submit(idempotency_key="first")
    (await submit(api, "second")).problem(429, "TENANT_LIMIT")
    return job_id


class TestRefusal:
    @pytest.mark.parametrize(
        ("config", "status", "code"),
        [
            (ONE_EACH, 429, "TENANT_LIMIT"),
            ({"limits": {"modes": {"DEFAULT": 1}}}, 429, "MODE_LIMIT"),
            ({"limits": {"protocols": {"ocr": 1}}}, 429, "PROTOCOL_LIMIT"),
            ({"limits": {"max_inflight": 1}}, 503, "GLOBAL_LIMIT"),
        ],
    )
    async def test_command_over_a_limit_is_refused_without_a_commit(
        self,
        start_cached: StartWithCache,
        ledger_url: str,
        long_marks: None,
        config: dict[str, Any],
        status: int,
        code: str,
    ) -> None:
        api = await start_cached(config, ledger_url=ledger_url)
        await api.submit(idempotency_key="first")
        told = (await submit(api, "second")).problem(status, code)
        asked = record_commits(api)
        for number in range(20):
            answer = await submit(api, f"again-{number}")
            assert answer.problem(status, code) == told, "the same text as the ledger's"
            assert answer.headers["retry-after"] == "1"
        assert asked == []

    async def test_full_tenant_does_not_block_other_tenants(
        self, start_cached: StartWithCache, long_marks: None
    ) -> None:
        api = await start_cached()
        await fill_tenant(api)
        (await submit(api, "1", tenant_id="globex")).ok(202)

    async def test_repeat_of_an_accepted_command_finds_its_job_without_a_commit(
        self, start_cached: StartWithCache, long_marks: None
    ) -> None:
        api = await start_cached()
        job_id = await fill_tenant(api)
        asked = record_commits(api)
        assert (await submit(api, "first")).ok(202) == {
            "jobId": job_id,
            "status": "DISPATCHING",
            "duplicate": True,
            "accepted_at": ANY,
        }
        (await submit(api, "first", output_ref="blob://out/b.json")).problem(409, "IDEMPOTENCY_KEY_REUSED")
        assert asked == []

    async def test_raised_limit_is_not_blocked_by_an_old_mark(
        self, start_cached: StartWithCache, tmp_path: Path, long_marks: None, without_repair: None
    ) -> None:
        api = await start_cached()
        await fill_tenant(api)
        before = api.runtime.config.current()
        write_config(tmp_path, {"limits": {"tenant_max_inflight": 2}})
        await until(lambda: api.runtime.config.current() is not before)
        (await submit(api, "second")).ok(202)

    async def test_replicas_share_the_cache(
        self, start_cached: StartWithCache, emptied_postgres_url: str, long_marks: None, without_repair: None
    ) -> None:
        one, other = (
            await start_cached(ledger_url=emptied_postgres_url),
            await start_cached(ledger_url=emptied_postgres_url),
        )
        job_id = await fill_tenant(one)
        asked = record_commits(other)
        (await submit(other, "third")).problem(429, "TENANT_LIMIT")
        assert asked == []
        (await other.post(f"/v1/jobs/{job_id}:cancel")).ok(202)
        await cache_of(other).full([Cap("jobs", 1)])
        (await submit(one, "third")).ok(202)


class TestMarkRemoval:
    async def test_job_that_ends_makes_room_at_once(
        self, start_cached: StartWithCache, ledger_url: str, long_marks: None, without_repair: None
    ) -> None:
        api = await start_cached(ledger_url=ledger_url)
        await api.finish(await fill_tenant(api))
        (await submit(api, "second")).ok(202)

    async def test_wrong_mark_is_removed_by_a_check_of_the_ledger(
        self, start_cached: StartWithCache, server: RedisServer, long_marks: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission_cache, "REPAIR_INTERVAL_SECONDS", 0.02)
        api = await start_cached()
        client_of(server).set(MARK, 1)
        (await submit(api, "first")).problem(429, "TENANT_LIMIT")
        await until(lambda: not client_of(server).exists(MARK))
        (await submit(api, "first")).ok(202)

    async def test_right_mark_is_kept_after_a_check_of_the_ledger(
        self, start_cached: StartWithCache, server: RedisServer, long_marks: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission_cache, "REPAIR_INTERVAL_SECONDS", 0.005)
        api = await start_cached()
        await fill_tenant(api)
        looked = record_counter_reads(api)
        await until(lambda: len(looked) > 3)
        assert client_of(server).exists(MARK)

    async def test_counters_are_not_read_while_nothing_is_refused(
        self, start_cached: StartWithCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission_cache, "REPAIR_INTERVAL_SECONDS", 0.005)
        monkeypatch.setattr(admission_cache, "MARK_SECONDS", 0.05)
        api = await start_cached()
        await fill_tenant(api)
        looked = record_counter_reads(api)
        await asyncio.sleep(0.1)
        seen = len(looked)
        await asyncio.sleep(0.1)
        assert 0 < seen == len(looked)

    async def test_wrong_mark_expires_after_mark_seconds(
        self, start_cached: StartWithCache, server: RedisServer, without_repair: None
    ) -> None:
        api = await start_cached()
        job_id = await fill_tenant(api)
        await until(lambda: bool(client_of(server).exists(MARK)))
        mark, left = client_of(server).get(MARK), client_of(server).pttl(MARK)
        assert 0 < left <= MARK_SECONDS * 1000
        await api.finish(job_id)
        await until(lambda: not client_of(server).exists(MARK))
        client_of(server).set(MARK, mark, px=left)  # as if the mark had been set after the job's end
        (await submit(api, "second")).problem(429, "TENANT_LIMIT")
        await until(lambda: not client_of(server).exists(MARK))
        (await submit(api, "second")).ok(202)


def record_counter_reads(api: Api) -> list[float]:
    """Return a list of the times at which the ledger's counters are read."""
    read: list[float] = []
    counters = api.runtime.store.jobs.counters

    async def counting(*names: str) -> dict[str, int]:
        read.append(time.monotonic())
        return await counters(*names)

    api.runtime.store.jobs.counters = counting  # type: ignore[method-assign]
    return read


class TestWithoutRedis:
    async def test_cache_is_off_by_default(self, start: Start) -> None:
        assert load_settings({}).gate_url == ""
        api = await start(ONE_EACH)
        assert api.runtime.admission.cache is None
        assert api.runtime.admission.loops() == {}
        await fill_tenant(api)
        asked = record_commits(api)
        (await submit(api, "third")).problem(429, "TENANT_LIMIT")
        assert len(asked) == 1

    async def test_unreachable_cache_at_start_blocks_no_command(self, start: Start) -> None:
        api = await start(ONE_EACH, gate_url="redis://127.0.0.1:1")
        await fill_tenant(api)
        assert (await api.get("/readyz")).status == 200

    async def test_cache_that_restarts_empty_blocks_no_command(
        self, start_cached: StartWithCache, server: RedisServer
    ) -> None:
        api = await start_cached()
        job_id = await fill_tenant(api)
        server.stop()
        (await submit(api, "third")).problem(429, "TENANT_LIMIT")
        await api.finish(job_id)
        (await submit(api, "third")).ok(202)
        server.start()
        await until(lambda: cache_of(api).is_available)
        (await submit(api, "fourth")).problem(429, "TENANT_LIMIT")
        asked = record_commits(api)
        (await submit(api, "fourth")).problem(429, "TENANT_LIMIT")
        assert asked == []

    async def test_frozen_cache_delays_one_command_only(
        self, start_cached: StartWithCache, server: RedisServer
    ) -> None:
        api = await start_cached({"limits": {"tenant_max_inflight": 1_000}})
        cache_of(api).wait_seconds, cache_of(api).pause_seconds = 0.2, NEVER
        with server.frozen():
            started = time.perf_counter()
            for number in range(20):
                (await submit(api, f"{number}")).ok(202)
            assert 0.19 < time.perf_counter() - started < 3.0, "one waits, and the others no longer do"

    @pytest.mark.parametrize("url", ["kafka://here", "redis://127.0.0.1?idle=5"])
    async def test_invalid_cache_url_stops_the_start(self, start: Start, url: str) -> None:
        with pytest.raises(SettingsError, match="LUCIUS_GATE_URL"):
            await start(gate_url=url)
