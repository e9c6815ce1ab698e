"""An immediate callback is applied by the workflow task that requested it, whichever process receives it.

The signals are sent all the same.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from lucius.core.model.decision import Decision, Defaults
from lucius.core.model.records import NEVER
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.deterministic_env import make_env
from lucius.engine.temporal.fastpath import coalesced_handovers, inline_decisions, open_tasks
from lucius.engine.temporal.messages import decode_inbox_message
from lucius.engine.temporal.workflow_client import WorkflowClient
from lucius.ports.errors import EngineDown, LedgerDown
from lucius.ports.inbox import InboxMessage
from tests.support.api import settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, serving_over

pytestmark = pytest.mark.usefixtures("fastpath_on")

STEPS = ("ocr", "embedding")


@pytest.fixture
def long_open_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task stay open as long as the answer takes, however slow the machine is."""
    monkeypatch.setattr(open_tasks, "MAX_WAIT_SECONDS", 3)
    monkeypatch.setattr(open_tasks, "MAX_TASK_SECONDS", 60)


@pytest.fixture
async def api(tmp_path: Path, temporal_server: TemporalServer, long_open_tasks: None) -> AsyncIterator[FollowingApi]:
    settings = settings_for(tmp_path, defaults=Defaults(backoff_scale=0.3))
    async with serving_over(settings, temporal_server) as api:
        yield api


async def history(server: TemporalServer, job_id: str) -> Counter[str]:
    client = await Client.connect(server.address, data_converter=data_converter({}))
    handle = client.get_workflow_handle(job_id)
    await handle.result()
    events = [event async for event in handle.fetch_history_events()]
    return Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events)


async def callbacks(api: FollowingApi, job_id: str) -> list[tuple[str, str]]:
    events = await api.runtime.store.history.events(job_id, 0, 500)
    return [(e.type.removeprefix("CALLBACK_"), e.data["disposition"]) for e in events if "disposition" in e.data]


async def answered(api: FollowingApi, service: str) -> dict[str, Any]:
    directive = await api.pull_one(service)
    (await api.succeed(directive, result={"by": service})).ok()
    return directive


async def test_job_with_immediate_results_takes_two_workflow_tasks(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    for service in STEPS:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")] * 2
    found = await history(temporal_server, job_id)
    assert (found["WORKFLOW_TASK_COMPLETED"], found["WORKFLOW_EXECUTION_SIGNALED"]) == (2, 2), found
    assert found["MARKER_RECORDED"] == 1, found
    assert not found["WORKFLOW_TASK_FAILED"], found


@pytest.mark.parametrize("gone", [False, True])
async def test_signal_goes_to_the_open_run_or_to_the_current_one_if_that_has_ended(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    signalled_runs: list[str] = []
    tell = WorkflowClient.signal

    async def noted(self: WorkflowClient, job_id: str, signal: str, said: Any, run_id: str = "") -> None:
        signalled_runs.append(run_id)
        await tell(self, job_id, signal, said, str(uuid.uuid4()) if gone else run_id)

    monkeypatch.setattr(WorkflowClient, "signal", noted)
    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 60)
    job_id = await api.submit()
    await answered(api, "ocr")
    events = await history(temporal_server, job_id)
    client = await Client.connect(temporal_server.address)
    about = await client.get_workflow_handle(job_id).describe()
    assert (signalled_runs, events["WORKFLOW_EXECUTION_SIGNALED"]) == ([about.run_id], 1)
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")]


async def test_inline_decision_that_differs_in_the_workflow_fails_one_task(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_decisions, "make_env", lambda run_id, *given: make_env(f"not {run_id}", *given))
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    for service in STEPS:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")] * 2
    assert (await history(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]


async def test_inline_commit_of_unknown_outcome_is_found_by_the_workflow(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, unsure = api.runtime.store, list[str]()
    commit = store.ledger.commit

    async def commit_unsurely(decision: Decision) -> None:
        await commit(decision)
        if not unsure and any(event.type == "STEP_SUCCEEDED" for event in decision.events):
            unsure.append(decision.job.job_id)
            raise LedgerDown("it went away while it answered")

    monkeypatch.setattr(store.ledger, "commit", commit_unsurely)
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    for service in STEPS:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    assert unsure == [job_id]
    assert not (await history(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")] * 2


@pytest.mark.usefixtures("long_open_tasks")
async def test_job_takes_two_workflow_tasks_when_api_and_worker_are_apart(
    tmp_path: Path, temporal_server: TemporalServer, emptied_postgres_url: str
) -> None:
    settings = settings_for(tmp_path, ledger_url=emptied_postgres_url)
    async with serving_over(settings, temporal_server) as api:
        job_id = await api.submit(request_type="OCR_EMBEDDING")
        for service in STEPS:
            await answered(api, service)
        found = await history(temporal_server, job_id)
        assert (found["WORKFLOW_TASK_COMPLETED"], found["WORKFLOW_EXECUTION_SIGNALED"]) == (2, 2), found
        assert not found["WORKFLOW_TASK_FAILED"], found
        assert await api.end(job_id) == "SUCCEEDED"
        assert await callbacks(api, job_id) == [("RESULT", "APPLIED")] * 2
        assert await api.runtime.store.inbox.list_pending(NEVER, 10) == []


async def test_messages_are_announced_only_after_temporal_has_their_signal(
    tmp_path: Path, temporal_server: TemporalServer, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise EngineDown("Temporal: away")

    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 5)
    async with serving_over(settings_for(tmp_path, ledger_url=emptied_postgres_url), temporal_server) as api:
        store, kinds = api.runtime.store, dict[str, list[str]]()
        announced: list[list[str]] = []
        put = store.inbox.put

        async def noted(messages: Sequence[InboxMessage]) -> list[bool]:
            kinds.update((one.message_id, [said.kind for said in decode_inbox_message(one)]) for one in messages)
            return await put(messages)

        monkeypatch.setattr(store.inbox, "put", noted)
        monkeypatch.setattr(store.inbox, "announce", lambda message_ids: announced.append(list(message_ids)))
        await api.submit(request_type="OCR_EMBEDDING")
        await answered(api, "ocr")
        assert [[kinds[one] for one in message_ids] for message_ids in announced] == [[["HandedOver"], ["Succeeded"]]]
        directive = await api.pull_one("embedding")
        monkeypatch.setattr(WorkflowClient, "signal", away)
        assert (await api.succeed(directive)).status == 503
        assert len(announced) == 1


async def test_repeated_result_is_recorded_as_duplicate(api: FollowingApi, temporal_server: TemporalServer) -> None:
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    directive = await answered(api, "ocr")
    assert (await api.succeed(directive, result={"by": "ocr"})).ok()["disposition"] == "DUPLICATE"
    for service in STEPS[1:]:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    await history(temporal_server, job_id)  # the duplicate arrives by its signal, after the task has ended
    assert Counter(await callbacks(api, job_id)) == {("RESULT", "APPLIED"): 2, ("RESULT", "DUPLICATE"): 1}


async def test_cancel_does_not_wait_for_an_open_task(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_tasks, "MAX_WAIT_SECONDS", 12)
    async with serving_over(settings_for(tmp_path), temporal_server) as api, asyncio.timeout(6):
        job_id = await api.submit(request_type="OCR_EMBEDDING")
        (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "not wanted"})).ok(202)
        assert await api.end(job_id) == "CANCELLED"
