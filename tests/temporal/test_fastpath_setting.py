"""LUCIUS_TEMPORAL_FASTPATH: what is off without it, and that it may differ between processes and change at any time."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from temporalio.client import Client, WorkflowHistory

from lucius.adapters.expressions.expressions import CelTools
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.replay import replay_history
from lucius.observability.readiness import Role
from tests.support.api import serving, settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, TimeFlows, over_temporal

STEPS = ("ocr", "embedding")


async def answer(api: FollowingApi, service: str) -> None:
    (await api.succeed(await api.pull_one(service), result={"by": service})).ok()


async def dispositions(api: FollowingApi, job_id: str) -> list[str]:
    await api.followed()
    events = await api.runtime.store.history.events(job_id, 0, 500)
    return [event.data["disposition"] for event in events if "disposition" in event.data]


async def history_of(server: TemporalServer, job_id: str) -> WorkflowHistory:
    client = await Client.connect(server.address, data_converter=data_converter({}))
    handle = client.get_workflow_handle(job_id)
    async with asyncio.timeout(30):
        await handle.result()
    return await handle.fetch_history()


def payloads(history: WorkflowHistory) -> bytes:
    """Return all that Temporal keeps of the job."""
    return b" ".join(event.SerializeToString() for event in history.events)


def test_shortcuts_are_on_by_default() -> None:
    assert load_settings({}).temporal_fastpath
    assert not load_settings({"LUCIUS_TEMPORAL_FASTPATH": "off"}).temporal_fastpath


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
async def test_setting_can_change_while_a_job_runs(
    tmp_path: Path, temporal_server: TemporalServer, ledger_url: str
) -> None:
    settings = over_temporal(settings_for(tmp_path, ledger_url=ledger_url), temporal_server)
    job_id = ""
    for is_on, service in ((True, "ocr"), (False, "embedding")):
        async with serving(replace(settings, temporal_fastpath=is_on), TimeFlows()) as served:
            api = FollowingApi(served.app, served.runtime, served.clock)
            job_id = job_id or await api.submit(request_type="OCR_EMBEDDING")
            await answer(api, service)
            await api.followed()
            if not is_on:
                assert await api.end(job_id) == "SUCCEEDED"
                assert await dispositions(api, job_id) == ["APPLIED"] * 2
                history = await history_of(temporal_server, job_id)
    assert await replay_history(history, {}, CelTools()) is None


@pytest.mark.parametrize(("api_is_on", "worker_is_on"), [(True, False), (False, True), (False, False)])
async def test_setting_may_differ_between_processes(
    tmp_path: Path,
    temporal_server: TemporalServer,
    emptied_postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    api_is_on: bool,
    worker_is_on: bool,
) -> None:
    settings = settings_for(tmp_path, ledger_url=emptied_postgres_url)
    settings = replace(over_temporal(settings, temporal_server), temporal_task_queue=uuid.uuid4().hex)
    announced: list[Sequence[str]] = []
    async with AsyncExitStack() as stack:
        worker = replace(settings, temporal_fastpath=worker_is_on)
        await stack.enter_async_context(open_runtime(worker, TimeFlows(), Role.WORKER))
        served = await stack.enter_async_context(serving(replace(settings, temporal_fastpath=api_is_on), TimeFlows()))
        monkeypatch.setattr(served.runtime.store.inbox, "announce", announced.append)
        api = FollowingApi(served.app, served.runtime, served.clock)
        job_id = await api.submit(request_type="OCR_EMBEDDING")
        for service in STEPS:
            await answer(api, service)
        assert await api.end(job_id) == "SUCCEEDED"
        assert await dispositions(api, job_id) == ["APPLIED"] * 2
    assert bool(announced) is api_is_on
    history = await history_of(temporal_server, job_id)
    assert await replay_history(history, {}, CelTools()) is None


@pytest.mark.parametrize("is_on", [True, False])
async def test_workflow_alone_decides_without_shortcuts(
    tmp_path: Path, temporal_server: TemporalServer, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.engine.temporal.fastpath.open_tasks.MAX_WAIT_SECONDS", 3)
    settings = over_temporal(settings_for(tmp_path), temporal_server)
    async with serving(replace(settings, temporal_fastpath=is_on), TimeFlows()) as served:
        api = FollowingApi(served.app, served.runtime, served.clock)
        job_id = await api.submit(request_type="OCR_EMBEDDING")
        for service in STEPS:
            await answer(api, service)
        assert await api.end(job_id) == "SUCCEEDED"
        history = await history_of(temporal_server, job_id)
    found: dict[str, Any] = {name: name.encode() in payloads(history) for name in ("inline_decisions", "HandedOver")}
    names = [event.WhichOneof("attributes") for event in history.events]
    signals = names.count("workflow_execution_signaled_event_attributes")
    assert found == {"inline_decisions": is_on, "HandedOver": True}
    assert signals == 2 if is_on else signals >= 3, "hand-overs and results each have a signal of their own"
