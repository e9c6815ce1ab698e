"""The same job as a plain Temporal application: three times a publish activity, then a wait for the result's signal.

As its document says, it is deployed as an API, which takes commands and callbacks by HTTP (`app`), and a worker, which
runs the workflows (`works`). The activity hands each directive to `service`, a third process, which answers at once by
a callback, and that becomes the signal. It keeps no ledger, records no leases, has no ACKs and fences nothing.
Activities come with the answer to the task that wants them, and there are as many pollers as there is work for.

`bare` is what suits Temporal best, and no service can do: one process that starts the workflows, runs them, and has
the service as a task beside them, without HTTP; the first workflow task comes with the answer to the start, and a
result often with the end of the activity that asked for it.

python -m bench.temporal_plain --inflight 16 --seconds 8
uvicorn --factory bench.temporal_plain:app      …:works      …:service

All read TEMPORAL_ADDRESS; `works` also SERVICE_URL, and `service` APP_URL.
"""

import argparse
import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import PollerBehaviorAutoscaling, Worker

with workflow.unsafe.imports_passed_through():
    import aiohttp
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from bench.load import COMMAND, closed_loop
    from bench.processes import run_fast

QUEUE = "plain"
STEPS = ["ocr", "embedding", "sis"]
MAX_ATTEMPTS = 3
STEP_SECONDS = timedelta(minutes=5)
PUBLISH_SECONDS = timedelta(seconds=10)
PUBLISH_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=10)


@dataclass
class PlainCommand:
    tenant_id: str
    steps: list[str]
    input_ref: str
    output_ref: str
    payload: dict[str, Any]


@dataclass
class PlainDirective:
    job_id: str
    tenant_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    input_ref: str
    output_ref: str
    payload: dict[str, Any]


@dataclass
class PlainResult:
    step_id: str
    attempt_no: int
    lease_id: str
    status: str


@workflow.defn
class PlainJob:
    def __init__(self) -> None:
        self._results: dict[str, PlainResult] = {}

    @workflow.run
    async def run(self, command: PlainCommand) -> str:
        for step_id in command.steps:
            result = await self._step(command, step_id)
            if result.status != "SUCCEEDED":
                raise ApplicationError(f"{step_id} is {result.status}", non_retryable=True)
        return "SUCCEEDED"

    @workflow.signal
    def step_result(self, result: PlainResult) -> None:
        self._results[result.lease_id] = result

    async def _step(self, command: PlainCommand, step_id: str) -> PlainResult:
        for attempt_no in range(1, MAX_ATTEMPTS + 1):
            lease_id = str(workflow.uuid4())
            directive = PlainDirective(
                job_id=workflow.info().workflow_id,
                tenant_id=command.tenant_id,
                step_id=step_id,
                attempt_no=attempt_no,
                lease_id=lease_id,
                input_ref=command.input_ref,
                output_ref=command.output_ref,
                payload=command.payload.get(step_id, {}),
            )
            await workflow.execute_activity(
                "publish_to_bus", directive, start_to_close_timeout=PUBLISH_SECONDS, retry_policy=PUBLISH_RETRIES
            )
            try:
                await workflow.wait_condition(partial(self._results.__contains__, lease_id), timeout=STEP_SECONDS)
            except TimeoutError:
                continue
            return self._results[lease_id]
        raise ApplicationError(f"no result of {step_id}", non_retryable=True)


Give = Callable[[PlainDirective], Awaitable[None]]


class Bus:
    def __init__(self, give: Give) -> None:
        self._give = give

    @activity.defn
    async def publish_to_bus(self, directive: PlainDirective) -> None:
        await self._give(directive)


def worker(client: Client, give: Give) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[PlainJob],
        activities=[Bus(give).publish_to_bus],
        max_cached_workflows=2_000,
        max_concurrent_workflow_tasks=100,
        max_concurrent_activities=100,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
    )


async def start(
    client: Client, job_id: str, command: dict[str, Any], *, eager: bool = False
) -> WorkflowHandle[Any, str]:
    given = PlainCommand(
        tenant_id=command["tenant_id"],
        steps=STEPS,
        input_ref=command["input_ref"],
        output_ref=command["output_ref"],
        payload=command["payload"],
    )
    return await client.start_workflow(PlainJob.run, given, id=job_id, task_queue=QUEUE, request_eager_start=eager)


async def tell(client: Client, job_id: str, result: PlainResult) -> None:
    await client.get_workflow_handle(job_id).signal(PlainJob.step_result, result)


async def ready(request: Request) -> JSONResponse:
    return JSONResponse({})


def works() -> Starlette:
    """Return the worker's app, which has no route but its readiness."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def give(directive: PlainDirective) -> None:
                url = f"{os.environ['SERVICE_URL']}/directives"
                async with session.post(url, json=asdict(directive)) as response:
                    response.raise_for_status()

            async with worker(await Client.connect(os.environ["TEMPORAL_ADDRESS"]), give):
                yield

    return Starlette(routes=[Route("/readyz", ready)], lifespan=lifespan)


def app() -> Starlette:
    """Return an app with the two routes that `bench.load` uses and one for results."""
    handles: dict[str, WorkflowHandle[Any, str]] = {}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
        yield

    async def submit(request: Request) -> JSONResponse:
        job_id = str(uuid.uuid4())
        handles[job_id] = await start(application.state.client, job_id, await request.json())
        return JSONResponse({"jobId": job_id}, 202)

    async def wait(request: Request) -> JSONResponse:
        job_id = request.path_params["job_id"]
        return JSONResponse({"jobId": job_id, "status": await handles.pop(job_id).result()})

    async def result(request: Request) -> JSONResponse:
        said = await request.json()
        await tell(application.state.client, said.pop("job_id"), PlainResult(**said))
        return JSONResponse({})

    routes = [
        Route("/v1/commands", submit, methods=["POST"]),
        Route("/v1/jobs/{job_id}", wait),
        Route("/v1/callbacks/result", result, methods=["POST"]),
        Route("/readyz", ready),
    ]
    application = Starlette(routes=routes, lifespan=lifespan)
    return application


def service() -> Starlette:
    """Return an app that takes a directive, and sends the result right after its response."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app.state.session:
            yield

    async def answer(directive: dict[str, Any]) -> None:
        said = {name: directive[name] for name in ("job_id", "step_id", "attempt_no", "lease_id")}
        url = f"{os.environ['APP_URL']}/v1/callbacks/result"
        async with application.state.session.post(url, json={**said, "status": "SUCCEEDED"}) as response:
            response.raise_for_status()

    async def take(request: Request) -> JSONResponse:
        return JSONResponse({}, 202, background=BackgroundTask(answer, await request.json()))

    routes = [Route("/directives", take, methods=["POST"]), Route("/readyz", ready)]
    application = Starlette(routes=routes, lifespan=lifespan)
    return application


async def bare(inflight: int, seconds: float) -> dict[str, float]:
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    answers: set[asyncio.Task[None]] = set()

    async def give(directive: PlainDirective) -> None:
        result = PlainResult(directive.step_id, directive.attempt_no, directive.lease_id, "SUCCEEDED")
        answer = asyncio.create_task(tell(client, directive.job_id, result))
        answers.add(answer)
        answer.add_done_callback(answers.discard)

    async def job(key: str) -> float:
        began = time.perf_counter()
        handle = await start(client, str(uuid.uuid4()), {**COMMAND, "tenant_id": "tenant-1"}, eager=True)
        if await handle.result() != "SUCCEEDED":
            raise RuntimeError(f"job {key} failed")
        return time.perf_counter() - began

    async with worker(client, give):
        return await closed_loop(job, inflight, seconds, "bare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inflight", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    print(json.dumps(run_fast(bare(given.inflight, given.seconds))))


if __name__ == "__main__":
    main()
