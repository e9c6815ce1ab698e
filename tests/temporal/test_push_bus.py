"""Directives that are published by an activity: once, not while the job is paused, and at no cost while they wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.bus_memory import MemoryBus
from lucius.contract import Directive
from lucius.core.model import NEVER
from lucius.ports.errors import LedgerDown
from tests.conformance.control_plane import ControlPlane, control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, event_types, finish, over, until


@pytest.fixture
async def plane(tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[ControlPlane]:
    async with control_plane(
        tmp_path, **over(temporal_server, LUCIUS_BUS_URL="memory:", LUCIUS_BACKOFF_SCALE="0.01")
    ) as plane:
        yield plane


def bus(plane: ControlPlane) -> MemoryBus:
    publisher = plane.runtime.publisher
    assert isinstance(publisher, MemoryBus)
    return publisher


async def directive_of(plane: ControlPlane) -> Directive:
    (directive,) = await bus(plane).consumer("ocr").pull(1, 10)
    return directive


async def attempts(plane: ControlPlane, job_id: str) -> list[int]:
    view = await plane.runtime.store.job(job_id)
    assert view is not None
    return [step.attempt.attempt_no for step in view.steps.values()]


async def test_a_directive_is_published_once(plane: ControlPlane) -> None:
    job_id = await plane.submit(1)
    await finish(plane, await directive_of(plane))
    await until(lambda: _ended(plane, job_id))
    assert bus(plane).backlog("ocr") == 0
    assert await plane.runtime.store.unread(NEVER, 1) == []
    assert (await event_types(plane, job_id))[-1] == "JOB_SUCCEEDED"


async def test_while_the_bus_is_down_nothing_is_burned(plane: ControlPlane) -> None:
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


async def test_a_message_that_the_bus_refuses_costs_its_attempt(plane: ControlPlane) -> None:
    bus(plane).refuse = lambda directive: directive.attempt_no == 1
    job_id = await plane.submit(1)
    directive = await directive_of(plane)
    assert directive.attempt_no == 2
    assert "HANDOVER_FAILED" in await event_types(plane, job_id)


async def test_nothing_is_published_while_the_job_is_paused(plane: ControlPlane) -> None:
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


async def test_what_surely_did_not_leave_us_is_not_taken_for_handed_over(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = plane.runtime.jobs
    real, fails = jobs.weigh, iter((True,))

    async def weigh(*asked: Any, **more: Any) -> Any:
        if next(fails, False):
            raise LedgerDown("for a moment")
        return await real(*asked, **more)

    monkeypatch.setattr(jobs, "weigh", weigh)
    job_id = await plane.submit(1)
    directive = await directive_of(plane)
    assert (directive.attempt_no, await attempts(plane, job_id)) == (1, [1])


async def test_a_full_window_is_not_an_attempt(tmp_path: Path, temporal_server: TemporalServer) -> None:
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
