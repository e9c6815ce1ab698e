"""Downtime of Lucius or Temporal uses up no attempt, and other deployments are left alone."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Cancel
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.messages import ACT_UPDATE, encode_input
from lucius.ports.errors import LedgerDown
from tests.conformance.control_plane import ControlPlaneUnderTest, control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, event_types, over, temporal_engine, until

pytestmark = pytest.mark.usefixtures("each_fastpath")


async def test_attempt_gets_a_fresh_deadline_after_a_temporal_outage(tmp_path: Path) -> None:
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


async def _is_judged(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    return bool({"DEADLINE_EXTENDED", "STEP_RETRY_SCHEDULED"} & set(await event_types(plane, job_id)))


async def _is_initiated(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    view = await plane.runtime.store.jobs.job(job_id)
    return view is not None and any(step.status == "INITIATED" for step in view.steps.values())


async def test_workflows_of_another_deployment_are_left_alone(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with (
        control_plane(tmp_path / "one", **over(temporal_server)) as one,
        control_plane(tmp_path / "two", **over(temporal_server)) as two,
    ):
        job_id = await one.submit(1)
        await until(lambda: _is_dispatching(one, job_id))
        await until(lambda: _lists(one, job_id))
        assert await temporal_engine(two).background.comparison.compare_all() == 0
        assert [found async for found in temporal_engine(two).workflows.running()] == []


async def _lists(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    return job_id in [found async for found in temporal_engine(plane).workflows.running()]


async def test_attempt_gets_a_fresh_deadline_after_a_ledger_outage(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="2")) as plane:
        job_id = await plane.submit(1)
        (directive,) = await plane.consumer("ocr").pull(1, 10)
        await until(lambda: _is_initiated(plane, job_id))

        async def away(decision: Decision) -> None:
            raise LedgerDown("away")

        with monkeypatch.context() as outage:
            outage.setattr(plane.runtime.store.ledger, "commit", away)
            await asyncio.sleep(9)
        await until(lambda: _is_judged(plane, job_id))
        assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
        assert "STEP_RETRY_SCHEDULED" not in await event_types(plane, job_id)


async def test_timeout_whose_commit_answer_was_lost_is_decided_once(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is in the ledger, so it is not decided again."""
    async with control_plane(
        tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="1", LUCIUS_BACKOFF_SCALE="0.01")
    ) as plane:
        commit, asked = plane.runtime.store.ledger.commit, list[int]()

        async def unsure(decision: Decision) -> None:
            await commit(decision)
            if any(event.type == "STEP_RETRY_SCHEDULED" for event in decision.events):
                asked.append(decision.job.version)
                if len(asked) == 1:
                    raise LedgerDown("it went away while it answered")

        monkeypatch.setattr(plane.runtime.store.ledger, "commit", unsure)
        job_id = await plane.submit(1)
        await plane.consumer("ocr").pull(1, 10)
        await until(lambda: _is_judged(plane, job_id))
        (directive,) = await plane.consumer("ocr").pull(1, 10)
        assert directive.attempt_no == 2
        assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
        assert (await event_types(plane, job_id)).count("STEP_RETRY_SCHEDULED") == 1
        history = await _history(temporal_server, job_id)
        assert history < 60, "nothing goes round and round"


async def test_update_addressed_to_another_job_is_refused(tmp_path: Path, temporal_server: TemporalServer) -> None:
    """Anyone with write access to Temporal could forward inputs, even without being able to decrypt them."""
    async with control_plane(tmp_path, **over(temporal_server)) as plane:
        job_id = await plane.submit(1)
        await until(lambda: _is_dispatching(plane, job_id))
        client = await Client.connect(temporal_server.address, data_converter=data_converter({}))
        foreign = encode_input(Cancel("mallory"), f"another/{ACT_UPDATE}")
        asked = client.get_workflow_handle(job_id).execute_update(ACT_UPDATE, foreign)
        with pytest.raises(WorkflowUpdateFailedError):
            await asked
        assert await _is_dispatching(plane, job_id)


async def _history(server: TemporalServer, job_id: str) -> int:
    client = await Client.connect(server.address)
    return len([event async for event in client.get_workflow_handle(job_id).fetch_history_events()])


async def test_attempt_gets_a_fresh_deadline_if_an_outage_ended_shortly_before_it(
    tmp_path: Path, temporal_server: TemporalServer
) -> None:
    """The outage ends before the deadline, so nothing is late."""
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_ACK_TIMEOUT="2")) as plane:
        job_id = await plane.submit(1)
        (directive,) = await plane.consumer("ocr").pull(1, 10)
        await until(lambda: _is_initiated(plane, job_id))
        await asyncio.sleep(1.5)
        workflows = temporal_engine(plane).workflows
        workflows.down = "no answer"
        await workflows.check()
        await until(lambda: _is_judged(plane, job_id))
        assert "STEP_RETRY_SCHEDULED" not in await event_types(plane, job_id)
        assert (await plane.call_back("ack", directive))["disposition"] == "APPLIED"
