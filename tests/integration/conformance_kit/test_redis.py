"""The kit over a real Redis: the same cases and the same verdicts."""

import sys
from collections.abc import Iterator

import pytest
import redis

from lucius.conformance.model import CaseOutcome, Misuse, Pace
from lucius.conformance.run import choose, run
from tests.integration.conformance_kit.support import options
from tests.support.redis import RedisServer

SDK = [sys.executable, "-m", "lucius.cli", "service", "ocr"]
CASES = ["ack", "duplicate-running", "bad-payload", "malformed", "killed-mid-step", "graceful-stop", "idle"]
FORGETFUL = [
    sys.executable,
    "-c",
    "import os, time, redis\n"
    "url, _, query = os.environ['LUCIUS_BUS_URL'].partition('?')\n"
    "prefix = query.removeprefix('prefix=').replace('%3A', ':')\n"
    "streams = {f'{prefix}global-bus-p{lane}:ocr': '>' for lane in range(16)}\n"
    "bus = redis.Redis.from_url(url)\n"
    "for stream in streams: bus.xgroup_create(stream, 'ocr', '0', mkstream=True)\n"
    "while True: bus.xreadgroup('ocr', 'me', streams, block=1000)\n",
]
"""A service that takes directives and reports nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


async def test_sdk_service_passes_over_redis_and_pull_cases_are_skipped(server: RedisServer) -> None:
    given = options(SDK, bus=server.url, service="ocr", bad_payload=None, patience=15.0, ack_seconds=6.0)
    report = await run(given, choose(CASES), pace=Pace(service="ocr"))
    assert {case.id: case.outcome for case in report.cases if case.outcome is not CaseOutcome.PASS} == {
        "bad-payload": CaseOutcome.SKIPPED,
        "idle": CaseOutcome.SKIPPED,
    }, report.cases
    with redis.Redis.from_url(server.url) as client:
        assert client.keys("*") == [], "nothing is left behind"


async def test_service_without_callbacks_fails(server: RedisServer) -> None:
    given = options(FORGETFUL, bus=server.url, service="ocr", patience=1.0)
    (case,) = (await run(given, choose(["result"]), pace=Pace(service="ocr"))).cases
    assert (case.outcome, "no callback came" in case.seen) == (CaseOutcome.FAIL, True), case


@pytest.mark.parametrize(("bus", "says"), [("kafka:", "not kafka:"), ("redis://h", "--service is required")])
async def test_unsupported_bus_is_refused(bus: str, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        await run(options(SDK, bus=bus), choose(["result"]))
