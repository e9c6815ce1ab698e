"""What the SDK itself costs: CPU of a service process per directive, with a step that does nothing.

python -m bench.worker [--directives 5000] [--runs 3]

Directives come over `memory:`; ACKs and RESULTs go to an orchestrator double in a process of its own, over HTTP.
"""

import argparse
import asyncio
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import structlog
from aiohttp import web

from bench.processes import free_port
from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import CallbackUrls, Directive
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings

DONE = StepResult(result={})
CAPACITY = 1_000_000


async def sink(port: int) -> None:
    """Serve an orchestrator double that answers APPLIED to every callback."""

    async def batch(request: web.Request) -> web.Response:
        callbacks = msgspec.json.decode(await request.read())["callbacks"]
        return web.json_response({"results": [{"status": 200, "disposition": "APPLIED"} for _ in callbacks]})

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.post("/v1/callbacks:batch", batch)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def directive(number: int, base_url: str) -> Directive:
    urls = {kind: f"{base_url}/v1/callbacks/{kind}" for kind in ("ack", "heartbeat", "result")}
    return Directive(
        message_id=f"job-{number}/ocr/1",
        jobId=f"job-{number}",
        stepId="ocr",
        tenant_id="acme",
        protocol_id="ocr",
        protocol_version=1,
        request_type="OCR",
        step_type="OCR",
        kind="task",
        service="ocr",
        attempt_no=1,
        lease_id=f"lease-{number}",
        lease_seconds=900.0,
        ack_deadline="2100-01-01T00:00:00.000Z",
        idempotency_key=f"key-{number}",
        lane=number % 16,
        mode="DEFAULT",
        routing_key_used="acme",
        input_ref="blob://in/a.txt",
        workspace_ref=f"file:///nowhere/lucius/acme/job-{number}",
        output_ref="blob://out/a.txt",
        payload={"pages": [1, 2, 3]},
        callback_urls=CallbackUrls(**urls),
        callback_token="t" * 300,
        correlation_id="c",
        last_step=False,
    )


async def serve(count: int, base_url: str, data_dir: Path) -> float:
    """Return this process's CPU seconds per directive."""
    service = Service("ocr")
    bus = MemoryBus(CAPACITY)
    stop = asyncio.Event()
    ended = 0

    @service.step("OCR")
    async def execute(ctx: StepContext) -> StepResult:
        nonlocal ended
        ended += 1
        if ended == count:
            stop.set()
        return DONE

    for number in range(count):
        await bus.publish("global-bus-p0", directive(number, base_url))
    settings = WorkerSettings(orchestrator_url=base_url, data_dir=data_dir, handle_signals=False)
    before = time.process_time()
    await host([service], settings, stop, bus.consumer)
    return (time.process_time() - before) / count


def measure(count: int) -> float:
    port = free_port()
    command = [sys.executable, "-m", "bench.worker", "--sink", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as peer, tempfile.TemporaryDirectory() as folder:
        try:
            assert peer.stdout is not None
            peer.stdout.readline()
            return asyncio.run(serve(count, f"http://127.0.0.1:{port}", Path(folder)))
        finally:
            peer.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directives", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sink", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if arguments.sink:
        asyncio.run(sink(arguments.sink))
        return
    spent = sorted(measure(arguments.directives) * 1e3 for _ in range(arguments.runs))
    print(
        f"SDK, empty step over memory:         {statistics.median(spent):.3f} ms of CPU per directive "
        f"({spent[0]:.3f}-{spent[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
