"""A workflow task that stays open for callbacks takes on a limited amount and does not keep others waiting.

If the task is lost, a callback that it had received does not count as its own duplicate.
"""

import asyncio
import itertools
import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from lucius.core.model.decision import Decision
from lucius.core.model.records import NEVER
from lucius.engine.temporal import early_messages, signal_batcher
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.fastpath import coalesced_handovers, open_tasks
from tests.support.api import Api, settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.test_new_runs import runs_of, serving_at
from tests.temporal.twin_api import FollowingApi

pytestmark = pytest.mark.usefixtures("fastpath_on")

ITEMS, LARGE = 300, 100_000
APPLIED = ("CALLBACK_RESULT", "APPLIED")

STEPS, MANY_STEPS = 20, 50


def chain(name: str, steps: int) -> dict[str, Any]:
    each = [{"step_id": f"s{n}", "step_type": "OCR", "service": "ocr"} for n in range(steps)]
    return {"protocol_id": name.lower(), "version": 1, "request_type": name, "steps": each}


MAP: dict[str, Any] = {
    "protocol_id": "map",
    "version": 1,
    "request_type": "MAP",
    "input_schema": {"type": "object"},
    "steps": [
        {
            "step_id": "each",
            "kind": "map",
            "map": {
                "items": "input.items",
                "max_parallel": 32,
                "steps": [{"step_id": "x", "step_type": "OCR", "service": "ocr"}],
            },
        }
    ],
}


@asynccontextmanager
async def world(folder: Path, address: str) -> AsyncIterator[FollowingApi]:
    for protocol in (chain("SINGLE", 1), chain("CHAIN", STEPS), chain("LONG_CHAIN", MANY_STEPS), MAP):
        (folder / f"{protocol['protocol_id']}.yaml").write_text(json.dumps(protocol))
    settings = settings_for(folder, protocols_dir=folder, ledger_url=f"sqlite:///{folder / 'ledger.db'}")
    async with serving_at(replace(settings, temporal_task_queue=uuid.uuid4().hex), address) as api:
        yield api


async def answer(api: Api, most: int = 1, result: Any = None, seconds: float = 0.0, wait: int = 5) -> int:
    """Answer up to `most` directives at once, even before the ledger shows them, and return their number."""
    directives = await pulled(api, most, wait)
    await asyncio.sleep(seconds)
    for answered in await asyncio.gather(*(api.succeed(directive, result=result) for directive in directives)):
        answered.ok()
    return len(directives)


async def pulled(api: Api, most: int = 1, wait: int = 5) -> list[dict[str, Any]]:
    pull = "/v1/services/ocr/directives:pull", {"wait_seconds": wait, "max": most}
    directives: list[dict[str, Any]] = (await Api.call(api, "POST", *pull)).ok()["directives"]
    return directives


async def kinds(server: TemporalServer, job_id: str) -> Counter[str]:
    client = await Client.connect(server.address, data_converter=data_converter({}))
    handle = client.get_workflow_handle(job_id)
    async with asyncio.timeout(30):
        await handle.result()
    events = [event async for event in handle.fetch_history_events()]
    return Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events)


async def dispositions(api: Api, job_id: str) -> Counter[tuple[str, str]]:
    events = await api.runtime.store.history.events(job_id, 0, 5_000)
    return Counter((event.type, event.data["disposition"]) for event in events if "disposition" in event.data)


async def test_large_results_in_sequence_fail_no_task(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with world(tmp_path, temporal_server.address) as api:
        job_id = await api.submit(request_type="CHAIN")
        for n in range(STEPS):
            assert await answer(api, result={"text": random.randbytes(LARGE).hex()}), n
        assert await api.end(job_id) == "SUCCEEDED"
        assert not (await kinds(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]


async def test_many_results_at_once_are_each_applied_once(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with world(tmp_path, temporal_server.address) as api:
        job_id, done = await api.submit(request_type="MAP", payload={"items": list(range(ITEMS))}), 0
        while done < ITEMS:
            done += await answer(api, most=100)
        assert await api.end(job_id) == "SUCCEEDED"
        assert await dispositions(api, job_id) == {APPLIED: ITEMS}
        assert not (await kinds(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]


async def test_handovers_made_one_by_one_share_signals(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 1.0)
    async with world(tmp_path, temporal_server.address) as api:
        job_id = await api.submit(request_type="MAP", payload={"items": list(range(32))})
        directives: list[dict[str, Any]] = []
        while len(directives) < 32:
            directives += await pulled(api)
            await asyncio.sleep(0.02)
        for answered in await asyncio.gather(*map(api.succeed, directives)):
            answered.ok()
        assert await api.end(job_id) == "SUCCEEDED"
        assert (await kinds(temporal_server, job_id))["WORKFLOW_EXECUTION_SIGNALED"] < 16


async def test_many_concurrent_services_fail_no_task(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with world(tmp_path, temporal_server.address) as api:
        job_id, done = await api.submit(request_type="MAP", payload={"items": list(range(ITEMS))}), 0

        async def serve() -> None:
            nonlocal done
            while done < ITEMS:
                answered = await answer(api, most=3, wait=1)
                done += answered

        await asyncio.gather(*(serve() for _ in range(20)))
        assert await api.end(job_id) == "SUCCEEDED"
        assert await dispositions(api, job_id) == {APPLIED: ITEMS}
        assert not (await kinds(temporal_server, job_id))["WORKFLOW_TASK_FAILED"]


async def test_message_received_by_a_lost_task_is_no_duplicate(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal fails a task with too many pending signals, and its worker does not notice."""
    monkeypatch.setattr(open_tasks, "MAX_PENDING_SIGNALS", 10_000)
    monkeypatch.setattr(open_tasks, "MAX_TASK_SECONDS", 60)
    monkeypatch.setattr(early_messages, "MAX_EARLY_MESSAGES", 10_000)
    monkeypatch.setattr(signal_batcher, "MAX_BATCH_MESSAGES", 1)
    monkeypatch.setattr(signal_batcher, "PAUSE_SECONDS", 0)
    async with world(tmp_path, temporal_server.address) as api:
        job_id, done = await api.submit(request_type="MAP", payload={"items": list(range(ITEMS))}), 0
        while done < ITEMS:
            done += await answer(api, most=100)
        assert await api.end(job_id) == "SUCCEEDED"
        assert (await kinds(temporal_server, job_id))["WORKFLOW_TASK_FAILED"], "none was lost"
        assert await dispositions(api, job_id) == {APPLIED: ITEMS}


async def test_update_is_answered_while_callbacks_keep_arriving(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_tasks, "MAX_PENDING_SIGNALS", 10_000)
    monkeypatch.setattr(open_tasks, "MAX_TASK_SECONDS", 60)
    async with world(tmp_path, temporal_server.address) as api:
        job_id = await api.submit(request_type="CHAIN")
        (directive,) = await api.pull("ocr", wait_seconds=5)
        (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
        assert await api.end(job_id) == "FAILED_FINAL"
        retried = asyncio.create_task(api.post(f"/v1/jobs/{job_id}:retry", {"reason": "mended"}))
        for n in range(STEPS):
            assert await answer(api, seconds=0.1), n
            if retried.done():
                break
        else:
            pytest.fail("it waits for all that is said")
        (await retried).ok(202)


async def test_chain_of_quick_steps_ends_its_task_in_time(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_tasks, "MAX_TASK_SECONDS", 1.0)
    async with world(tmp_path, temporal_server.address) as api:
        job_id = await api.submit(request_type="CHAIN")
        for _ in range(STEPS):
            assert await answer(api, seconds=0.15)
        assert await api.end(job_id) == "SUCCEEDED"
        assert (await kinds(temporal_server, job_id))["WORKFLOW_TASK_COMPLETED"] >= 4


async def test_job_with_steady_results_continues_as_new(tmp_path: Path, short_history_server: str) -> None:
    async with world(tmp_path, short_history_server) as api:
        job_id = await api.submit(request_type="LONG_CHAIN")
        for _ in range(MANY_STEPS):
            assert await answer(api, seconds=0.08)
        assert await api.end(job_id) == "SUCCEEDED"
        await runs_of(short_history_server, job_id, lambda runs: len(runs) >= 2)


async def test_time_advances_between_inline_decisions(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with world(tmp_path, temporal_server.address) as api:
        job_id = await api.submit(request_type="CHAIN")
        for _ in range(STEPS):
            assert await answer(api, seconds=0.05)
        await api.job(job_id)
        view = await api.runtime.store.jobs.job(job_id)
        assert view is not None
        ends = [view.steps[f"s{n}"].updated_at for n in range(STEPS)]
        assert all(later - earlier >= 40 for earlier, later in itertools.pairwise(ends)), ends
        assert view.job.updated_at <= api.clock.now() + 50


async def test_repeat_received_by_a_lost_task_is_recorded_once(
    tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal completes no workflow with an unread signal, so its last task runs again."""
    async with world(tmp_path, temporal_server.address) as api:
        store, said = api.runtime.store, list[str]()
        commit = store.ledger.commit

        async def once_more(decision: Decision) -> None:
            if not decision.job.live and not said:
                said.append((await api.succeed(directive)).ok()["disposition"])
            await commit(decision)

        job_id = await api.submit(request_type="SINGLE")
        (directive,) = await api.pull("ocr", wait_seconds=5)
        (await api.callback("ack", directive)).ok()
        await api.job(job_id)  # applied by the open task that requested it, which is now over
        monkeypatch.setattr(store.ledger, "commit", once_more)
        (await api.succeed(directive)).ok()
        found = await kinds(temporal_server, job_id)
        assert (said, found["WORKFLOW_TASK_FAILED"]) == (["DUPLICATE"], 1)
        assert await dispositions(api, job_id) == {
            ("CALLBACK_ACK", "APPLIED"): 1,
            APPLIED: 1,
            ("CALLBACK_RESULT", "DUPLICATE"): 1,
        }
        assert await store.inbox.list_pending(NEVER, 10) == []
