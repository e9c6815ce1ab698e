"""A workflow run may end though its job continues: its history is too large, or the rules have changed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from temporalio import workflow
from temporalio.client import Client, WorkflowExecution

from lucius.bootstrap.settings import Settings
from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Decision
from lucius.core.model.records import NEVER
from lucius.engine.temporal import engine as temporal_engine
from lucius.engine.temporal import inbox_redelivery
from lucius.engine.temporal import worker as temporal_worker
from lucius.engine.temporal.messages import WORKFLOW_TYPE, WorkflowArgs
from lucius.engine.temporal.workflow import JobWorkflow
from tests.conformance.test_examples_run import World, open_world
from tests.support.api import serving, settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, TimeFlows, over_temporal

pytestmark = pytest.mark.usefixtures("each_fastpath")

WITHIN = 20.0


async def runs_of(address: str, job_id: str, wanted: Callable[[list[WorkflowExecution]], bool]) -> None:
    """Wait until the runs are as wanted; Temporal's index lags behind."""
    client = await Client.connect(address)
    async with asyncio.timeout(WITHIN):
        while not wanted([run async for run in client.list_workflows(f"WorkflowId='{job_id}'")]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def statuses(runs: list[WorkflowExecution]) -> set[str]:
    return {run.status.name for run in runs if run.status is not None}


# Histories that grow


@asynccontextmanager
async def serving_at(settings: Settings, address: str) -> AsyncIterator[FollowingApi]:
    settings = replace(settings, engine="temporal", temporal_address=address)
    async with serving(settings, TimeFlows()) as served:
        yield FollowingApi(served.app, served.runtime, served.clock)


@pytest.fixture
async def world(short_history_server: str, tmp_path: Path) -> AsyncIterator[World]:
    serve = partial(serving_at, address=short_history_server)
    async with open_world(tmp_path, "memory:", serve, lambda text: text) as opened:
        yield opened


async def test_heartbeats_and_operator_acts_survive_continue_as_new(world: World, short_history_server: str) -> None:
    api = world.api
    job_id = await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    for beat in range(1, 13):
        said = [api.callback("heartbeat", directive, progress=beat / 100 + n / 1000) for n in range(4)]
        act = "pause" if beat % 2 else "resume"
        *heard, acted = await asyncio.gather(*said, api.post(f"/v1/jobs/{job_id}:{act}", {}))
        assert [answer.ok()["disposition"] for answer in heard] == ["APPLIED"] * 4
        acted.ok(202)
    (await api.succeed(directive, result={"text": "all of it"})).ok()
    job = await world.end(job_id)
    assert (job["status"], job["steps"][0]["attempt_no"]) == ("SUCCEEDED", 1)
    assert job["steps"][0]["result"] == {"text": "all of it"}
    types = await api.event_types(job_id)
    assert (types.count("JOB_PAUSED"), types.count("JOB_RESUMED")) == (6, 6)
    await runs_of(
        short_history_server, job_id, lambda runs: len(runs) > 2 and statuses(runs) == {"CONTINUED_AS_NEW", "COMPLETED"}
    )
    found = "LuciusState='SUCCEEDED' and LuciusTenant='acme'"
    client = await Client.connect(short_history_server)
    assert job_id in [run.id async for run in client.list_workflows(found)], (
        "also by the attributes set by the first run"
    )


async def test_steps_of_a_job_with_several_workflow_runs_are_executed_once(
    world: World, short_history_server: str
) -> None:
    world.results["split"] = {"pages": [f"p{n}" for n in range(30)]}
    world.results |= {f"ocr_page.{n}": {"text": f"t{n}"} for n in range(30)}
    job_id = await world.submit("PAGE_MAP")
    job = await world.end(job_id, "split", "ocr", "merge")
    assert job["status"] == "SUCCEEDED"
    pages = next(step for step in job["steps"] if step["stepId"] == "pages")["result"]
    assert [item["result"]["text"] for item in pages["items"]] == [f"t{n}" for n in range(30)]
    assert {step["attempt_no"] for step in job["steps"] if step["stepId"].startswith("ocr_page")} == {1}
    await runs_of(
        short_history_server, job_id, lambda runs: len(runs) > 1 and statuses(runs) == {"CONTINUED_AS_NEW", "COMPLETED"}
    )


# Rules that change


stuck_runs: set[str] = set()


@workflow.defn(name=WORKFLOW_TYPE)
class LaterJobWorkflow(JobWorkflow):
    """Workflow of a later version, which fails every task of some runs that an earlier version began."""

    @workflow.init
    def __init__(self, args: WorkflowArgs) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: WorkflowArgs) -> str:
        if workflow.info().run_id in stuck_runs:
            raise RuntimeError("this version cannot continue the run")
        return await super().run(args)


def decide_by_later_rules(*args: Any) -> Decision:
    decision = decide_all(*args)
    due_at = decision.job.due_at
    later = due_at + 1 if due_at is not None and due_at < NEVER else due_at
    return replace(decision, job=replace(decision.job, due_at=later))


@asynccontextmanager
async def between_versions(
    settings: Settings, server: TemporalServer, change: Callable[[], None]
) -> AsyncIterator[tuple[FollowingApi, str, dict[str, Any]]]:
    """Yield an API after the change, with a job started before it and its directive."""
    async with serving_at(settings, server.address) as api:
        job_id = await api.submit()
        directive = await api.pull_one()
        (await api.callback("ack", directive)).ok()
        await api.followed()
    change()
    async with serving_at(settings, server.address) as api:
        yield api, job_id, directive


@pytest.fixture
def settings(tmp_path: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(temporal_engine, "GRACE_MS", 200)
    monkeypatch.setattr(inbox_redelivery, "GRACE_MS", 200)
    monkeypatch.setattr(inbox_redelivery, "INTERVAL_SECONDS", 0.2)
    return over_temporal(settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path / 'ledger.db'}"), temporal_server)


async def test_changed_rules_fail_the_workflow_run_and_not_the_job(
    settings: Settings, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        for module in ("workflow", "early_messages"):
            monkeypatch.setattr(f"lucius.engine.temporal.{module}.decide_all", decide_by_later_rules)

    async with between_versions(settings, temporal_server, change) as (api, job_id, directive):
        (await api.succeed(directive)).ok()
        job = await api.job(job_id)
        assert (job["status"], job["steps"][0]["attempt_no"]) == ("SUCCEEDED", 1)
        await runs_of(temporal_server.address, job_id, lambda runs: statuses(runs) == {"FAILED", "COMPLETED"})


async def test_workflow_run_whose_tasks_keep_failing_can_be_terminated_by_hand(
    settings: Settings, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        monkeypatch.setattr(temporal_worker, "PASSED_THROUGH", (*temporal_worker.PASSED_THROUGH, "tests"))
        monkeypatch.setattr(temporal_worker, "JobWorkflow", LaterJobWorkflow)

    async with between_versions(settings, temporal_server, change) as (api, job_id, directive):
        handle = (await Client.connect(temporal_server.address)).get_workflow_handle(job_id)
        run_id = (await handle.describe()).run_id
        assert run_id is not None
        stuck_runs.add(run_id)
        (await api.succeed(directive)).ok()
        async with asyncio.timeout(WITHIN):
            while (await handle.describe()).raw_description.pending_workflow_task.attempt < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await handle.terminate("this version cannot continue the run")
        job = await api.job(job_id)
        assert (job["status"], job["steps"][0]["attempt_no"]) == ("SUCCEEDED", 1)
        await runs_of(temporal_server.address, job_id, lambda runs: statuses(runs) == {"TERMINATED", "COMPLETED"})
