"""`temporal workflow cancel`, and the button in Temporal's UI, cancel the job as `:cancel` does."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from lucius.engine.temporal.client import data_converter
from tests.support.api import settings_for
from tests.support.temporal import TemporalServer, binary
from tests.temporal.test_docs_commands import commands
from tests.temporal.twin_api import FollowingApi, serving_over

pytestmark = pytest.mark.usefixtures("each_fastpath")

WITHIN = 30.0
REQUESTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
TASK_STARTED = EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED


@pytest.fixture(params=[2_000, 0], ids=["cached", "replayed-each-time"])
def cached_workflows(request: pytest.FixtureRequest) -> int:
    """Return the size of the workflow cache; without one, every task replays the history."""
    return int(request.param)


@pytest.fixture
async def api(tmp_path: Path, temporal_server: TemporalServer, cached_workflows: int) -> AsyncIterator[FollowingApi]:
    settings = replace(settings_for(tmp_path), temporal_cached_workflows=cached_workflows)
    async with serving_over(settings, temporal_server) as api:
        yield api


async def workflow_of(job_id: str, server: TemporalServer) -> WorkflowHandle[Any, Any]:
    client = await Client.connect(server.address, data_converter=data_converter({}))
    return client.get_workflow_handle(job_id)


async def until(ask: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WITHIN):
            while not await ask():  # noqa: ASYNC110 - it happens at the server
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN:.0f} s: {what}") from None


async def ended_as_completed(handle: WorkflowHandle[Any, Any]) -> None:
    assert await asyncio.wait_for(handle.result(), WITHIN) == "CANCELLED"
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_documented_temporal_cancel_command_cancels_the_job(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    (command,) = commands("temporal workflow cancel")
    job_id = await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    words = [
        binary(),
        *(job_id if word == "JOB" else word for word in command[1:]),
        "--address",
        temporal_server.address,
    ]
    await asyncio.to_thread(subprocess.run, words, check=True, capture_output=True, timeout=20)

    async def is_cancelling() -> bool:
        return bool((await api.job(job_id))["status"] == "CANCELLING")

    await until(is_cancelling, "the job is being cancelled")
    assert (await api.callback("heartbeat", directive)).ok()["cancel_requested"] is True
    (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
    assert await api.end(job_id) == "CANCELLED"
    events = (await api.get(f"/v1/jobs/{job_id}/events")).ok()["events"]
    (asked,) = [event["data"] for event in events if event["type"] == "CANCEL_REQUESTED"]
    assert asked["by"] == "operator via Temporal"
    await ended_as_completed(await workflow_of(job_id, temporal_server))


async def test_job_that_no_service_has_taken_is_cancelled_at_once(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    job_id = await api.submit()
    handle = await workflow_of(job_id, temporal_server)

    async def is_asked() -> bool:
        """Request the cancellation; False until the workflow exists."""
        try:
            await handle.cancel()
        except RPCError:
            return False
        return True

    await until(is_asked, "the workflow is there")
    await ended_as_completed(handle)
    assert await api.end(job_id) == "CANCELLED"


@pytest.mark.parametrize("cached_workflows", [2_000])
async def test_cancellation_does_not_interrupt_a_write_to_the_ledger(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request reaches a workflow that waits for the ledger when its task is renewed, after some seconds."""
    job_id = await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    await api.followed()
    handle = await workflow_of(job_id, temporal_server)
    store, opened, cut = api.runtime.store, asyncio.Event(), []
    commit = store.ledger.commit

    async def commit_late(*given: Any, **named: Any) -> Any:
        try:
            await opened.wait()
        except asyncio.CancelledError:
            cut.append(given)
            raise
        return await commit(*given, **named)

    monkeypatch.setattr(store.ledger, "commit", commit_late)
    (await api.callback("heartbeat", directive, progress=0.5)).ok()
    await handle.cancel()

    async def has_heard() -> bool:
        events = [event.event_type async for event in handle.fetch_history_events()]
        return REQUESTED in events and TASK_STARTED in events[events.index(REQUESTED) :]

    await until(has_heard, "a task started with the request")
    opened.set()
    (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
    assert await api.end(job_id) == "CANCELLED"
    await ended_as_completed(handle)
    assert cut == []
