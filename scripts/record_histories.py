"""Write workflow histories for replay tests: today's code must be able to continue what an old version started.

Runs jobs of every kind on a real Temporal server. Existing files are kept, since they record deployed versions. Names
of machines and processes are removed. `python -m scripts.record_histories [name …]`

Names that end in `-early` are recorded with callbacks that arrive before their signals and no inline decisions, those
that end in `-plain` with LUCIUS_TEMPORAL_FASTPATH=off.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import AsyncMock

from msgspec.structs import replace
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from tests.conformance import test_examples_run as examples
from tests.conformance.test_examples_run import World, open_world
from tests.support.api import Api, serving
from tests.support.temporal import binary
from tests.temporal.test_examples import soon
from tests.temporal.twin_api import FollowingApi, TimeFlows

from lucius.adapters.bus.memory import MemoryBus
from lucius.bootstrap.settings import Settings
from lucius.core.model.decision import Defaults
from lucius.engine.temporal.fastpath.inline_decisions import InlineDecisions

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "histories"
MAX_EVENTS = 60
"""Events after which the server suggests to continue as new."""
SOON = Defaults(ack_timeout_ms=400, lease_ms=2_000, backoff_scale=0.02)
OF_A_MACHINE = frozenset({"identity", "name", "binaryChecksum", "buildId", "requestId", "stackTrace"})

Scenario = Callable[[World], Awaitable[None]]


async def one_step(world: World) -> None:
    await _finish(world.api, await world.api.submit())


async def two_steps(world: World) -> None:
    """Two results that arrive while the task is open, before their signals."""
    job_id = await world.api.submit(request_type="OCR_EMBEDDING")
    for service in ("ocr", "embedding"):
        (await world.api.succeed(await world.api.pull_one(service))).ok()
    await world.end(job_id)


async def repeated_result(world: World) -> None:
    """A repeated result that arrives while the task is open, before its signal."""
    job_id = await world.api.submit(request_type="OCR_EMBEDDING")
    ocr = await world.api.pull_one("ocr")
    for _ in range(2):
        (await world.api.succeed(ocr)).ok()
    (await world.api.succeed(await world.api.pull_one("embedding"))).ok()
    await world.end(job_id)


async def retried_step(world: World) -> None:
    job_id = await world.api.submit()
    (await world.api.fail(await world.api.pull_one(), failure_class="RETRYABLE")).ok()
    await _finish(world.api, job_id)


async def timed_out(world: World) -> None:
    """The first attempt gets no ACK; the second is acknowledged and then loses its lease."""
    job_id = await world.api.submit()
    await world.api.pull_one()
    directive = await world.api.pull_one()
    (await world.api.callback("ack", directive)).ok()
    await _finish(world.api, job_id)


async def cancelled(world: World) -> None:
    job_id = await world.api.submit()
    directive = await world.api.pull_one()
    (await world.api.callback("ack", directive)).ok()
    (await world.api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "not needed"})).ok(202)
    (await world.api.fail(directive, failure_class="NON_RETRYABLE")).ok()
    await world.end(job_id)


async def cancelled_in_temporal(world: World) -> None:
    job_id = await world.api.submit()
    directive = await world.api.pull_one()
    (await world.api.callback("ack", directive)).ok()
    settings = world.api.runtime.settings
    client = await Client.connect(settings.temporal_address)
    await client.get_workflow_handle(job_id).cancel(reason="not needed")
    while (await world.api.job(job_id))["status"] != "CANCELLING":  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (await world.api.fail(directive, failure_class="NON_RETRYABLE")).ok()
    await world.end(job_id)


async def paused(world: World) -> None:
    job_id = await world.api.submit()
    (await world.api.post(f"/v1/jobs/{job_id}:pause", {})).ok(202)
    (await world.api.post(f"/v1/jobs/{job_id}:resume", {})).ok(202)
    await _finish(world.api, job_id)


async def retried_job(world: World) -> None:
    job_id = await world.api.submit()
    (await world.api.fail(await world.api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    await world.end(job_id)
    (await world.api.post(f"/v1/jobs/{job_id}:retry", {"reason": "mended"})).ok(202)
    await _finish(world.api, job_id)


async def pushed(world: World) -> None:
    """The bus is down at first, so the hand-over needs its own activity."""
    bus = world.api.runtime.publisher
    assert isinstance(bus, MemoryBus)
    bus.down = True
    job_id = await world.api.submit()
    await asyncio.sleep(0.3)
    bus.down = False
    (directive,) = await bus.consumer("ocr").pull(1, 5.0)
    said = {name: getattr(directive, name) for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    (await world.api.succeed({**said, "callback_token": directive.callback_token})).ok()
    await world.end(job_id)


async def many_heartbeats(world: World) -> None:
    """Enough heartbeats to continue as new."""
    job_id = await world.api.submit()
    directive = await world.api.pull_one()
    (await world.api.callback("ack", directive)).ok()
    for beat in range(15):
        (await world.api.callback("heartbeat", directive, progress=beat / 15)).ok()
        await asyncio.sleep(0.02)
    (await world.api.succeed(directive)).ok()
    await world.end(job_id)


async def still_waiting(world: World) -> None:
    world.results["extract"] = {"amount": 9000}
    job_id = await world.submit("INVOICE_APPROVAL", supplier="Acme")
    await world.reach(job_id, lambda job: job["status"] == "WAITING_APPROVAL", ("extract",))


SCENARIOS: dict[str, Scenario] = {
    "one-step": one_step,
    "two-steps": two_steps,
    "repeated-result": repeated_result,
    "retried-step": retried_step,
    "timed-out": timed_out,
    "cancelled": cancelled,
    "cancelled-in-temporal": cancelled_in_temporal,
    "paused": paused,
    "retried-job": retried_job,
    "pushed": pushed,
    "many-heartbeats": many_heartbeats,
    "still-waiting": still_waiting,
    "calls": examples.test_small_invoice_is_posted_without_approval,
    "approved": examples.test_large_invoice_needs_two_different_approvers,
    "escalated": examples.test_undecided_approval_is_escalated_and_can_be_rejected,
    "map": examples.test_pages_are_read_one_by_one_and_failures_are_collected,
    "parallel": examples.test_passed_checks_are_joined,
    "loop": examples.test_loop_polls_until_it_is_done,
    "compensated": examples.test_uncertain_payment_is_undone_in_reverse_order,
    "signal": examples.test_early_signature_is_kept_and_a_missing_one_times_out,
}
EARLY, PLAIN = "-early", "-plain"
NAMES = [
    *SCENARIOS,
    *(name + EARLY for name in ("two-steps", "repeated-result", "map")),
    *(
        name + PLAIN
        for name in ("one-step", "two-steps", "repeated-result", "retried-step", "parallel", "many-heartbeats")
    ),
]


async def _finish(api: Api, job_id: str) -> None:
    (await api.succeed(await api.pull_one())).ok()
    while (await api.job(job_id))["completed_at"] is None:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def record(client: Client, address: str, name: str) -> None:
    scenario = name.removesuffix(EARLY).removesuffix(PLAIN)
    queue, bus = f"record-{name}", "memory:" if scenario == "pushed" else "local:"

    @asynccontextmanager
    async def serve(settings: Settings) -> AsyncIterator[Api]:
        settings = replace(
            settings,
            engine="temporal",
            temporal_address=address,
            temporal_task_queue=queue,
            workspace_root="file:///workspace",
            bus_url=bus,
            defaults=SOON if scenario in ("retried-step", "timed-out") else Defaults(),
            temporal_fastpath=not name.endswith(PLAIN),
        )
        async with serving(settings, TimeFlows()) as api:
            yield FollowingApi(api.app, api.runtime, api.clock)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        if name.endswith(EARLY):
            patches.enter_context(mock.patch.object(InlineDecisions, "_decide_inline", AsyncMock(return_value=None)))
        async with open_world(Path(folder), "memory:", serve, soon) as world:
            await SCENARIOS[scenario](world)
            jobs = await world.api.jobs("limit=100")
            await asyncio.sleep(1)  # the last workflow task ends after the ledger knows; then the index follows
            for number, job_id in enumerate(sorted(jobs)):
                await _write(client, name, number, job_id)


async def _write(client: Client, name: str, number: int, job_id: str) -> None:
    runs = [run async for run in client.list_workflows(f"WorkflowId='{job_id}'")]
    for turn, run in enumerate(sorted(runs, key=lambda run: run.start_time)):
        history = await client.get_workflow_handle(job_id, run_id=run.run_id).fetch_history()
        path = FOLDER / f"{name}.{number}.{turn}.json"
        text = json.dumps(_scrubbed(json.loads(history.to_json())), separators=(",", ":"))
        path.write_text(json.dumps({"workflow_id": job_id}, separators=(",", ":")) + "\n" + text + "\n")
        print(f"{path.name}: {len(history.events)} events, {len(text)} bytes")


def _scrubbed(value: Any, inside: str = "") -> Any:
    if isinstance(value, dict):
        return {
            key: "recorded" if key in OF_A_MACHINE and _is_of_a_machine(key, inside) else _scrubbed(found, key)
            for key, found in value.items()
        }
    return [_scrubbed(one, inside) for one in value] if isinstance(value, list) else value


def _is_of_a_machine(key: str, inside: str) -> bool:
    return key != "name" or inside == "taskQueue"


async def main(names: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    there = {path.name.partition(".")[0] for path in FOLDER.glob("*.json")}
    suggests = f"limit.historyCount.suggestContinueAsNew={MAX_EVENTS}"
    server = await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary(),
        dev_server_extra_args=["--dynamic-config-value", suggests],
        dev_server_log_level="error",
    )
    async with server:
        address = server.client.service_client.config.target_host
        for name in names or [name for name in NAMES if name not in there]:
            await record(server.client, address, name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads may abort an interpreter that exits normally
