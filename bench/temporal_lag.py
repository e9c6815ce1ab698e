"""How far the ledger is behind Temporal: a service that sees for itself, after a callback was applied, when it shows.

python -m bench.temporal_lag --base-url … --api-key … --service embedding     until SIGTERM; then milliseconds as JSON

It answers each directive at once. Now and then it asks for the job, from the moment that its result was answered as
APPLIED, which is when Temporal had the signal, until the step is shown as SUCCEEDED.
"""

import argparse
import asyncio
import json
import signal
import time
from typing import Any

import aiohttp

from bench.processes import run_fast

IDENTITY = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
LOOK_SECONDS = 0.01
MAX_LOOKING = 2
"""Limit on concurrent polling, which also loads the API."""


class Looker:
    def __init__(self, base_url: str, api_key: str, service: str, session: aiohttp.ClientSession) -> None:
        self._base = base_url
        self._headers = {"authorization": f"Bearer {api_key}"}
        self._service = service
        self._session = session
        self._looking = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.lags: list[float] = []

    async def serve(self) -> None:
        while True:
            asked = {"max": 16, "wait_seconds": 10}
            pulled = await self._post(f"{self._base}/v1/services/{self._service}/directives:pull", asked)
            for directive in pulled["directives"]:
                task = asyncio.create_task(self._answer(directive))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, directive: dict[str, Any]) -> None:
        who = {name: directive[name] for name in IDENTITY} | {"callback_token": directive["callback_token"]}
        said = [{"type": "ack", **who}, {"type": "result", **who, "status": "SUCCEEDED", "result": {}}]
        answered = await self._post(f"{self._base}/v1/callbacks:batch", {"callbacks": said})
        at = time.perf_counter()
        if answered["results"][-1].get("disposition") != "APPLIED" or self._looking >= MAX_LOOKING:
            return
        self._looking += 1
        try:
            while not await self._shows(directive["jobId"], directive["stepId"]):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
            self.lags.append((time.perf_counter() - at) * 1000)
        finally:
            self._looking -= 1

    async def _shows(self, job_id: str, step_id: str) -> bool:
        async with self._session.get(f"{self._base}/v1/jobs/{job_id}", headers=self._headers) as response:
            job = await response.json()
        return any(step["stepId"] == step_id and step["status"] == "SUCCEEDED" for step in job["steps"])

    async def _post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(url, json=body, headers=self._headers) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer


async def run(base_url: str, api_key: str, service: str) -> list[float]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        looker = Looker(base_url, api_key, service, session)
        serving, stopping = asyncio.create_task(looker.serve()), asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        serving.cancel()
        return looker.lags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--service", required=True)
    given = parser.parse_args()
    print(json.dumps(run_fast(run(given.base_url, given.api_key, given.service))))


if __name__ == "__main__":
    main()
