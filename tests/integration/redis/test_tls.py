"""Redis over TLS: the bus connects only to a server it trusts."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.adapters.bus.redis.publisher import RedisPublisher
from lucius.ports.errors import BusDown
from tests.integration.worker.support import directive
from tests.support.redis import RedisServer
from tests.support.tls import Authority, tls_in_front_of

SOON = 10.0
TOPIC = "global-bus-p3"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


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
