"""A service that answers at once is heard by the task that asked it, whichever process its callback comes to. The
signals come all the same."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from lucius.core.decision import Decision, Defaults
from lucius.core.model import NEVER
from lucius.engine.temporal import ahead, further, given_out, setup
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.further import env_of
from lucius.engine.temporal.wire import packed_letter
from lucius.engine.temporal.workflows import Workflows
from lucius.ports.errors import EngineDown, LedgerDown
from lucius.ports.inbox import Letter
from tests.support.api import settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, serving_over

STEPS = ("ocr", "embedding")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task listens for as long as it takes to answer, however busy the machine is."""
    monkeypatch.setattr(setup, "Ahead", lambda: Ahead(longest_wait=3))
    monkeypatch.setattr(ahead, "MOST_SECONDS", 60)


@pytest.fixture
async def api(tmp_path: Path, temporal_server: TemporalServer, patient: None) -> AsyncIterator[FollowingApi]:
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
    events = await api.runtime.store.events(job_id, 0, 500)
    return [(e.type.removeprefix("CALLBACK_"), e.data["disposition"]) for e in events if "disposition" in e.data]


async def answered(api: FollowingApi, service: str) -> dict[str, Any]:
    directive = await api.pull_one(service)
    (await api.succeed(directive, result={"by": service})).ok()
    return directive


async def test_a_job_whose_services_answer_at_once_takes_two_tasks(
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
async def test_the_run_that_listens_is_told_and_if_that_is_gone_whichever_there_is(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    told: list[str] = []
    tell = Workflows.tell

    async def noted(self: Workflows, job_id: str, signal: str, said: Any, run_id: str = "") -> None:
        told.append(run_id)
        await tell(self, job_id, signal, said, str(uuid.uuid4()) if gone else run_id)

    monkeypatch.setattr(Workflows, "tell", noted)
    monkeypatch.setattr(given_out, "COALESCE_SECONDS", 60)
    job_id = await api.submit()
    await answered(api, "ocr")
    events = await history(temporal_server, job_id)
    client = await Client.connect(temporal_server.address)
    about = await client.get_workflow_handle(job_id).describe()
    assert (told, events["WORKFLOW_EXECUTION_SIGNALED"]) == ([about.run_id], 1)
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")]


async def test_a_turn_that_the_workflow_would_have_decided_otherwise_is_noticed_and_costs_a_task(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(further, "env_of", lambda run_id, *given: env_of(f"not {run_id}", *given))
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    for service in STEPS:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")] * 2
    assert (await history(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]


async def test_what_was_written_down_though_nobody_said_so_is_found_by_the_workflow(
    api: FollowingApi, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, unsure = api.runtime.store, list[str]()
    commit = store.commit

    async def commit_unsurely(decision: Decision) -> None:
        await commit(decision)
        if not unsure and any(event.type == "STEP_SUCCEEDED" for event in decision.events):
            unsure.append(decision.job.job_id)
            raise LedgerDown("it went away while it answered")

    monkeypatch.setattr(store, "commit", commit_unsurely)
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    for service in STEPS:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    assert unsure == [job_id]
    assert not (await history(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]
    assert await callbacks(api, job_id) == [("RESULT", "APPLIED")] * 2


@pytest.mark.usefixtures("patient")
async def test_nor_does_it_take_more_where_callbacks_come_to_another_process(
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
        assert await api.runtime.store.unread(NEVER, 10) == []


async def test_only_what_temporal_has_is_announced_and_hand_overs_with_what_follows(
    tmp_path: Path, temporal_server: TemporalServer, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise EngineDown("Temporal: away")

    monkeypatch.setattr(given_out, "COALESCE_SECONDS", 5)
    async with serving_over(settings_for(tmp_path, ledger_url=emptied_postgres_url), temporal_server) as api:
        store, kinds = api.runtime.store, dict[str, list[str]]()
        announced: list[list[str]] = []
        put = store.put

        async def noted(letters: Sequence[Letter]) -> list[bool]:
            kinds.update((one.letter_id, [said.kind for said in packed_letter(one)]) for one in letters)
            return await put(letters)

        monkeypatch.setattr(store, "put", noted)
        monkeypatch.setattr(store, "announce", lambda letter_ids: announced.append(list(letter_ids)))
        await api.submit(request_type="OCR_EMBEDDING")
        await answered(api, "ocr")
        assert [[kinds[one] for one in letter_ids] for letter_ids in announced] == [[["HandedOver"], ["Succeeded"]]]
        directive = await api.pull_one("embedding")
        monkeypatch.setattr(Workflows, "tell", away)
        assert (await api.succeed(directive)).status == 503
        assert len(announced) == 1


async def test_what_is_said_twice_is_a_duplicate_all_the_same(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    job_id = await api.submit(request_type="OCR_EMBEDDING")
    directive = await answered(api, "ocr")
    assert (await api.succeed(directive, result={"by": "ocr"})).ok()["disposition"] == "DUPLICATE"
    for service in STEPS[1:]:
        await answered(api, service)
    assert await api.end(job_id) == "SUCCEEDED"
    await history(temporal_server, job_id)  # the second is told by its signal, when the task has ended
    assert Counter(await callbacks(api, job_id)) == {("RESULT", "APPLIED"): 2, ("RESULT", "DUPLICATE"): 1}


async def test_who_cancels_a_job_does_not_wait_for_its_service(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "Ahead", lambda: Ahead(longest_wait=12))
    async with serving_over(settings_for(tmp_path), temporal_server) as api, asyncio.timeout(6):
        job_id = await api.submit(request_type="OCR_EMBEDDING")
        (await api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "not wanted"})).ok(202)
        assert await api.end(job_id) == "CANCELLED"
