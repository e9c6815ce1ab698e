"""The Redis users in docs/operations.md have the rights they need, and a service sees only its own streams."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from scripts.asyncapi import DIRECTIVE

from lucius.adapters.admission.redis import RedisAdmissionCache
from lucius.adapters.bus.redis import scripts
from lucius.adapters.bus.redis.connection import LuaScript
from lucius.adapters.bus.redis.consumer import RedisConsumer
from lucius.core.model.inputs import Cap
from lucius.worker.idempotency import AttemptKey
from lucius.worker.idempotency_redis import RedisIdempotency
from tests.e2e.support import REPO, Stack, Zygote, until
from tests.support.redis import RedisServer

PAGE = (REPO / "docs" / "operations.md").read_text()
HOW_TO = (REPO / "docs" / "how-to" / "write-a-service-without-sdk.md").read_text()
(BLOCK,) = re.findall(r"^```acl\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
USERS = {line.split()[1]: line.split()[2:] for line in BLOCK.splitlines()}
ADMIN = "admin-of-this-test"
STREAM, OTHER, DEAD = "lucius:global-bus-p3:ocr", "lucius:global-bus-p3:embedding", "lucius:dead"
WITH_SUBCOMMANDS = ("XGROUP", "XINFO")
JOBS = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder).start()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", ADMIN, "on", f">{ADMIN}", "~*", "&*", "+@all")
        for name, rules in USERS.items():
            client.execute_command("ACL", "SETUSER", name, *rules)
        client.execute_command("ACL", "SETUSER", "default", "off", "nopass", "-@all")
    yield server
    server.stop()


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(url_of(server, ADMIN), decode_responses=True) as client:
        yield client


def url_of(server: RedisServer, user: str, **options: str) -> str:
    password = ADMIN if user == ADMIN else next(rule[1:] for rule in USERS[user] if rule.startswith(">"))
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return server.url.replace("redis://", f"redis://{user}:{password}@") + (f"?{query}" if query else "")


def refusals(admin: Any) -> list[Any]:
    return [(entry["username"], entry["reason"], entry["object"]) for entry in admin.acl_log()]


def test_example_and_control_plane_work_with_the_documented_redis_acl(
    forks: Zygote, tmp_path: Path, server: RedisServer, admin: Any
) -> None:
    bus = url_of(server, "lucius-control", idle="1")
    with closing(Stack(forks, tmp_path, LUCIUS_BUS_URL=bus, LUCIUS_SWEEP_INTERVAL="0.05")) as stack:
        stack.serve()
        submitted = [stack.api.submit(stack.command(number)) for number in range(JOBS)]
        admin.xadd(STREAM, {"job_id": "none", "directive": "{"})
        env = {**os.environ, **stack.env, "SERVICE": "ocr", "LUCIUS_BUS_URL": url_of(server, "lucius-ocr")}
        command = [sys.executable, str(REPO / "examples" / "service_over_redis.py"), str(JOBS)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {stack.api.get(f"/v1/jobs/{job}")["status"] for job in submitted} == {"SUCCEEDED"}
        until(lambda: not any(admin.xlen(key) for key in admin.keys("lucius:*")), "every message is settled")
    assert refusals(admin) == []


async def test_service_with_the_sdk_works_with_the_documented_redis_acl(server: RedisServer, admin: Any) -> None:
    admin.xadd(STREAM, {"job_id": "none", "directive": "{"})
    url = url_of(server, "lucius-ocr", idle="0.1", deliveries="1000")  # a slow machine claims from itself
    consumer = RedisConsumer(url, "ocr")
    assert await consumer.pull(1, 0.5) == []
    admin.xadd(STREAM, {"job_id": "none", "directive": "{"})
    admin.xreadgroup("ocr", "one-that-died", {STREAM: ">"})
    while admin.xlen(DEAD) < 2:
        await consumer.pull(1, 0.1)
    for number in range(2):
        admin.xadd(STREAM, {"directive": json.dumps({**DIRECTIVE, "attempt_no": number + 1})})
    taken = [directive for _ in range(2) for directive in await consumer.pull(1, 5)]
    async with asyncio.timeout(20):
        while admin.script_exists(scripts.RENEW.sha) == [False]:  # noqa: ASYNC110 - it happens at the server
            await asyncio.sleep(0.01)
    assert (await consumer.settle(taken[:1]), await consumer.give_back(taken[1:])) == ([True], [True])
    await consumer.close()
    assert refusals(admin) == []


async def test_admission_cache_and_idempotency_store_work_with_the_documented_redis_acl(
    server: RedisServer, admin: Any
) -> None:
    cache = RedisAdmissionCache(url_of(server, "lucius-gate"))
    turning = asyncio.create_task(_run(cache))
    async with asyncio.timeout(20):
        while not await cache.full([Cap("jobs", 1)]):
            cache.mark(Cap("jobs", 1))
            await asyncio.sleep(0.01)
    cache.unmark(["jobs"])
    turning.cancel()
    await cache.close()
    store, key = RedisIdempotency(url_of(server, "lucius-attempts")), AttemptKey("job", "ocr", 1, "lease")
    await store.claim([key], 5)
    await store.renew([key], 5)
    await store.release(key)
    await store.finish(key, b"{}")
    await store.close()
    assert refusals(admin) == []


async def _run(cache: RedisAdmissionCache) -> None:
    while True:
        await cache.run_once()


def commands_of(text: str) -> set[tuple[str, ...]]:
    """Return the commands that a script calls, with the subcommand where rights depend on it."""
    called = re.findall(r"redis\.p?call\('(\w+)'(?:, '(\w+)')?", text)
    return {(name, sub) if name in WITH_SUBCOMMANDS else (name,) for name, sub in called}


def test_rights_cover_every_command_of_the_scripts(admin: Any) -> None:
    texts = {name: value.text for name, value in vars(scripts).items() if isinstance(value, LuaScript)}
    assert len(texts) >= 9
    for name, text in texts.items():
        users = ["lucius-control"] if name == "TRIM" else ["lucius-control", "lucius-ocr"]
        for user in users:
            stream = DEAD if user == "lucius-control" and name != "TRIM" else STREAM
            for command in commands_of(text):
                assert admin.execute_command("ACL", "DRYRUN", user, *_whole(command, stream)) == "OK", (name, command)


def test_rights_cover_every_command_of_the_how_to() -> None:
    section = HOW_TO.partition("## Over Redis")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(X[A-Z]+(?: (?:CREATE|DELCONSUMER))?|MULTI|EXEC)\b", section))
    assert named >= {"XGROUP CREATE", "XREADGROUP", "XAUTOCLAIM", "XCLAIM", "XACK", "XDEL", "XADD", "MULTI", "EXEC"}
    allowed = {rule[1:] for rule in USERS["lucius-ocr"] if rule.startswith("+")}
    assert {name.lower().replace(" ", "|") for name in named} <= allowed


def _whole(command: tuple[str, ...], stream: str) -> tuple[str, ...]:
    """Return the command with as many arguments as it requires."""
    rest = {
        "XREADGROUP": ("GROUP", "g", "c", "STREAMS", stream, ">"),
        "XADD": (stream, "*", "a", "b"),
        "XACK": (stream, "g", "0-1"),
        "XDEL": (stream, "0-1"),
        "XRANGE": (stream, "-", "+"),
        "XPENDING": (stream, "g"),
        "XCLAIM": (stream, "g", "c", "0", "0-1"),
        "XGROUP": (stream, "g", "c"),
        "XINFO": (stream, "g") if command[-1] == "CONSUMERS" else (stream,),
    }
    return (*command, *rest.get(command[0], (stream,)))


def test_service_cannot_reach_streams_of_other_services_or_other_keys(admin: Any) -> None:
    for words in (
        ("XRANGE", OTHER, "-", "+"),
        ("XADD", OTHER, "*", "a", "b"),
        ("XLEN", STREAM),
        ("SET", "lucius:gate:jobs", "1"),
        ("KEYS", "*"),
        ("FLUSHALL",),
    ):
        assert admin.execute_command("ACL", "DRYRUN", "lucius-ocr", *words) != "OK", words
    assert admin.execute_command("ACL", "DRYRUN", "lucius-gate", "XRANGE", STREAM, "-", "+") != "OK"
