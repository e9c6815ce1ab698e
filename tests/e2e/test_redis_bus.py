"""Jobs over a real Redis: a control plane, two service processes, and a kill -9 in the middle."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lucius.version import __version__
from tests.e2e.support import KEY, REPO, Stack, Zygote, until
from tests.support.redis import RedisServer

JOBS = 12
IDLE = 1.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder).start()
    yield server
    server.stop()


@pytest.fixture
def stack(forks: Zygote, tmp_path: Path, server: RedisServer) -> Iterator[Stack]:
    url = f"{server.url}?idle={IDLE}"
    with contextlib.closing(Stack(forks, tmp_path, LUCIUS_BUS_URL=url, LUCIUS_SWEEP_INTERVAL="0.05")) as stack:
        stack.serve()
        yield stack


@contextlib.contextmanager
def services(stack: Stack, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run services as an operator would, with a data folder per process, as on separate machines."""
    command = [sys.executable, "-m", "lucius.cli", "service", "ocr", "embedding", "sis"]
    env = {**os.environ, **stack.env, "LUCIUS_API_KEY": KEY, "LUCIUS_DATA_DIR": str(stack.folder / name)}
    with (stack.logs / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPO, env={**env, "LUCIUS_SERVICE_DELAY": "1"}, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_jobs_continue_although_a_service_is_killed(stack: Stack, server: RedisServer) -> None:
    with services(stack, "one") as one, services(stack, "two") as two:
        submitted = [stack.api.submit(stack.command(number, "OCR_EMBEDDING_SIS")) for number in range(JOBS)]
        until(lambda: stack.api.get("/v1/jobs?blocked_on=RESULT")["jobs"], f"a service works; {stack.log('one')}", 60)
        one.kill()
        submitted.append(stack.api.submit(stack.command(JOBS, "OCR_EMBEDDING_SIS")))  # work of each service for `two`

        def ended() -> bool:
            return all(stack.api.get(f"/v1/jobs/{job}")["status"] == "SUCCEEDED" for job in submitted)

        until(ended, f"every job succeeds; log: {stack.log('two')}", 90)
        listed = {one["service"]: one for one in stack.api.get("/v1/services")["services"]}
        for name in ("ocr", "embedding", "sis"):
            agents = {seen["instance"]: seen["agent"] for seen in listed[name]["instances"]}
            assert f"{name}/{__version__} " in agents[f"{socket.gethostname()}:{two.pid}"]
            assert listed[name]["last_pull_at"] is None
        two.terminate()
        assert two.wait(30) == 0
    for job in submitted:
        steps = stack.api.get(f"/v1/jobs/{job}")["steps"]
        assert [step["attempt_no"] for step in steps] == [1, 1, 1], "the bus, not a lease, brought it forward"
    with redis.Redis.from_url(server.url) as client:
        keys: Any = client.keys("lucius:*")
        assert {key: client.xlen(key) for key in keys} == dict.fromkeys(keys, 0)


def test_service_that_reads_redis_directly_finishes_jobs(stack: Stack, server: RedisServer) -> None:
    submitted = [stack.api.submit(stack.command(number)) for number in range(3)]
    with redis.Redis.from_url(server.url) as client:
        client.xadd("lucius:global-bus-p0:ocr", {"job_id": "none", "directive": "{"})
        env = {**os.environ, **stack.env, "SERVICE": "ocr"}
        command = [sys.executable, str(REPO / "examples" / "service_over_redis.py"), "3"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {stack.api.get(f"/v1/jobs/{job}")["status"] for job in submitted} == {"SUCCEEDED"}
        assert {stack.api.step(job, "ocr")["attempt_no"] for job in submitted} == {1}
        (listed,) = stack.api.get("/v1/services")["services"]
        assert [seen["agent"] for seen in listed["instances"]] == ["ocr/example"]
        keys: Any = client.keys("lucius:*")
        until(lambda: not any(client.xlen(key) for key in keys), "every message is settled")
