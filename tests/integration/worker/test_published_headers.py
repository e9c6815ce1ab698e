"""The AsyncAPI document has exactly the headers that the SDK sends."""

import asyncio

from lucius.worker import Service, StepContext, StepResult
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings
from tests.integration.worker.published_headers import MESSAGES, check_headers
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive, until

CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "a=1",
    "correlation_id": "order-7",
}


async def test_pulls_and_callbacks_have_the_documented_headers_and_no_others(orchestrator: FakeOrchestrator) -> None:
    service = Service("ocr", version="2.1")

    @service.step()
    async def wait_for_heartbeat(ctx: StepContext) -> StepResult:
        await until(lambda: any(item["jobId"] == ctx.job_id for item in orchestrator.of_type("heartbeat")))
        return StepResult({})

    stop = asyncio.Event()
    settings = WorkerSettings(orchestrator_url=orchestrator.url, api_key=API_KEY, handle_signals=False)
    running = asyncio.create_task(host([service], settings, stop))
    elsewhere = f"http://localhost:{orchestrator.port}"  # callbacks to another address are sent singly
    for number, base_url in enumerate((orchestrator.url, elsewhere)):
        work = directive(base_url, number, ack_deadline="2100-01-01T00:00:00Z", lease_seconds=0.9, **CONTEXT)
        orchestrator.offer(work)
    await until(lambda: len(orchestrator.of_type("result")) == 2)
    stop.set()
    await running
    assert orchestrator.headers.keys() == MESSAGES.keys()
    for route, requests in orchestrator.headers.items():
        for sent in requests:
            check_headers(route, sent)
