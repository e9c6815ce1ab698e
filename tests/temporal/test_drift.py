"""Between ledger and Temporal there is no gap that stays: whatever one has lost, it learns from the other."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from temporalio.client import Client

from lucius.adapters.ledger_memory import MemoryLedger
from lucius.core.inputs import DeadlinePassed
from lucius.core.model import JobStatus, OutboxStatus
from lucius.ports.errors import ForeignEngine
from lucius.wiring import open_runtime
from tests.conformance.control_plane import ControlPlane, control_plane
from tests.support.temporal import TemporalServer

WITHIN = 60.0


def over(server: TemporalServer, **more: str) -> dict[str, str]:
    queue = f"test-{uuid.uuid4().hex[:12]}"
    return {
        "LUCIUS_ENGINE": "temporal",
        "LUCIUS_TEMPORAL_ADDRESS": server.address,
        "LUCIUS_TEMPORAL_TASK_QUEUE": queue,
        "LUCIUS_LEDGER_URL": "memory:",
        **more,
    }


@pytest.fixture
async def plane(tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[ControlPlane]:
    async with control_plane(tmp_path, **over(temporal_server)) as plane:
        yield plane


@pytest.fixture
async def client(temporal_server: TemporalServer) -> Client:
    return await Client.connect(temporal_server.address)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN):
        while not await true():  # noqa: ASYNC110 - it happens in another process, or in a thread of the SDK
            await asyncio.sleep(0.02)


async def status(plane: ControlPlane, job_id: str) -> JobStatus:
    view = await plane.runtime.store.job(job_id)
    assert view is not None
    return view.job.status


async def finish(plane: ControlPlane, directive: Any) -> None:
    await plane.call_back("ack", directive)
    await plane.call_back("result", directive, status="SUCCEEDED", result={"pages": 1})


async def event_types(plane: ControlPlane, job_id: str) -> list[str]:
    return [event.type for event in await plane.runtime.store.events(job_id, 0, 100)]


def ledger(plane: ControlPlane) -> MemoryLedger:
    store = plane.runtime.store
    assert isinstance(store, MemoryLedger)
    return store


async def test_a_ledger_that_is_put_back_is_told_anew_and_nothing_is_done_twice(plane: ControlPlane) -> None:
    job_id = await plane.submit(1)
    consumer = plane.consumer("ocr")
    store = ledger(plane)
    await until(lambda: _is_dispatching(plane, job_id))
    record = store._records[job_id]
    backup = replace(record, steps=dict(record.steps), events=list(record.events), outbox=dict(record.outbox))
    counters = dict(store._counters)
    (directive,) = await consumer.pull(1, 5)
    await plane.call_back("ack", directive)
    await until(lambda: _has_step(plane, job_id, "PROCESSING"))

    store._records[job_id] = store._live[job_id] = backup
    store._counters.clear()
    store._counters.update(counters)
    await plane.runtime.temporal.jobs.look_after(backup.job)  # type: ignore[union-attr]
    await until(lambda: _has_step(plane, job_id, "PROCESSING"))
    assert "LEDGER_RESTORED" in await event_types(plane, job_id)
    assert (await plane.call_back("result", directive, status="SUCCEEDED"))["disposition"] == "APPLIED"
    await until(lambda: _ended(plane, job_id))
    assert await status(plane, job_id) is JobStatus.SUCCEEDED
    assert all(value == 0 for value in (await store.counters("")).values())


async def _is_dispatching(plane: ControlPlane, job_id: str) -> bool:
    view = await plane.runtime.store.job(job_id)
    return view is not None and any(step.status == "DISPATCHING" for step in view.steps.values())


async def _has_step(plane: ControlPlane, job_id: str, wanted: str) -> bool:
    view = await plane.runtime.store.job(job_id)
    return view is not None and any(step.status == wanted for step in view.steps.values())


async def _ended(plane: ControlPlane, job_id: str) -> bool:
    return not (view := await plane.runtime.store.job(job_id)) or not view.job.live


async def test_a_job_that_the_ledger_has_lost_is_there_again(plane: ControlPlane) -> None:
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    store = ledger(plane)
    record = store._records.pop(job_id)
    store._live.pop(job_id)
    store._counters.clear()
    store._keys.clear()
    store._pending = type(store._pending)()
    await until(lambda: _told(plane))
    await until(lambda: _is_dispatching(plane, job_id))
    restored = await plane.runtime.store.job(job_id)
    assert restored is not None
    assert restored.job.command == record.job.command
    (directive,) = await plane.consumer("ocr").pull(1, 5)
    await finish(plane, directive)
    await until(lambda: _ended(plane, job_id))
    assert await status(plane, job_id) is JobStatus.SUCCEEDED


async def _told(plane: ControlPlane) -> bool:
    """Temporal's index of what runs is a moment behind."""
    assert plane.runtime.temporal is not None
    return await plane.runtime.temporal.jobs.compare_all() > 0


async def test_a_live_job_without_a_workflow_gets_one_that_goes_on_from_the_ledger(
    plane: ControlPlane, client: Client
) -> None:
    job_id = await plane.submit(1)
    (directive,) = await plane.consumer("ocr").pull(1, 5)
    await plane.call_back("ack", directive)
    await until(lambda: _has_step(plane, job_id, "PROCESSING"))
    await client.get_workflow_handle(job_id).terminate("by mistake")
    answer = await plane.call_back("result", directive, status="SUCCEEDED")
    assert answer["disposition"] == "APPLIED"
    await until(lambda: _ended(plane, job_id))
    assert await status(plane, job_id) is JobStatus.SUCCEEDED


async def test_whoever_minds_the_deadlines_finds_it_by_himself_and_says_what_he_repaired(
    tmp_path: Path, temporal_server: TemporalServer, client: Client
) -> None:
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="8")) as plane:
        job_id = await plane.submit(1)
        await plane.consumer("ocr").pull(1, 5)
        await until(lambda: _has_step(plane, job_id, "INITIATED"))
        await client.get_workflow_handle(job_id).terminate("by mistake")
        with capture_logs() as logs:
            await until(lambda: _has_step(plane, job_id, "FAILED_RETRY"))
        repaired = [(entry["what"], entry["job_id"]) for entry in logs if entry["event"] == "drift repaired"]
        assert repaired == [("a live job had no workflow", job_id)]
        assert b'lucius_sweeper_actions_total{action="workflow"} 1.0' in await plane.runtime.metrics.render()


async def test_a_missing_row_is_written_again_by_the_workflow(plane: ControlPlane) -> None:
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    store = ledger(plane)
    (row,) = [row for row in store._records[job_id].outbox.values() if row.status is OutboxStatus.PENDING]
    del store._records[job_id].outbox[row.outbox_id]
    store._pending = type(store._pending)()
    await until(lambda: _repaired(plane, job_id))
    (directive,) = await plane.consumer("ocr").pull(1, 5)
    await finish(plane, directive)
    await until(lambda: _ended(plane, job_id))


async def _repaired(plane: ControlPlane, job_id: str) -> bool:
    await plane.runtime.engine._sweeper.repair()
    return "DRIFT_REPAIRED" in await event_types(plane, job_id)


@pytest.mark.parametrize(("setting", "expected"), [("accept", 202), ("refuse", 503)])
async def test_while_temporal_is_away_commands_are_accepted_or_refused_as_is_said(
    tmp_path: Path, setting: str, expected: int
) -> None:
    server = TemporalServer(durable=True).start()
    try:
        async with control_plane(tmp_path, **over(server, LUCIUS_TEMPORAL_DOWN=setting)) as plane:
            first = await plane.submit(1)
            await until(lambda: _is_dispatching(plane, first))
            server.stop()
            await until(lambda: _is_down(plane))
            answer = await plane.post("/v1/commands", _command(2), expected)
            server.start()
            if expected == 202:
                await until(lambda: _is_dispatching(plane, answer["jobId"]))
            else:
                assert answer["retry_after_seconds"] > 0
                assert (await plane.runtime.store.counters("jobs"))["jobs"] == 1
    finally:
        server.remove()


async def _is_down(plane: ControlPlane) -> bool:
    assert plane.runtime.temporal is not None
    await plane.runtime.temporal._workflows.check()
    return bool(plane.runtime.temporal._workflows.down)


def _command(number: int) -> dict[str, Any]:
    return {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": f"blob://in/{number}",
        "output_ref": f"blob://out/{number}",
        "payload": {},
        "schema_version": "v1",
    }


async def test_an_embedded_deployment_leaves_jobs_of_workflows_alone(plane: ControlPlane) -> None:
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    embedded = replace(plane.runtime.settings, engine="embedded", ledger_url="memory:")
    async with open_runtime(embedded) as other:
        other.store._records = ledger(plane)._records  # type: ignore[attr-defined]
        with pytest.raises(ForeignEngine, match="driven by temporal"):
            await other.jobs.apply(job_id, (DeadlinePassed(),))
