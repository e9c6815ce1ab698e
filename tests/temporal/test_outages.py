"""Our own absence is held against nobody, and no other deployment is told what to do."""

import asyncio
from pathlib import Path

import pytest

from lucius.core.decision import Decision
from lucius.ports.errors import LedgerDown
from tests.conformance.control_plane import ControlPlane, control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, event_types, over, until


async def test_an_attempt_whose_deadline_passed_while_temporal_was_away_gets_a_fresh_one(tmp_path: Path) -> None:
    server = TemporalServer(durable=True).start()
    try:
        async with control_plane(tmp_path, **over(server, LUCIUS_ACK_TIMEOUT="2")) as plane:
            job_id = await plane.submit(1)
            (directive,) = await plane.consumer("ocr").pull(1, 10)
            await until(lambda: _is_initiated(plane, job_id))
            with server.frozen():
                await asyncio.sleep(8)
            await until(lambda: _is_judged(plane, job_id))
            assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
            answer = await plane.call_back("result", directive, status="SUCCEEDED")
            assert answer["disposition"] == "APPLIED"
            await until(lambda: _ended(plane, job_id))
            types = await event_types(plane, job_id)
            assert "STEP_RETRY_SCHEDULED" not in types
            assert types[-1] == "JOB_SUCCEEDED"
    finally:
        server.remove()


async def _is_judged(plane: ControlPlane, job_id: str) -> bool:
    return bool({"DEADLINE_EXTENDED", "STEP_RETRY_SCHEDULED"} & set(await event_types(plane, job_id)))


async def _is_initiated(plane: ControlPlane, job_id: str) -> bool:
    view = await plane.runtime.store.job(job_id)
    return view is not None and any(step.status == "INITIATED" for step in view.steps.values())


async def test_workflows_of_another_deployment_are_left_alone(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with (
        control_plane(tmp_path / "one", **over(temporal_server)) as one,
        control_plane(tmp_path / "two", **over(temporal_server)) as two,
    ):
        job_id = await one.submit(1)
        await until(lambda: _is_dispatching(one, job_id))
        assert one.runtime.temporal is not None
        assert two.runtime.temporal is not None
        await until(lambda: _lists(one, job_id))
        assert await two.runtime.temporal.jobs.compare_all() == 0
        assert [found async for found in two.runtime.temporal._workflows.running()] == []


async def _lists(plane: ControlPlane, job_id: str) -> bool:
    assert plane.runtime.temporal is not None
    return job_id in [found async for found in plane.runtime.temporal._workflows.running()]


async def test_an_attempt_that_ran_out_while_the_ledger_was_away_gets_a_fresh_deadline(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="2")) as plane:
        job_id = await plane.submit(1)
        (directive,) = await plane.consumer("ocr").pull(1, 10)
        await until(lambda: _is_initiated(plane, job_id))

        async def away(decision: Decision) -> None:
            raise LedgerDown("away")

        with monkeypatch.context() as outage:
            outage.setattr(plane.runtime.store, "commit", away)
            await asyncio.sleep(9)
        await until(lambda: _is_judged(plane, job_id))
        assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
        assert "STEP_RETRY_SCHEDULED" not in await event_types(plane, job_id)
