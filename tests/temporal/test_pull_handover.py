"""Directives that services pull from a Temporal deployment, and their cap."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from lucius.core.model.counters import UNACKED, unacked_counter
from lucius.core.model.records import NEVER
from lucius.engine.temporal.fastpath import coalesced_handovers
from lucius.usecases.handover import row_holds
from lucius.usecases.handover.row_holds import RowHolds
from tests.conformance.control_plane import TENANT_OF_LANE, ControlPlaneUnderTest, control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, finish, over, until

pytestmark = pytest.mark.usefixtures("each_fastpath")

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
) -> AsyncIterator[ControlPlaneUnderTest]:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "pages.yaml").write_text(yaml.safe_dump(PAGES))
    url = {"sqlite": f"sqlite:///{tmp_path / 'ledger.db'}", "memory": "memory:"}[request.param]
    capped = {"LUCIUS_MAX_UNACKED": str(CAP), "LUCIUS_PROTOCOLS_DIR": str(tmp_path / "protocols")}
    async with control_plane(tmp_path, **over(temporal_server, LUCIUS_LEDGER_URL=url, **capped)) as plane:
        yield plane
        await until(lambda: _has_empty_inbox(plane))


async def _has_empty_inbox(plane: ControlPlaneUnderTest) -> bool:
    return not await plane.runtime.store.inbox.list_pending(NEVER, 1)


async def waiting_jobs(plane: ControlPlaneUnderTest) -> list[str]:
    job_ids = [await plane.submit(number) for number in range(JOBS)]
    for job_id in job_ids:
        await until(partial(_is_dispatching, plane, job_id))
    return job_ids


async def test_handovers_respect_the_cap_of_unacknowledged_directives(plane: ControlPlaneUnderTest) -> None:
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


async def test_pull_for_some_tenants_gets_no_directive_of_another(plane: ControlPlaneUnderTest) -> None:
    foreign, own = [await plane.submit(number, tenant_id=tenant) for number, tenant in enumerate(("globex", "acme"))]
    for job_id in (foreign, own):
        await until(partial(_is_dispatching, plane, job_id))
    pull, acme = plane.runtime.directive_pulls.pull, frozenset({"acme"})
    (directive,) = await pull("ocr", 9, 10, tenants=acme)
    assert directive.jobId == own
    assert await pull("ocr", 9, 0, tenants=acme) == []
    await finish(plane, directive)
    (directive,) = await pull("ocr", 9, 10)
    assert directive.jobId == foreign
    await finish(plane, directive)


async def test_tenants_own_pull_at_its_cap_leaves_the_shared_service_its_room(plane: ControlPlaneUnderTest) -> None:
    job_ids = await waiting_jobs(plane)
    pull, own = plane.runtime.directive_pulls.pull, frozenset({TENANT_OF_LANE[3]})
    given = await pull("ocr", JOBS, 10, tenants=own)
    assert len(given) == CAP
    assert await pull("ocr", JOBS, 0, tenants=own) == []
    shared = await pull("ocr", JOBS, 10)
    assert len(shared) == CAP
    counted = {unacked_counter("ocr"): CAP, unacked_counter("ocr", *own): CAP}
    await until(partial(_counts_unacked, plane, counted))
    assert await pull("ocr", JOBS, 0, tenants=own) == []
    await finish(plane, given.pop())
    given += await pull("ocr", JOBS, 10, tenants=own)
    assert {one.jobId for one in (*given, *shared)} < set(job_ids)
    for directive in (*given, *shared):
        await finish(plane, directive)
    for job_id in job_ids:
        await until(partial(_ended, plane, job_id))
    await until(partial(_counts_unacked, plane, {}))


async def _counts_unacked(plane: ControlPlaneUnderTest, expected: dict[str, int]) -> bool:
    counters = await plane.runtime.store.jobs.counters(UNACKED)
    return {counter: n for counter, n in counters.items() if n} == expected


async def test_handed_over_rows_do_not_hide_later_ones(
    plane: ControlPlaneUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row stays PENDING until its workflow records the hand-over, and is the first the next pull finds."""
    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 60)
    await waiting_jobs(plane)
    given = [await plane.consumer("ocr").pull(1, 0) for _ in range(CAP + 1)]
    assert [len(directives) for directives in given] == [1] * CAP + [0]
    for (directive,) in given[:CAP]:
        await finish(plane, directive)


async def test_handed_over_rows_do_not_hide_later_ones_without_a_signal(
    plane: ControlPlaneUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_holds, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 60)
    await waiting_jobs(plane)
    consumer = plane.consumer("ocr")
    (first,) = await consumer.pull(1, 0)
    await until(partial(_has_no_unsettled_rows, plane.runtime.row_holds))
    (second,) = await consumer.pull(1, 0)
    assert first.jobId != second.jobId
    for directive in (first, second):
        await finish(plane, directive)


async def _has_no_unsettled_rows(holds: RowHolds) -> bool:
    return not holds.unsettled_count


async def test_pull_waiting_at_the_cap_continues_after_results(plane: ControlPlaneUnderTest) -> None:
    await waiting_jobs(plane)
    given = await plane.consumer("ocr").pull(JOBS, 0)
    waits = asyncio.create_task(plane.consumer("ocr").pull(JOBS, 30))
    await until(lambda: _is_held(plane))
    for directive in given:  # at once, so that they were never counted as unacknowledged
        await plane.call_back("result", directive, status="SUCCEEDED", result={"pages": 1})
    async with asyncio.timeout(15):
        assert await waits


async def _is_held(plane: ControlPlaneUnderTest) -> bool:
    return plane.runtime.notifier.is_held(unacked_counter("ocr")) and plane.waiting() > 0


async def test_directives_of_one_job_respect_the_cap(plane: ControlPlaneUnderTest) -> None:
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


async def _waits_for_all(plane: ControlPlaneUnderTest, job_id: str) -> bool:
    view = await plane.runtime.store.jobs.job(job_id)
    return view is not None and sum(step.status == "DISPATCHING" for step in view.steps.values()) == JOBS
