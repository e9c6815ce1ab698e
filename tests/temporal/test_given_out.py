"""What services pull from a Temporal deployment, and how much of it at once."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from lucius.engine.temporal import given_out
from lucius.service import dispatch
from lucius.service.dispatch import Dispatcher
from tests.conformance.control_plane import ControlPlane, control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, finish, over, until

JOBS, CAP = 5, 2
PAGES = {
    "protocol_id": "pages",
    "version": 1,
    "request_type": "PAGES",
    "input_schema": {"type": "object", "properties": {"pages": {"type": "array"}}},
    "steps": [
        {
            "step_id": "all",
            "kind": "map",
            "map": {
                "items": "input.pages",
                "max_parallel": JOBS,
                "steps": [{"step_id": "page", "step_type": "OCR", "service": "ocr"}],
            },
        }
    ],
}


@pytest.fixture(params=["sqlite", "memory"])
async def plane(
    request: pytest.FixtureRequest, tmp_path: Path, temporal_server: TemporalServer
) -> AsyncIterator[ControlPlane]:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "pages.yaml").write_text(yaml.safe_dump(PAGES))
    url = {"sqlite": f"sqlite:///{tmp_path / 'ledger.db'}", "memory": "memory:"}[request.param]
    capped = {"LUCIUS_MAX_UNACKED": str(CAP), "LUCIUS_PROTOCOLS_DIR": str(tmp_path / "protocols")}
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_LEDGER_URL=url, **capped)) as plane:
        yield plane
        await until(lambda: _is_told_of_all(plane))


async def _is_told_of_all(plane: ControlPlane) -> bool:
    assert plane.runtime.temporal is not None
    return not +plane.runtime.temporal.jobs._given_out._on_their_way


async def waiting_jobs(plane: ControlPlane) -> list[str]:
    job_ids = [await plane.submit(number) for number in range(JOBS)]
    for job_id in job_ids:
        await until(partial(_is_dispatching, plane, job_id))
    return job_ids


async def test_no_more_is_given_out_at_once_than_may_be_unacknowledged(plane: ControlPlane) -> None:
    job_ids = await waiting_jobs(plane)
    given = await plane.consumer("ocr").pull(JOBS, 0)
    assert len(given) == CAP
    finished = 0
    while given:
        for directive in given:
            await finish(plane, directive)
        finished += len(given)
        given = await plane.consumer("ocr").pull(JOBS, 1 if finished == JOBS else 10)
        assert len(given) <= CAP
    assert finished == JOBS
    for job_id in job_ids:
        await until(partial(_ended, plane, job_id))


async def test_what_was_given_out_is_in_nobodys_way(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is PENDING until its workflow has heard of it, and the first that the next puller finds."""
    monkeypatch.setattr(given_out, "COALESCE_SECONDS", 60)
    await waiting_jobs(plane)
    given = [await plane.consumer("ocr").pull(1, 0) for _ in range(CAP + 1)]
    assert [len(directives) for directives in given] == [1] * CAP + [0]
    for (directive,) in given[:CAP]:
        await finish(plane, directive)


async def test_nor_if_its_workflow_does_not_hear_of_it_for_long(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "SETTLED_WITHIN", 0.05)
    monkeypatch.setattr(given_out, "COALESCE_SECONDS", 60)
    await waiting_jobs(plane)
    consumer = plane.consumer("ocr")
    (first,) = await consumer.pull(1, 0)
    dispatcher = plane.runtime.dispatcher
    await until(lambda: _is_tried_again(dispatcher))
    (second,) = await consumer.pull(1, 0)
    assert first.jobId != second.jobId
    for directive in (first, second):
        await finish(plane, directive)


async def _is_tried_again(dispatcher: Dispatcher) -> bool:
    return not dispatcher._unsettled


async def test_whoever_waits_at_the_cap_goes_on_when_those_before_are_answered(plane: ControlPlane) -> None:
    await waiting_jobs(plane)
    given = await plane.consumer("ocr").pull(JOBS, 0)
    waits = asyncio.create_task(plane.consumer("ocr").pull(JOBS, 30))
    await until(lambda: _is_held(plane))
    for directive in given:  # at once, so that they were never counted as unacknowledged
        await plane.call_back("result", directive, status="SUCCEEDED", result={"pages": 1})
    async with asyncio.timeout(15):
        assert await waits


async def _is_held(plane: ControlPlane) -> bool:
    return "ocr" in plane.runtime.hub._held and plane.waiting() > 0


async def test_one_job_with_many_directives_is_given_no_more_of_them(plane: ControlPlane) -> None:
    command = {
        "tenant_id": "acme",
        "request_type": "PAGES",
        "input_ref": "blob://in/1",
        "output_ref": "blob://out/1",
        "payload": {"pages": list(range(JOBS))},
        "schema_version": "v1",
    }
    job_id = (await plane.post("/v1/commands", command, 202))["jobId"]
    await until(lambda: _waits_for_all(plane, job_id))
    consumer = plane.consumer("ocr")
    assert [len(await consumer.pull(JOBS, 0)) for _ in range(3)] == [CAP, 0, 0]


async def _waits_for_all(plane: ControlPlane, job_id: str) -> bool:
    view = await plane.runtime.store.job(job_id)
    return view is not None and sum(step.status == "DISPATCHING" for step in view.steps.values()) == JOBS
