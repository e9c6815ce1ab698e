"""Admission gates over the API: who is over a limit is refused without the ledger, and nobody else ever is for long."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lucius.adapters.gates_redis import RedisGate
from lucius.core.decision import Decision
from lucius.core.inputs import Cap
from lucius.ports.gates import MARK_SECONDS
from lucius.service import admission
from lucius.settings import SettingsError, load_settings
from tests.support.api import Answer, Api
from tests.support.redis import RedisServer
from tests.support.until import until
from tests.unit.api.conftest import Start, write_config

ONE_EACH: dict[str, Any] = {"limits": {"tenant_max_inflight": 1}}
WITHIN = 5.0
NEVER = 3_600.0
MARK = "lucius:gate:jobs/tenant/acme"

Gated = Callable[..., Awaitable[Api]]


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
def gated(start: Start, server: RedisServer) -> Gated:
    """Starts a server whose gate is connected and, however loaded the machine is, never thought slow."""

    async def gated(config: dict[str, Any] = ONE_EACH, **changes: Any) -> Api:
        api = await start(config, **{"gate_url": server.url, **changes})
        gate = gate_of(api)
        gate._wait_seconds, gate._pause_seconds = WITHIN, 0.02
        await until(lambda: gate._answers)
        return api

    return gated


@pytest.fixture
def unhealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HEAL_SECONDS", NEVER)


@pytest.fixture
def long_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends here ends because somebody ended it."""
    monkeypatch.setattr("lucius.adapters.gates_redis.MARK_SECONDS", NEVER)
    monkeypatch.setattr(admission, "MARK_SECONDS", NEVER)


def client_of(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url)


def gate_of(api: Api) -> RedisGate:
    gate = api.runtime.admission._gate
    assert isinstance(gate, RedisGate)
    return gate


def commits(api: Api) -> list[Decision]:
    """All that the ledger is asked to keep from now on."""
    asked: list[Decision] = []
    commit = api.runtime.store.commit

    async def counting(decision: Decision) -> None:
        asked.append(decision)
        await commit(decision)

    api.runtime.store.commit = counting  # type: ignore[method-assign]
    return asked


async def submit(api: Api, key: str, **changes: Any) -> Answer:
    return await api.post("/v1/commands", api.command(idempotency_key=key, **changes))


async def fill(api: Api) -> str:
    """A tenant at its limit, and known to be."""
    job_id = await api.submit(idempotency_key="first")
    (await submit(api, "second")).problem(429, "TENANT_LIMIT")
    return job_id


class TestShut:
    @pytest.mark.parametrize(
        ("config", "status", "code"),
        [
            (ONE_EACH, 429, "TENANT_LIMIT"),
            ({"limits": {"modes": {"DEFAULT": 1}}}, 429, "MODE_LIMIT"),
            ({"limits": {"protocols": {"ocr": 1}}}, 429, "PROTOCOL_LIMIT"),
            ({"limits": {"max_inflight": 1}}, 503, "GLOBAL_LIMIT"),
        ],
    )
    async def test_who_is_over_a_limit_is_refused_without_a_commit(
        self, gated: Gated, ledger_url: str, long_marks: None, config: dict[str, Any], status: int, code: str
    ) -> None:
        api = await gated(config, ledger_url=ledger_url)
        await api.submit(idempotency_key="first")
        told = (await submit(api, "second")).problem(status, code)
        asked = commits(api)
        for number in range(20):
            answer = await submit(api, f"again-{number}")
            assert answer.problem(status, code) == told, "the same words as the ledger's"
            assert answer.headers["retry-after"] == "1"
        assert asked == []

    async def test_others_are_not(self, gated: Gated, long_marks: None) -> None:
        api = await gated()
        await fill(api)
        (await submit(api, "1", tenant_id="globex")).ok(202)

    async def test_a_command_that_was_accepted_before_finds_its_job(self, gated: Gated, long_marks: None) -> None:
        api = await gated()
        job_id = await fill(api)
        asked = commits(api)
        assert (await submit(api, "first")).ok(202) == {"jobId": job_id, "status": "DISPATCHING", "duplicate": True}
        (await submit(api, "first", output_ref="blob://out/b.json")).problem(409, "IDEMPOTENCY_KEY_REUSED")
        assert asked == []

    async def test_a_limit_that_was_raised_is_not_held_back_by_an_old_mark(
        self, gated: Gated, tmp_path: Path, long_marks: None, unhealed: None
    ) -> None:
        api = await gated()
        await fill(api)
        write_config(tmp_path, {"limits": {"tenant_max_inflight": 2}})
        assert api.runtime.config.refresh()
        (await submit(api, "second")).ok(202)

    async def test_replicas_share_the_gate(
        self, gated: Gated, emptied_postgres_url: str, long_marks: None, unhealed: None
    ) -> None:
        one, other = await gated(ledger_url=emptied_postgres_url), await gated(ledger_url=emptied_postgres_url)
        job_id = await fill(one)
        asked = commits(other)
        (await submit(other, "third")).problem(429, "TENANT_LIMIT")
        assert asked == []
        (await other.post(f"/v1/jobs/{job_id}:cancel")).ok(202)
        await gate_of(other).full([Cap("jobs", 1)])
        (await submit(one, "third")).ok(202)


class TestReopened:
    async def test_a_job_that_ends_makes_room_at_once(
        self, gated: Gated, ledger_url: str, long_marks: None, unhealed: None
    ) -> None:
        api = await gated(ledger_url=ledger_url)
        await api.finish(await fill(api))
        (await submit(api, "second")).ok(202)

    async def test_who_died_before_saying_so_is_made_good_from_the_ledger(
        self, gated: Gated, server: RedisServer, long_marks: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "HEAL_SECONDS", 0.02)
        api = await gated()
        client_of(server).set(MARK, 1)
        (await submit(api, "first")).problem(429, "TENANT_LIMIT")
        await until(lambda: not client_of(server).exists(MARK))
        (await submit(api, "first")).ok(202)

    async def test_what_is_full_stays_marked(
        self, gated: Gated, server: RedisServer, long_marks: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "HEAL_SECONDS", 0.005)
        api = await gated()
        await fill(api)
        looked = looks(api)
        await until(lambda: len(looked) > 3)
        assert client_of(server).exists(MARK)

    async def test_nobody_looks_while_nothing_is_refused(self, gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "HEAL_SECONDS", 0.005)
        monkeypatch.setattr(admission, "MARK_SECONDS", 0.05)
        api = await gated()
        await fill(api)
        looked = looks(api)
        await asyncio.sleep(0.1)
        seen = len(looked)
        await asyncio.sleep(0.1)
        assert 0 < seen == len(looked)

    async def test_no_wrong_mark_outlasts_its_second(self, gated: Gated, server: RedisServer, unhealed: None) -> None:
        api = await gated()
        job_id = await fill(api)
        await until(lambda: bool(client_of(server).exists(MARK)))
        mark, left = client_of(server).get(MARK), client_of(server).pttl(MARK)
        assert 0 < left <= MARK_SECONDS * 1000
        await api.finish(job_id)
        await until(lambda: not client_of(server).exists(MARK))
        client_of(server).set(MARK, mark, px=left)  # as if its maker had been slower than the job's end
        (await submit(api, "second")).problem(429, "TENANT_LIMIT")
        await until(lambda: not client_of(server).exists(MARK))
        (await submit(api, "second")).ok(202)


def looks(api: Api) -> list[float]:
    """When the ledger's counters were read."""
    read: list[float] = []
    counters = api.runtime.store.counters

    async def counting(*names: str) -> dict[str, int]:
        read.append(time.monotonic())
        return await counters(*names)

    api.runtime.store.counters = counting  # type: ignore[method-assign]
    return read


class TestWithoutRedis:
    async def test_there_is_no_gate_unless_it_is_wanted(self, start: Start) -> None:
        assert load_settings({}).gate_url == ""
        api = await start(ONE_EACH)
        assert api.runtime.admission._gate is None
        assert api.runtime.admission.loops() == {}
        await fill(api)
        asked = commits(api)
        (await submit(api, "third")).problem(429, "TENANT_LIMIT")
        assert len(asked) == 1

    async def test_one_that_is_away_at_the_start_keeps_nobody_out(self, start: Start) -> None:
        api = await start(ONE_EACH, gate_url="redis://127.0.0.1:1")
        await fill(api)
        assert (await api.get("/readyz")).status == 200

    async def test_one_that_dies_and_comes_back_empty_keeps_nobody_out(self, gated: Gated, server: RedisServer) -> None:
        api = await gated()
        job_id = await fill(api)
        server.stop()
        (await submit(api, "third")).problem(429, "TENANT_LIMIT")
        await api.finish(job_id)
        (await submit(api, "third")).ok(202)
        server.start()
        await until(lambda: gate_of(api)._answers)
        (await submit(api, "fourth")).problem(429, "TENANT_LIMIT")
        asked = commits(api)
        (await submit(api, "fourth")).problem(429, "TENANT_LIMIT")
        assert asked == []

    async def test_one_that_hangs_costs_a_moment(self, gated: Gated, server: RedisServer) -> None:
        api = await gated({"limits": {"tenant_max_inflight": 1_000}})
        gate_of(api)._wait_seconds, gate_of(api)._pause_seconds = 0.2, NEVER
        with server.frozen():
            started = time.perf_counter()
            for number in range(20):
                (await submit(api, f"{number}")).ok(202)
            assert 0.19 < time.perf_counter() - started < 3.0, "one waits, and the others no longer do"

    @pytest.mark.parametrize("url", ["kafka://here", "redis://127.0.0.1?idle=5"])
    async def test_a_url_that_can_not_be_one_stops_the_start(self, start: Start, url: str) -> None:
        with pytest.raises(SettingsError, match="LUCIUS_GATE_URL"):
            await start(gate_url=url)
