"""Measures how much one tenant's flood of commands slows another tenant's jobs.

A quiet tenant runs one job at a time, first alone and then while a flooding tenant submits commands on several
connections as fast as they are answered. Prints the ratio of the quiet tenant's completion times.

python -m bench.fairness [--runs 3] [--seconds 6] [--connections 4] [--batch 1] [--kilobytes 0] [--pause 0]
    [--share 0.4]
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from msgspec import Struct

from bench.load import COMMAND, WARM_UP
from bench.processes import run_fast
from bench.run import KEY, stack

MAX_RATIO = 2.0
MIN_JOBS = 3
SETTLE_SECONDS = 1.0  # of the flood, until the pacer has found its rate
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


def command(tenant_id: str) -> dict[str, object]:
    return {**COMMAND, "tenant_id": tenant_id, "idempotency_key": os.urandom(12).hex()}


class Flood(Struct, frozen=True):
    """How one tenant submits: commands in a batch, on so many connections.

    With `kilobytes`, each command has a payload of that size, and is refused for it once it has been decoded.
    """

    connections: int
    batch: int
    kilobytes: int

    def body(self) -> str:
        commands = [command("flood") for _ in range(self.batch)]
        if self.kilobytes:
            commands = [{**one, "payload": {"unknown": ["x" * 7] * (self.kilobytes * 100)}} for one in commands]
        return json.dumps(commands[0] if self.batch == 1 else {"commands": commands})


async def run_flood(base_url: str, flood: Flood) -> None:
    """Submit on each connection as fast as it is answered, until the process is ended. Print a line once it began."""
    began = asyncio.Event()

    async def submit_forever(session: aiohttp.ClientSession) -> None:
        url = f"{base_url}/v1/commands" if flood.batch == 1 else f"{base_url}/v1/commands:batch"
        body = flood.body()
        while True:
            if not flood.kilobytes:
                body = flood.body()  # large ones are all the same: to encode them would take longer than their answer
            async with session.post(url, data=body, headers=HEADERS) as response:
                await response.read()
                if not began.is_set():
                    began.set()
                    print("began", flush=True)
                if response.status in (429, 503):
                    await asyncio.sleep(float(response.headers.get("retry-after", "1")))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(submit_forever(session) for _ in range(flood.connections)))


async def run_quiet_tenant(base_url: str, seconds: float, pause: float) -> list[float]:
    """Run one job at a time, MIN_JOBS at least, with a pause after each; return their times in milliseconds."""
    took: list[float] = []
    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds or len(took) < MIN_JOBS:
            async with session.post(
                f"{base_url}/v1/commands", data=json.dumps(command("quiet")), headers=HEADERS
            ) as response:
                accepted = await response.json()
                if response.status != 202:
                    raise RuntimeError(f"refused: {accepted}")
            async with session.get(f"{base_url}/v1/jobs/{accepted['jobId']}?wait=50", headers=HEADERS) as response:
                job = await response.json()
            if job["status"] != "SUCCEEDED":
                raise RuntimeError(f"job {job['jobId']} is {job['status']}")
            took.append((time.perf_counter() - now) * 1000)
            await asyncio.sleep(pause)
    return took


@contextlib.contextmanager
def flooding(base_url: str, flood: Flood) -> Iterator[None]:
    """Run the flood in a process of its own, from its first answer on."""
    sizes = ("--connections", flood.connections, "--batch", flood.batch, "--kilobytes", flood.kilobytes)
    command = [sys.executable, "-m", "bench.fairness", "--flood", base_url, *map(str, sizes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the flood ended before it began")
        yield
    finally:
        process.kill()
        process.wait()


def count_answers(base_url: str) -> tuple[float, float]:
    """Return the number of jobs that were accepted, and of commands that were refused for their payload."""
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    accepted, refused = (
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
        for name in ("lucius_jobs_accepted_total", 'lucius_refusals_total{code="INVALID_PAYLOAD"}')
    )
    return accepted, refused


def measure(seconds: float, flood: Flood, pause: float, share: str) -> float:
    """Print the quiet tenant's completion times alone and beside the flood, and return their ratio.

    Also prints how many of the flood's commands are answered for each of the quiet tenant's jobs. Beside other busy
    processes this number tells more than times, which depend on what else the processors do.
    """
    settings = {"LUCIUS_TENANT_SHARE": share} if share else {}
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder), **settings) as running:
        url = running.base_url
        run_fast(run_quiet_tenant(url, seconds * WARM_UP, pause))
        alone = run_fast(run_quiet_tenant(url, seconds, pause))
        with flooding(url, flood):
            run_fast(run_quiet_tenant(url, max(SETTLE_SECONDS, seconds * WARM_UP), pause))
            began, before = time.perf_counter(), count_answers(url)
            beside = run_fast(run_quiet_tenant(url, seconds, pause))
            took, after = time.perf_counter() - began, count_answers(url)
    accepted, refused = after[0] - before[0], after[1] - before[1]
    ratio = statistics.median(beside) / statistics.median(alone)
    print(
        f"alone p50 {statistics.median(alone):.1f} ms ({len(alone)} jobs), beside the flood "
        f"p50 {statistics.median(beside):.1f} ms, longest {max(beside):.0f} ms ({len(beside)} jobs): "
        f"{ratio:.1f} times; both have {accepted / took:.0f} jobs/s; the flood has "
        f"{(accepted + refused - len(beside)) / len(beside):.1f} answers for each job of the other tenant",
        flush=True,
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--kilobytes", type=int, default=0, help="size of the flood's commands, which are refused")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two jobs of the quiet tenant")
    parser.add_argument("--share", default="", help="LUCIUS_TENANT_SHARE of the server; 1 turns pacing off")
    parser.add_argument("--flood", default="", help="submit commands to this URL until ended; used by the bench itself")
    arguments = parser.parse_args()
    flood = Flood(arguments.connections, arguments.batch, arguments.kilobytes)
    if arguments.flood:
        run_fast(run_flood(arguments.flood, flood))
        return
    ratios = [measure(arguments.seconds, flood, arguments.pause, arguments.share) for _ in range(arguments.runs)]
    median = statistics.median(ratios)
    print(f"a flood makes another tenant's jobs {median:.1f} times slower ({min(ratios):.1f}-{max(ratios):.1f})")
    print(f"goal: at most {MAX_RATIO:.0f} times: {'met' if median <= MAX_RATIO else 'NOT MET'}")


if __name__ == "__main__":
    main()
