"""Differences between ledger and Temporal do not last: each restores from the other what it has lost."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from temporalio.client import Client

from lucius.adapters.ledger.memory.store import MemoryStore
from lucius.bootstrap.lifecycle import open_runtime
from lucius.core.model.inputs import DeadlinePassed
from lucius.core.model.statuses import JobStatus, OutboxStatus
from lucius.engine.temporal.engine import TemporalEngine
from lucius.ports.errors import ForeignEngine
from tests.conformance.control_plane import ControlPlaneUnderTest, control_plane
from tests.support.fastpath import fastpath_env
from tests.support.temporal import TemporalServer

pytestmark = pytest.mark.usefixtures("each_fastpath")

WITHIN = 60.0


def over(server: TemporalServer, **more: str) -> dict[str, str]:
    queue = f"test-{uuid.uuid4().hex[:12]}"
    return {
        "LUCIUS_ENGINE": "temporal",
        "LUCIUS_TEMPORAL_ADDRESS": server.address,
        "LUCIUS_TEMPORAL_TASK_QUEUE": queue,
        "LUCIUS_LEDGER_URL": "memory:",
        **fastpath_env(),
        **more,
    }


def temporal_engine(plane: ControlPlaneUnderTest) -> TemporalEngine:
    engine = plane.runtime.engine
    assert isinstance(engine, TemporalEngine)
    return engine


@pytest.fixture
async def plane(tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[ControlPlaneUnderTest]:
    async with control_plane(tmp_path, **over(temporal_server)) as plane:
        yield plane


@pytest.fixture
async def client(temporal_server: TemporalServer) -> Client:
    return await Client.connect(temporal_server.address)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN):
        while not await true():  # noqa: ASYNC110 - it happens in another process, or in a thread of the SDK
            await asyncio.sleep(0.02)


async def status(plane: ControlPlaneUnderTest, job_id: str) -> JobStatus:
    view = await plane.runtime.store.jobs.job(job_id)
    assert view is not None
    return view.job.status


async def finish(plane: ControlPlaneUnderTest, directive: Any) -> None:
    await plane.call_back("ack", directive)
    await plane.call_back("result", directive, status="SUCCEEDED", result={"pages": 1})


async def event_types(plane: ControlPlaneUnderTest, job_id: str) -> list[str]:
    return [event.type for event in await plane.runtime.store.history.events(job_id, 0, 100)]


def ledger(plane: ControlPlaneUnderTest) -> MemoryStore:
    store = plane.runtime.store
    assert isinstance(store, MemoryStore)
    return store


async def test_restored_ledger_is_brought_up_to_date_by_the_workflow_and_no_step_repeats(
    plane: ControlPlaneUnderTest,
) -> None:
    job_id = await plane.submit(1)
    consumer = plane.consumer("ocr")
    store = ledger(plane)
    await until(lambda: _is_dispatching(plane, job_id))
    record = store.tables.records[job_id]
    backup = replace(record, steps=dict(record.steps), events=list(record.events), outbox=dict(record.outbox))
    counters = dict(store.tables.counters)
    (directive,) = await consumer.pull(1, 5)
    await plane.call_back("ack", directive)
    await until(lambda: _has_step(plane, job_id, "PROCESSING"))

    store.tables.records[job_id] = store.tables.live[job_id] = backup
    store.tables.counters.clear()
    store.tables.counters.update(counters)
    await temporal_engine(plane).ensure_workflow(backup.job)
    await until(lambda: _has_step(plane, job_id, "PROCESSING"))
    assert "LEDGER_RESTORED" in await event_types(plane, job_id)
    assert (await plane.call_back("result", directive, status="SUCCEEDED"))["disposition"] == "APPLIED"
    await until(lambda: _ended(plane, job_id))
    assert await status(plane, job_id) is JobStatus.SUCCEEDED
    assert all(value == 0 for value in (await store.jobs.counters("")).values())


async def _is_dispatching(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    view = await plane.runtime.store.jobs.job(job_id)
    return view is not None and any(step.status == "DISPATCHING" for step in view.steps.values())


async def _has_step(plane: ControlPlaneUnderTest, job_id: str, wanted: str) -> bool:
    view = await plane.runtime.store.jobs.job(job_id)
    return view is not None and any(step.status == wanted for step in view.steps.values())


async def _ended(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    return not (view := await plane.runtime.store.jobs.job(job_id)) or not view.job.live


async def test_job_lost_by_the_ledger_is_restored_from_its_workflow(plane: ControlPlaneUnderTest) -> None:
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    store = ledger(plane)
    record = store.tables.records.pop(job_id)
    store.tables.live.pop(job_id)
    store.tables.counters.clear()
    store.tables.keys.clear()
    store.tables.pending = type(store.tables.pending)()
    await until(lambda: _has_repaired(plane))
    await until(lambda: _is_dispatching(plane, job_id))
    restored = await plane.runtime.store.jobs.job(job_id)
    assert restored is not None
    assert restored.job.command == record.job.command
    (directive,) = await plane.consumer("ocr").pull(1, 5)
    await finish(plane, directive)
    await until(lambda: _ended(plane, job_id))
    assert await status(plane, job_id) is JobStatus.SUCCEEDED


async def _has_repaired(plane: ControlPlaneUnderTest) -> bool:
    """Compare until something is repaired; Temporal's index of running workflows lags behind."""
    return await temporal_engine(plane).background.comparison.compare_all() > 0


async def test_callback_to_a_live_job_without_a_workflow_starts_one_from_the_ledger(
    plane: ControlPlaneUnderTest, client: Client
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


async def test_sweeper_restarts_a_missing_workflow_and_logs_the_repair(
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


async def test_missing_outbox_row_is_written_again_by_the_workflow(plane: ControlPlaneUnderTest) -> None:
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    store = ledger(plane)
    (row,) = [row for row in store.tables.records[job_id].outbox.values() if row.status is OutboxStatus.PENDING]
    del store.tables.records[job_id].outbox[row.outbox_id]
    store.tables.pending = type(store.tables.pending)()
    await until(lambda: _repaired(plane, job_id))
    (directive,) = await plane.consumer("ocr").pull(1, 5)
    await finish(plane, directive)
    await until(lambda: _ended(plane, job_id))


async def _repaired(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    await plane.runtime.loops.sweeper.repair()
    return "DRIFT_REPAIRED" in await event_types(plane, job_id)


@pytest.mark.parametrize(("setting", "expected"), [("accept", 202), ("refuse", 503)])
async def test_commands_during_a_temporal_outage_are_accepted_or_refused_as_configured(
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
                assert (await plane.runtime.store.jobs.counters("jobs"))["jobs"] == 1
    finally:
        server.remove()


async def _is_down(plane: ControlPlaneUnderTest) -> bool:
    return bool(plane.runtime.engine.health().outage)


def _command(number: int) -> dict[str, Any]:
    return {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": f"blob://in/{number}",
        "output_ref": f"blob://out/{number}",
        "payload": {},
        "schema_version": "v1",
    }


async def test_embedded_deployment_does_not_drive_jobs_of_temporal(plane: ControlPlaneUnderTest) -> None:
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    embedded = replace(plane.runtime.settings, engine="embedded", ledger_url="memory:")
    async with open_runtime(embedded) as other:
        assert isinstance(other.store, MemoryStore)
        other.store.tables.records = ledger(plane).tables.records
        with pytest.raises(ForeignEngine, match="driven by temporal"):
            await other.engine.apply(job_id, (DeadlinePassed(),))
