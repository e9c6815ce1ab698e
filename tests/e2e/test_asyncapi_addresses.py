"""The AsyncAPI document has the addresses and fields of a real Redis and of the HTTP API."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import redis
from scripts.asyncapi import DIRECTIVE

from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.adapters.bus.redis.dead_letters import GROUP as ENGINES
from lucius.adapters.bus.redis.dead_letters import RedisDeadLetters
from lucius.adapters.bus.redis.publisher import RedisPublisher
from lucius.contract import Directive
from lucius.core.model.routing import topic
from lucius.core.model.statuses import Mode
from tests.e2e.support import REPO
from tests.support.redis import RedisServer

DOCUMENT: Any = json.loads((REPO / "schemas" / "asyncapi.json").read_text())
OPENAPI: Any = json.loads((REPO / "schemas" / "openapi.json").read_text())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def channel_on(server: str, key: str) -> Any:
    """Return the channel whose address, with values for its parameters, is this key."""
    for channel in DOCUMENT["channels"].values():
        parameters = channel.get("parameters", {})
        address = re.escape(channel["address"])
        for name, parameter in parameters.items():
            values = parameter.get("enum") or [parameter.get("default", "[a-z]+")]
            address = address.replace(re.escape(f"{{{name}}}"), f"(?:{'|'.join(values)})")
        if channel["servers"] == [{"$ref": f"#/servers/{server}"}] and re.fullmatch(address, key):
            return channel
    raise AssertionError(f"no channel has the address {key}")


def payload_of(channel: Any) -> Any:
    (message,) = channel["messages"].values()
    return DOCUMENT["components"]["messages"][message["$ref"].rsplit("/", 1)[1]]["payload"]


def check(fields: dict[str, str], schema: Any) -> None:
    assert fields.keys() <= schema["properties"].keys()
    jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]}).validate(fields)


@pytest.mark.parametrize(("layout", "mode"), [("shared", Mode.DEFAULT), ("isolated", Mode.BURST)])
async def test_entries_in_redis_have_the_published_address_fields_and_group(
    server: RedisServer, client: Any, layout: str, mode: Mode
) -> None:
    directive = msgspec.convert(DIRECTIVE, Directive)
    publisher = RedisPublisher(server.url)
    await publisher.publish(topic(layout, mode, 14), directive)
    await publisher.close()
    (key,) = client.keys("*")
    schema = payload_of(channel_on("redis", key))
    ((_, fields),) = client.xrange(key)
    assert fields.keys() == set(schema["required"])
    check(fields, schema)
    body = {"$ref": "#/components/schemas/Directive", "components": DOCUMENT["components"]}
    jsonschema_rs.validator_for(body).validate(json.loads(fields["directive"]))
    consumer = RedisConsumer(server.url, "ocr", layout=layout)
    assert await consumer.pull(1, 0) == [directive]
    await consumer.close()
    assert [group["name"] for group in client.xinfo_groups(key)] == [directive.service]


async def test_dead_letters_in_redis_have_the_published_address_fields_and_group(
    server: RedisServer, client: Any
) -> None:
    client.xadd("lucius:global-bus-p0:ocr", {"job_id": "j", "step_id": "s", "directive": "{"})
    consumer = RedisConsumer(server.url, "ocr")
    assert await consumer.pull(1, 0) == []
    await consumer.close()
    channel = channel_on("redis", "lucius:dead")
    ((_, fields),) = client.xrange("lucius:dead")
    assert fields.keys() >= {"reason", "deliveries", "job_id", "step_id"}
    check(fields, payload_of(channel))
    engines = RedisDeadLetters(server.url)
    assert [letter.job_id for letter in await engines.take(1, 0)] == ["j"]
    await engines.close()
    assert [group["name"] for group in client.xinfo_groups("lucius:dead")] == [ENGINES]
    assert f"`{ENGINES}`" in channel["description"]


def test_http_channels_are_routes_of_the_api_with_the_same_messages() -> None:
    on_api = [channel for channel in DOCUMENT["channels"].values() if channel["servers"] == [{"$ref": "#/servers/api"}]]
    assert len(on_api) == 5
    operations = DOCUMENT["operations"].values()
    for channel in on_api:
        route = OPENAPI["paths"][channel["address"]]["post"]
        (operation,) = [one for one in operations if _target(one["channel"]) is channel]
        (asked,) = [_message(reference) for reference in operation["messages"]]
        assert asked["payload"] == route["requestBody"]["content"]["application/json"]["schema"]
        assert "Authorization" in asked["bindings"]["http"]["headers"]["properties"]
        answer, refusal = (_message(reference)["payload"] for reference in operation["reply"]["messages"])
        assert answer == route["responses"]["200"]["content"]["application/json"]["schema"]
        assert refusal["$ref"].endswith("/Problem")


def _target(reference: Any) -> Any:
    found: Any = DOCUMENT
    for part in reference["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def _message(reference: Any) -> Any:
    return _target(_target(reference))
