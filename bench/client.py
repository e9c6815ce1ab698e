"""Submit and wait, by the Python client and by aiohttp alone, in turns against one server.

python -m bench.client [--rounds 5] [--seconds 3]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import COMMAND
from bench.load import Client as Bare
from bench.run import KEY, stack
from lucius.client import AsyncClient

BARE, OURS = "aiohttp alone", "lucius.client"

Job = Callable[[str], Awaitable[object]]


async def rate(job: Job, inflight: int, seconds: float, prefix: str) -> tuple[float, float]:
    """Return jobs per second, from submission to end, and this process's CPU milliseconds per job."""
    began, busy, done = time.perf_counter(), time.process_time(), 0

    async def lane(n: int) -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            await job(f"{prefix}-{n}-{done}")
            done += 1

    await asyncio.gather(*(lane(n) for n in range(inflight)))
    return done / (time.perf_counter() - began), (time.process_time() - busy) * 1000 / done


def by_client(lucius: AsyncClient) -> Job:
    said: dict[str, Any] = {**COMMAND}

    async def job(key: str) -> None:
        accepted = await lucius.submit(
            said["request_type"],
            tenant=f"tenant-{hash(key) % 8}",
            input=said["input_ref"],
            output=said["output_ref"],
            payload=said["payload"],
            idempotency_key=key,
        )
        await lucius.wait(accepted.jobId, check=True)

    return job


async def compare(base_url: str, inflight: int, rounds: int, seconds: float) -> None:
    found: dict[str, list[tuple[float, float]]] = {BARE: [], OURS: []}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        AsyncClient(base_url, api_key=KEY) as lucius,
    ):
        ways: dict[str, Job] = {BARE: Bare(base_url, KEY, session).job, OURS: by_client(lucius)}
        for name, way in ways.items():
            await rate(way, inflight, 1, f"warm-{name}-{inflight}")
        for n in range(rounds):
            for name, way in sorted(ways.items(), reverse=bool(n % 2)):
                found[name].append(await rate(way, inflight, seconds, f"{name}-{inflight}-{n}"))
    rates = {name: statistics.median(rate for rate, _ in runs) for name, runs in found.items()}
    for name, runs in found.items():
        spread = f"{min(runs)[0]:.0f}-{max(runs)[0]:.0f}"
        cpu = statistics.median(cpu for _, cpu in runs)
        print(f"{inflight:>3} in flight  {name:<14} {rates[name]:>5.0f} jobs/s ({spread})  {cpu:.2f} ms of CPU each")
    print(f"{inflight:>3} in flight  {rates[OURS] / rates[BARE]:.0%} of aiohttp alone", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder)) as running:
        for inflight in (1, 32):
            asyncio.run(compare(running.base_url, inflight, arguments.rounds, arguments.seconds))


if __name__ == "__main__":
    main()
