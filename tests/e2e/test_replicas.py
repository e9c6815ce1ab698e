"""Four APIs and three reconcilers on one PostgreSQL, all killed and restarted, checked from outside."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need_postgres
from tests.e2e import checker
from tests.e2e.checker_at_rest import Histories, at_rest
from tests.e2e.replicas import Clients, Cluster, Weather, running
from tests.e2e.support import Api, Json, Zygote, until
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer

SCHEMA = "replicas"
ROUNDS = 1
CLIENTS = 12
MAX_PER_TENANT = 3
"""A quarter of the clients, so that many are refused with 429."""


@pytest.fixture(scope="module")
def durable() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL with fsync, which can be restarted."""
    need_postgres()
    server = PostgresServer(fsync=True).start()
    yield server
    server.remove()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bus", ["redis", "local"])
async def test_kills_of_replicas_lose_no_job_and_apply_no_result_twice(
    forks: Zygote, durable: PostgresServer, redis: RedisServer, tmp_path: Path, bus: str
) -> None:
    print(await survive(forks, durable, redis if bus == "redis" else None, tmp_path, seed=1, rounds=ROUNDS))


async def survive(
    zygote: Zygote, postgres: PostgresServer, redis: RedisServer | None, folder: Path, *, seed: int, rounds: int
) -> str:
    """Run the faults and return a summary; raise AssertionError if an invariant is broken."""
    chance = random.Random(seed)
    schema = f"{SCHEMA}_{seed}_{'redis' if redis else 'local'}"
    bus_url = redis.url if redis else "local:"
    cluster = Cluster(zygote, folder / "cluster", postgres.url(schema), bus_url, most_per_tenant=MAX_PER_TENANT)
    clients = Clients(cluster.urls, chance)
    weather = Weather(cluster, clients, postgres, redis, chance)
    async with running(cluster):
        async with asyncio.TaskGroup() as group:
            group.create_task(clients.run(CLIENTS))
            await weather.storm(rounds)
            await asyncio.to_thread(_check_in_the_middle, cluster, postgres, schema)
            await weather.storm(rounds, wipe=True)
            clients.enough.set()
        await asyncio.to_thread(cluster.stop_all)
    ledger = checker.assemble(checker.read(postgres.query, schema))
    histories = cluster.histories(clients.orders)
    found = checker.always(ledger) + at_rest(ledger, histories) + cluster.errors()
    assert not found, found
    assert min(weather.kills.values()) >= 2 * rounds
    assert min(weather.restarts.values()) >= 1
    assert weather.wiped == (redis is not None)
    assert clients.asked_again > 0
    assert cluster.office.filed
    return _summary(cluster, weather, clients, ledger, histories)


def _check_in_the_middle(cluster: Cluster, postgres: PostgresServer, schema: str) -> None:
    """Check, with every process killed in the middle of work, that ledger and counters are consistent."""
    cluster.kill_all()
    ledger = checker.assemble(checker.read(postgres.query, schema))
    assert any(job.live for job in ledger.jobs.values())
    found = checker.always(ledger) + checker.above(ledger, MAX_PER_TENANT)
    assert not found, found
    cluster.start_all()


def _summary(cluster: Cluster, weather: Weather, clients: Clients, ledger: checker.Ledger, histories: Histories) -> str:
    steps = sum(len(job.steps) for job in ledger.jobs.values())
    stale = sum(len(job.quarantine) for job in ledger.jobs.values())
    return (
        f"{len(clients.orders)} jobs, {steps} steps, {len(histories.began)} executions, {stale} late successes; "
        f"{sum(weather.kills.values())} kills, {weather.freezes} freezes, PostgreSQL restarted {weather.restarts}, "
        f"Redis wiped {weather.wiped} times; {cluster.office.calls} calls for {len(cluster.office.filed)} steps; "
        f"asked again {clients.asked_again} times, {cluster.mended} restarts"
    )


@pytest.mark.parametrize("bus", ["redis", "local"])
async def test_concurrent_workers_run_each_attempt_once(
    forks: Zygote, postgres: PostgresServer, postgres_url: str, redis: RedisServer, tmp_path: Path, bus: str
) -> None:
    """Three workers, each with every service, share their work through two replicas without faults."""
    bus_url = redis.url if bus == "redis" else "local:"
    cluster = Cluster(forks, tmp_path / "cluster", postgres_url, bus_url, apis=2, reconcilers=1)
    clients = Clients(cluster.urls, random.Random(1))
    async with running(cluster):
        await clients.run(CLIENTS, orders=60)
        await asyncio.to_thread(cluster.stop_all)
    histories = cluster.histories(clients.orders)
    ledger = checker.assemble(checker.read(postgres.query, postgres_url.partition("schema=")[2]))
    found = checker.always(ledger) + at_rest(ledger, histories)
    assert not found, found
    attempts = [(e["jobId"], e["stepId"], e["attempt_no"]) for e in histories.began]
    assert len(attempts) == len(set(attempts)) >= 60
    assert len({entry["pid"] for entry in histories.began}) == 3, "each worker ran steps"


async def test_pulls_from_two_replicas_never_get_the_same_directive(
    forks: Zygote, postgres_url: str, tmp_path: Path
) -> None:
    cluster = Cluster(forks, tmp_path / "cluster", postgres_url, "local:", apis=2, reconcilers=0, workers=0)
    apis = [Api(url) for url in cluster.urls]
    async with running(cluster):
        for api in apis:
            await asyncio.to_thread(until, api.ready, "it is ready", 60)
        orders = [_an_order(number) for number in range(80)]
        accepted = await asyncio.gather(*(asyncio.to_thread(apis[n % 2].submit, o) for n, o in enumerate(orders)))
        pulls = [asyncio.to_thread(_pull_all, apis[number % 2]) for number in range(6)]
        given = [directive for got in await asyncio.gather(*pulls) for directive in got]
    assert sorted(directive["jobId"] for directive in given) == sorted(accepted)


def _an_order(number: int) -> Json:
    refs = {"input_ref": f"blob://in/{number}", "output_ref": f"blob://out/{number}"}
    return {"tenant_id": f"t{number % 3}", "request_type": "OCR", "payload": {}, "schema_version": "v1", **refs}


def _pull_all(api: Api) -> list[Json]:
    """Pull until nothing is left, and return the directives."""
    found: list[Json] = []
    while got := api.pull("ocr", most=3, wait_seconds=1):
        found += got
    return found
