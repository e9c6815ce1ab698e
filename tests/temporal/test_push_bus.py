"""Directives published by an activity: once, not while the job is paused, and at no cost while they wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import Directive
from lucius.core.model.records import NEVER
from lucius.ports.errors import LedgerDown
from tests.conformance.control_plane import ControlPlaneUnderTest, control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, event_types, finish, over, until

pytestmark = pytest.mark.usefixtures("each_fastpath")


@pytest.fixture
async def plane(tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[ControlPlaneUnderTest]:
    async with control_plane(
        tmp_path, **over(temporal_server, LUCIUS_BUS_URL="memory:", LUCIUS_BACKOFF_SCALE="0.01")
    ) as plane:
        yield plane


def bus(plane: ControlPlaneUnderTest) -> MemoryBus:
    publisher = plane.runtime.publisher
    assert isinstance(publisher, MemoryBus)
    return publisher


async def directive_of(plane: ControlPlaneUnderTest) -> Directive:
    (directive,) = await bus(plane).consumer("ocr").pull(1, 10)
    return directive


async def attempts(plane: ControlPlaneUnderTest, job_id: str) -> list[int]:
    view = await plane.runtime.store.jobs.job(job_id)
    assert view is not None
    return [step.attempt.attempt_no for step in view.steps.values()]


async def test_a_directive_is_published_once(plane: ControlPlaneUnderTest) -> None:
    job_id = await plane.submit(1)
    await finish(plane, await directive_of(plane))
    await until(lambda: _ended(plane, job_id))
    assert bus(plane).backlog("ocr") == 0
    assert await plane.runtime.store.inbox.list_pending(NEVER, 1) == []
    assert (await event_types(plane, job_id))[-1] == "JOB_SUCCEEDED"


async def test_bus_outage_uses_no_attempts(plane: ControlPlaneUnderTest) -> None:
    bus(plane).down = True
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    await asyncio.sleep(0.5)  # a few tries
    answer = await plane.post("/v1/admin/outbox/retry", {"reason": "it is back"}, 200)
    assert (answer["retried"], answer["pending"]) == (0, 0)
    assert answer["message"].startswith("nothing is to be done")
    bus(plane).down = False
    directive = await directive_of(plane)
    assert directive.attempt_no == 1
    await finish(plane, directive)
    await until(lambda: _ended(plane, job_id))


async def test_message_refused_by_the_bus_uses_an_attempt(plane: ControlPlaneUnderTest) -> None:
    bus(plane).refuse = lambda directive: directive.attempt_no == 1
    job_id = await plane.submit(1)
    directive = await directive_of(plane)
    assert directive.attempt_no == 2
    assert "HANDOVER_FAILED" in await event_types(plane, job_id)


async def test_paused_job_publishes_nothing(plane: ControlPlaneUnderTest) -> None:
    bus(plane).down = True
    job_id = await plane.submit(1)
    await until(lambda: _is_dispatching(plane, job_id))
    await plane.post(f"/v1/jobs/{job_id}:pause", {"reason": "wait"}, 202)
    bus(plane).down = False
    assert await bus(plane).consumer("ocr").pull(1, 2) == []
    await plane.post(f"/v1/jobs/{job_id}:resume", {"reason": "go on"}, 202)
    directive = await directive_of(plane)
    assert directive.attempt_no == 1
    await finish(plane, directive)
    await until(lambda: _ended(plane, job_id))


async def test_attempt_that_was_not_published_after_a_ledger_error_is_published_once(
    plane: ControlPlaneUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = plane.runtime.engine
    real, fails = jobs.evaluate, iter((True,))

    async def evaluate(*asked: Any, **more: Any) -> Any:
        if next(fails, False):
            raise LedgerDown("for a moment")
        return await real(*asked, **more)

    monkeypatch.setattr(jobs, "evaluate", evaluate)
    job_id = await plane.submit(1)
    directive = await directive_of(plane)
    assert (directive.attempt_no, await attempts(plane, job_id)) == (1, [1])


async def test_directive_waiting_at_the_cap_uses_no_attempt(tmp_path: Path, temporal_server: TemporalServer) -> None:
    settings = over(temporal_server, LUCIUS_BUS_URL="memory:", LUCIUS_MAX_UNACKED="1")
    async with control_plane(tmp_path, **settings) as plane:
        first, second = await plane.submit(1), await plane.submit(2)
        given = await directive_of(plane)
        assert await bus(plane).consumer("ocr").pull(1, 1) == []
        await finish(plane, given)
        other = await directive_of(plane)
        assert other.attempt_no == 1
        await finish(plane, other)
        await until(lambda: _ended(plane, first))
        await until(lambda: _ended(plane, second))
