"""Our own absence is held against nobody, and no other deployment is told what to do."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from lucius.core.decision import Decision
from lucius.core.inputs import Cancel
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.wire import ACT, pack
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


async def test_a_time_out_whose_answer_was_lost_is_found_in_the_ledger(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written down, so it is not weighed again."""
    async with control_plane(
        tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="1", LUCIUS_BACKOFF_SCALE="0.01")
    ) as plane:
        commit, asked = plane.runtime.store.commit, list[int]()

        async def unsure(decision: Decision) -> None:
            await commit(decision)
            if any(event.type == "STEP_RETRY_SCHEDULED" for event in decision.events):
                asked.append(decision.job.version)
                if len(asked) == 1:
                    raise LedgerDown("it went away while it answered")

        monkeypatch.setattr(plane.runtime.store, "commit", unsure)
        job_id = await plane.submit(1)
        await plane.consumer("ocr").pull(1, 10)
        await until(lambda: _is_judged(plane, job_id))
        (directive,) = await plane.consumer("ocr").pull(1, 10)
        assert directive.attempt_no == 2
        assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
        assert (await event_types(plane, job_id)).count("STEP_RETRY_SCHEDULED") == 1
        history = await _history(temporal_server, job_id)
        assert history < 60, "nothing goes round and round"


async def test_what_was_asked_of_one_job_is_not_done_to_another(
    tmp_path: Path, temporal_server: TemporalServer
) -> None:
    """Whoever can write to Temporal could send on what he can't even read."""
    async with control_plane(tmp_path, **over(temporal_server)) as plane:
        job_id = await plane.submit(1)
        await until(lambda: _is_dispatching(plane, job_id))
        client = await Client.connect(temporal_server.address, data_converter=data_converter({}))
        asked = client.get_workflow_handle(job_id).execute_update(ACT, pack(Cancel("mallory"), f"another/{ACT}"))
        with pytest.raises(WorkflowUpdateFailedError):
            await asked
        assert await _is_dispatching(plane, job_id)


async def _history(server: TemporalServer, job_id: str) -> int:
    client = await Client.connect(server.address)
    return len([event async for event in client.get_workflow_handle(job_id).fetch_history_events()])


async def test_an_attempt_whose_service_could_not_be_heard_until_just_now_gets_a_fresh_deadline(
    tmp_path: Path, temporal_server: TemporalServer
) -> None:
    """It is over before the clock rings, so nothing is late."""
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="2")) as plane:
        job_id = await plane.submit(1)
        (directive,) = await plane.consumer("ocr").pull(1, 10)
        await until(lambda: _is_initiated(plane, job_id))
        await asyncio.sleep(1.5)
        assert plane.runtime.temporal is not None
        plane.runtime.temporal._workflows.down = "no answer"
        await plane.runtime.temporal._workflows.check()
        await until(lambda: _is_judged(plane, job_id))
        assert "STEP_RETRY_SCHEDULED" not in await event_types(plane, job_id)
        assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
