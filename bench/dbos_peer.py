"""The same job in DBOS, on the same PostgreSQL: two ways, and a service that takes the steps.

`app` is like for like: a command by HTTP starts a durable workflow of three steps; each is handed to a service in
another process, which sends its result to the workflow as a message. `plain` is what suits DBOS best: three
functions that do nothing, called in the process that loops over the jobs, without HTTP or hand-over.

python -m bench.dbos_peer --inflight 32 --seconds 8
uvicorn --factory bench.dbos_peer:app      uvicorn --factory bench.dbos_peer:service

Both read DBOS_URL, a database of their own; `app` also SERVICE_URL.
"""

import argparse
import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from dbos import DBOS, DBOSClient, SetWorkflowID
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.load import closed_loop

STEPS = ("ocr", "embedding", "sis")
POOL = 32  # connections: its default of 20 is fewer than the jobs in flight


def _launch() -> None:
    DBOS(
        config={
            "name": "peer",
            "system_database_url": os.environ["DBOS_URL"].replace("postgresql:", "postgresql+psycopg:"),
            "sys_db_pool_size": POOL,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()


def app() -> Starlette:
    """Return an app with the two routes that `bench.load` uses."""
    handles: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            app.state.session = session
            _launch()
            yield
            DBOS.destroy()

    async def hand_over(workflow_id: str, step: str) -> None:
        directive = {"workflow_id": workflow_id, "step": step}
        async with application.state.session.post(f"{os.environ['SERVICE_URL']}/steps", json=directive) as response:
            response.raise_for_status()

    handed_over = DBOS.step()(hand_over)

    async def job(command: dict[str, Any]) -> str:
        for step in STEPS:
            await handed_over(str(DBOS.workflow_id), step)
            if await DBOS.recv_async(topic=step) is None:
                raise TimeoutError(step)
        return "SUCCEEDED"

    workflow = DBOS.workflow()(job)

    async def submit(request: Request) -> JSONResponse:
        job_id = str(uuid.uuid4())
        with SetWorkflowID(job_id):
            handles[job_id] = await DBOS.start_workflow_async(workflow, await request.json())
        return JSONResponse({"jobId": job_id}, 202)

    async def wait(request: Request) -> JSONResponse:
        job_id = request.path_params["job_id"]
        return JSONResponse({"jobId": job_id, "status": await handles.pop(job_id).get_result()})

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({})

    routes = [
        Route("/v1/commands", submit, methods=["POST"]),
        Route("/v1/jobs/{job_id}", wait),
        Route("/readyz", ready),
    ]
    application = Starlette(routes=routes, lifespan=lifespan)
    return application


def service() -> Starlette:
    """Return an app that takes a step, and sends the result to the workflow right after its response."""
    client = DBOSClient(system_database_url=os.environ["DBOS_URL"].replace("postgresql:", "postgresql+psycopg:"))

    async def take(request: Request) -> JSONResponse:
        directive = await request.json()
        key = f"{directive['workflow_id']}/{directive['step']}"
        done = BackgroundTask(client.send_async, directive["workflow_id"], {}, directive["step"], key)
        return JSONResponse({}, 202, background=done)

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({})

    return Starlette(routes=[Route("/steps", take, methods=["POST"]), Route("/readyz", ready)])


async def plain(inflight: int, seconds: float) -> dict[str, float]:
    async def nothing(step: str) -> dict[str, str]:
        return {}

    step = DBOS.step()(nothing)

    async def job(command: dict[str, Any]) -> str:
        for name in STEPS:
            await step(name)
        return "SUCCEEDED"

    workflow = DBOS.workflow()(job)
    _launch()

    async def one(key: str) -> float:
        began = time.perf_counter()
        handle = await DBOS.start_workflow_async(workflow, {"key": key})
        await handle.get_result()
        return time.perf_counter() - began

    try:
        return await closed_loop(one, inflight, seconds, "plain")
    finally:
        DBOS.destroy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inflight", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(plain(arguments.inflight, arguments.seconds))))


if __name__ == "__main__":
    main()
