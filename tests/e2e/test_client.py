"""The Python client against a server that is killed with kill -9."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lucius.client import AsyncClient
from tests.e2e.support import KEY, Stack, Zygote

COMMANDS = 40


@pytest.fixture
def stack(forks: Zygote, tmp_path: Path) -> Iterator[Stack]:
    with closing(Stack(forks, tmp_path)) as stack:
        stack.serve()
        yield stack


def said(stack: Stack) -> dict[str, Any]:
    return {"tenant": "acme", "input": stack.command()["input_ref"], "output": stack.command()["output_ref"]}


async def test_each_command_is_one_job_although_the_server_is_killed(stack: Stack) -> None:
    accepted: dict[int, str] = {}
    async with AsyncClient(stack.api.base_url, api_key=KEY) as lucius:

        async def submit(numbers: range) -> None:
            for n in numbers:
                accepted[n] = (await lucius.submit("OCR", **said(stack), idempotency_key=f"k-{n}")).jobId

        submitting = [asyncio.create_task(submit(range(i, COMMANDS, 4))) for i in range(4)]
        async with asyncio.timeout(60):
            for share in (1 / 4, 2 / 4):
                while len(accepted) < COMMANDS * share:
                    await asyncio.wait(submitting, timeout=0.005)
                await asyncio.to_thread(stack.restart_after_kill)
            await asyncio.gather(*submitting)
        jobs = {job.jobId async for job in lucius.jobs()}
    assert len(accepted) == COMMANDS
    assert jobs == set(accepted.values())


async def test_waiting_and_following_survive_kill_9(stack: Stack) -> None:
    async with AsyncClient(stack.api.base_url, api_key=KEY) as lucius:
        job_id = (await lucius.submit("OCR", **said(stack))).jobId
        waiting = asyncio.create_task(lucius.wait(job_id, timeout=60))
        events = lucius.stream(job_id)
        received = [await anext(events), await anext(events)]
        (directive,) = await asyncio.to_thread(stack.api.pull, "ocr", 1, 5)
        for _ in range(2):
            await asyncio.to_thread(stack.restart_after_kill)
        status, _ = await asyncio.to_thread(stack.api.call_back, "result", directive, status="SUCCEEDED")
        assert status == 200
        async with asyncio.timeout(60):
            received += [event async for event in events]
            assert (await waiting).status == "SUCCEEDED"
    assert [event.seq for event in received] == [event["seq"] for event in stack.api.events(job_id)]
    assert received[-1].type == "JOB_SUCCEEDED"


def test_ctrl_c_ends_a_script_that_waits(stack: Stack) -> None:
    job_id = stack.api.submit(stack.command())
    script = f"""
import signal
from lucius.client import Client
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it from the start
with Client({stack.api.base_url!r}, api_key={KEY!r}) as lucius:
    print("waiting", flush=True)
    lucius.wait({job_id!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode in (-signal.SIGINT, 130)
    assert b"KeyboardInterrupt" in errors
