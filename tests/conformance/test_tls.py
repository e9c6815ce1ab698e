"""Redis and PostgreSQL over TLS: ledger and bus connect only to servers they trust."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.adapters.bus.redis.publisher import RedisPublisher
from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.ports.errors import BusDown, LedgerDown
from tests.conformance.builders import accept
from tests.conftest import need_postgres
from tests.integration.worker.support import directive
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.tls import Authority, tls_in_front_of

SOON = 10.0
TOPIC = "global-bus-p3"


@pytest.fixture(scope="module")
def own_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("own_authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other_authority"))


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgres_server(own_authority: Authority) -> Iterator[PostgresServer]:
    need_postgres()
    server = PostgresServer(
        ssl="on", ssl_cert_file=own_authority.server.name, ssl_key_file=own_authority.server_key.name
    )
    server.give(own_authority.server, own_authority.server_key)
    server.start()
    yield server
    server.remove()


def rediss(target: str, trusted: Authority, shown: Authority) -> str:
    files = {"ssl_ca_certs": trusted.ca, "ssl_certfile": shown.cert, "ssl_keyfile": shown.key}
    return f"rediss://{target}/0?{urlencode(files)}"


async def test_directives_are_sent_over_tls(redis_server: RedisServer, own_authority: Authority) -> None:
    async with tls_in_front_of(redis_server.port, own_authority) as target:
        url = rediss(target, own_authority, own_authority)
        publisher, consumer = RedisPublisher(url), RedisConsumer(url, "ocr")
        await publisher.publish(TOPIC, directive())
        (got,) = await consumer.pull(1, SOON)
        assert got.jobId == directive().jobId
        await consumer.close()
        await publisher.close()


@pytest.mark.parametrize(("we_trust", "said"), [(False, "certificate verify failed"), (True, "Connection")])
async def test_redis_without_mutual_trust_raises_bus_down(
    redis_server: RedisServer, own_authority: Authority, other_authority: Authority, we_trust: bool, said: str
) -> None:
    async with tls_in_front_of(redis_server.port, own_authority) as target:
        publisher = RedisPublisher(
            rediss(target, own_authority, other_authority)
            if we_trust
            else rediss(target, other_authority, own_authority)
        )
        with pytest.raises(BusDown, match=said):
            await publisher.publish(TOPIC, directive())
        await publisher.close()


async def test_redis_with_another_host_name_raises_bus_down(
    redis_server: RedisServer, own_authority: Authority
) -> None:
    async with tls_in_front_of(redis_server.port, own_authority) as target:
        publisher = RedisPublisher(rediss(target.replace("127.0.0.1", "localhost"), own_authority, own_authority))
        with pytest.raises(BusDown, match="certificate is not valid for 'localhost'"):
            await publisher.publish(TOPIC, directive())
        await publisher.close()


async def test_ledger_connects_over_tls(postgres_server: PostgresServer, own_authority: Authority) -> None:
    trust = urlencode({"sslmode": "verify-full", "sslrootcert": own_authority.ca})
    ledger = await open_postgres(f"{postgres_server.url('over_tls')}&{trust}")
    try:
        await ledger.ledger.commit(accept("a"))
        assert await ledger.ledger.load("a") is not None
        talking = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'lucius%'"
        spoken = [row["ssl"] for row in postgres_server.query(talking)]
        assert spoken
        assert all(spoken)
    finally:
        await ledger.close()


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_postgresql_with_an_unexpected_authority_or_name_raises_ledger_down(
    postgres_server: PostgresServer, own_authority: Authority, other_authority: Authority, wrong: str
) -> None:
    trusted, host = (other_authority, "127.0.0.1") if wrong == "authority" else (own_authority, "localhost")
    trust = urlencode({"sslmode": "verify-full", "sslrootcert": trusted.ca})
    url = postgres_server.url("not_trusted").replace("127.0.0.1", host)
    with pytest.raises(LedgerDown, match="certificate verify failed"):
        await open_postgres(f"{url}&{trust}")
