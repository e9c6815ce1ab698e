"""The load generator: a closed loop that keeps a number of jobs in flight and times each from submit to end."""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from bench.processes import run_fast

WARM_UP = 0.2
COMMAND = {
    "request_type": "OCR_EMBEDDING_SIS",
    "input_ref": "blob://in/a.pdf",
    "output_ref": "blob://out/a",
    "payload": {"ocr": {"language": "en"}, "embedding": {}, "sis": {"prompt_set": ["What is the total?"]}},
    "schema_version": "v1",
}


class Client:
    def __init__(self, base_url: str, api_key: str, session: aiohttp.ClientSession) -> None:
        self._base = base_url
        self._headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
        self._session = session

    async def job(self, key: str) -> float:
        """Run one job, and return the seconds from its command to its end."""
        began = time.perf_counter()
        # Random keys, as clients have them, land anywhere in an index.
        said = {**COMMAND, "tenant_id": f"tenant-{hash(key) % 8}", "idempotency_key": f"{os.urandom(8).hex()}-{key}"}
        body = json.dumps(said)
        async with self._session.post(f"{self._base}/v1/commands", data=body, headers=self._headers) as response:
            accepted: dict[str, Any] = await response.json()
            if response.status != 202:
                raise RuntimeError(f"refused: {accepted}")
        url = f"{self._base}/v1/jobs/{accepted['jobId']}?wait=30"
        async with self._session.get(url, headers=self._headers) as response:
            job = await response.json()
        if job["status"] != "SUCCEEDED":
            raise RuntimeError(f"job {job['jobId']} is {job['status']}")
        return time.perf_counter() - began


async def run(base_url: str, api_key: str, inflight: int, seconds: float, prefix: str) -> dict[str, float]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        return await closed_loop(Client(base_url, api_key, session).job, inflight, seconds, prefix)


async def closed_loop(
    job: Callable[[str], Awaitable[float]], inflight: int, seconds: float, prefix: str
) -> dict[str, float]:
    """Return jobs per second and latencies over `seconds`, after a warm-up."""
    start = time.perf_counter() + seconds * WARM_UP
    stop = start + seconds
    ended: list[tuple[float, float]] = []

    async def lane(n: int) -> None:
        i = 0
        while time.perf_counter() < stop or not ended:
            latency = await job(f"{prefix}-{n}-{i}")
            i += 1
            if time.perf_counter() >= start:
                ended.append((time.perf_counter(), latency))

    await asyncio.gather(*(lane(n) for n in range(inflight)))
    last = max(stop, ended[0][0])  # always counts one job, even on a machine too busy to end it in time
    taken = sorted(latency for at, latency in ended if at <= last)
    return {
        "jobs_per_second": len(taken) / (last - start),
        "p50_ms": taken[len(taken) // 2] * 1000,
        "p99_ms": taken[int(len(taken) * 0.99)] * 1000,
        "jobs": len(taken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--inflight", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--prefix", required=True)
    arguments = parser.parse_args()
    figures = run_fast(
        run(arguments.base_url, arguments.api_key, arguments.inflight, arguments.seconds, arguments.prefix)
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
