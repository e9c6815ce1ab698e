"""Redis and PostgreSQL over TLS: the ledger and the bus speak to whom they trust, and to nobody else."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lucius.adapters.bus_redis.consumer import RedisConsumer
from lucius.adapters.bus_redis.publisher import RedisPublisher
from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.ports.errors import BusDown, LedgerDown
from tests.conformance.builders import accept
from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.tls import Authority, tls_in_front_of
from tests.unit.worker.support import directive

SOON = 10.0
TOPIC = "global-bus-p3"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"))


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgres_server(ours: Authority) -> Iterator[PostgresServer]:
    need_postgres()
    server = PostgresServer(ssl="on", ssl_cert_file=ours.server.name, ssl_key_file=ours.server_key.name)
    server.give(ours.server, ours.server_key)
    server.start()
    yield server
    server.remove()


def rediss(target: str, trusted: Authority, shown: Authority) -> str:
    files = {"ssl_ca_certs": trusted.ca, "ssl_certfile": shown.cert, "ssl_keyfile": shown.key}
    return f"rediss://{target}/0?{urlencode(files)}"


async def test_directives_go_over_tls(redis_server: RedisServer, ours: Authority) -> None:
    async with tls_in_front_of(redis_server.port, ours) as target:
        url = rediss(target, ours, ours)
        publisher, consumer = RedisPublisher(url), RedisConsumer(url, "ocr")
        await publisher.publish(TOPIC, directive())
        (got,) = await consumer.pull(1, SOON)
        assert got.jobId == directive().jobId
        await consumer.close()
        await publisher.close()


@pytest.mark.parametrize(("we_trust", "said"), [(False, "certificate verify failed"), (True, "Connection")])
async def test_a_redis_that_is_not_trusted_or_does_not_trust_us_is_one_that_is_down(
    redis_server: RedisServer, ours: Authority, theirs: Authority, we_trust: bool, said: str
) -> None:
    async with tls_in_front_of(redis_server.port, ours) as target:
        publisher = RedisPublisher(rediss(target, ours, theirs) if we_trust else rediss(target, theirs, ours))
        with pytest.raises(BusDown, match=said):
            await publisher.publish(TOPIC, directive())
        await publisher.close()


async def test_a_redis_by_another_name_is_not_spoken_to(redis_server: RedisServer, ours: Authority) -> None:
    async with tls_in_front_of(redis_server.port, ours) as target:
        publisher = RedisPublisher(rediss(target.replace("127.0.0.1", "localhost"), ours, ours))
        with pytest.raises(BusDown, match="certificate is not valid for 'localhost'"):
            await publisher.publish(TOPIC, directive())
        await publisher.close()


async def test_a_ledger_goes_over_tls(postgres_server: PostgresServer, ours: Authority) -> None:
    trust = urlencode({"sslmode": "verify-full", "sslrootcert": ours.ca})
    ledger = await PostgresLedger.open(f"{postgres_server.url('over_tls')}&{trust}")
    try:
        await ledger.commit(accept("a"))
        assert await ledger.load("a") is not None
        talking = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'lucius%'"
        spoken = [row["ssl"] for row in postgres_server.query(talking)]
        assert spoken
        assert all(spoken)
    finally:
        await ledger.close()


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_postgresql_that_is_not_who_it_should_be_is_not_spoken_to(
    postgres_server: PostgresServer, ours: Authority, theirs: Authority, wrong: str
) -> None:
    trusted, host = (theirs, "127.0.0.1") if wrong == "authority" else (ours, "localhost")
    trust = urlencode({"sslmode": "verify-full", "sslrootcert": trusted.ca})
    url = postgres_server.url("not_trusted").replace("127.0.0.1", host)
    with pytest.raises(LedgerDown, match="certificate verify failed"):
        await PostgresLedger.open(f"{url}&{trust}")
