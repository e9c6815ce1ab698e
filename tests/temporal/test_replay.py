"""Jobs that a deployed version started can be continued by today's: recorded histories are replayed.

`python -m scripts.record_histories` writes them. One that fails here would fail for running jobs: see how to
change the workflow in docs/adr/0015-one-temporal-workflow-per-job.md.
"""

import base64
import json
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, WorkflowReplayResult
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Decision, JobSnapshot, NoTools
from lucius.core.model.inputs import Input, Start, Succeeded
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.messages import WORKFLOW_TYPE, JobMessage, WorkflowArgs
from lucius.engine.temporal.worker import PASSED_THROUGH
from lucius.engine.temporal.workflow import JobWorkflow
from lucius.engine.temporal.workflow_tools import workflow_tools

RECORDED = sorted((Path(__file__).parents[1] / "data" / "histories").glob("*.json"))
MAX_BYTES = 64 * 1024
MACHINE = re.compile(r"/(home|root|tmp|work|Users)/|site-packages")


@pytest.fixture(autouse=True)
def _tools() -> Iterator[None]:
    workflow_tools.tools = CelTools()
    yield
    workflow_tools.tools = NoTools()


def recorded(path: Path) -> WorkflowHistory:
    head, text = path.read_text().splitlines()
    return WorkflowHistory.from_json(json.loads(head)["workflow_id"], text)


def named(name: str) -> WorkflowHistory:
    return recorded(next(path for path in RECORDED if path.name.startswith(f"{name}.")))


def payloads(text: str) -> str:
    """Return the decoded payloads of a history."""
    return b" ".join(base64.b64decode(found) for found in re.findall(r'"data":"([^"]+)"', text)).decode()


async def replayed(kind: type, history: WorkflowHistory) -> WorkflowReplayResult:
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, "tests")
    replayer = Replayer(
        workflows=[kind],
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
        data_converter=data_converter({}),
    )
    return await replayer.replay_workflow(history, raise_on_replay_failure=False)


@pytest.mark.usefixtures("each_fastpath")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_recorded_history_replays_under_both_values(path: Path) -> None:
    """Whichever value of LUCIUS_TEMPORAL_FASTPATH a history was recorded with, and whichever is set now."""
    assert (await replayed(JobWorkflow, recorded(path))).replay_failure is None


@pytest.mark.parametrize(
    ("ending", "found"), [("", {"inline_decisions"}), ("-early", {"early_messages"}), ("-plain", set[str]())]
)
def test_histories_have_results_of_both_routes(ending: str, found: set[str]) -> None:
    """Without `-early` nor `-plain`, the activities decided; on the plain route they only committed."""
    path = next(path for path in RECORDED if path.name.startswith(f"two-steps{ending}."))
    inside = payloads(path.read_text())
    assert {name for name in ("inline_decisions", "early_messages") if f'"{name}"' in inside} == found


def test_histories_have_every_kind_of_event_of_a_workflow() -> None:
    seen = {event["eventType"].removeprefix("EVENT_TYPE_") for path in RECORDED for event in _events(path)}
    assert seen >= {
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED",
        "WORKFLOW_EXECUTION_CANCEL_REQUESTED",
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        "WORKFLOW_EXECUTION_COMPLETED",
        "WORKFLOW_EXECUTION_FAILED",
        "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
        "ACTIVITY_TASK_COMPLETED",
        "MARKER_RECORDED",
        "TIMER_STARTED",
        "TIMER_FIRED",
        "TIMER_CANCELED",
    }


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_histories_are_small_and_name_no_machine(path: Path) -> None:
    text = path.read_text()
    assert len(text) < MAX_BYTES
    for shown in (text, payloads(text)):
        assert socket.gethostname() not in shown
        found = MACHINE.search(shown)
        assert found is None, shown[max(0, found.start() - 100) :][:300]


# Changed workflows and rules


@workflow.defn(name=WORKFLOW_TYPE)
class WithAnotherCommand(JobWorkflow):
    @workflow.init
    def __init__(self, args: WorkflowArgs) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: WorkflowArgs) -> str:
        await workflow.sleep(1)
        return await super().run(args)


@workflow.defn(name=WORKFLOW_TYPE)
class WithPatchedCommand(JobWorkflow):
    """Uses `workflow.patched`, as docs/adr/0015 describes."""

    @workflow.init
    def __init__(self, args: WorkflowArgs) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: WorkflowArgs) -> str:
        if workflow.patched("sleeps-first"):
            await workflow.sleep(1)
        return await super().run(args)


@workflow.defn(name=WORKFLOW_TYPE)
class WithoutSignals(JobWorkflow):
    @workflow.init
    def __init__(self, args: WorkflowArgs) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: WorkflowArgs) -> str:
        return await super().run(args)

    def _receive(self, messages: Sequence[JobMessage]) -> None:
        pass


@pytest.mark.parametrize("kind", [WithAnotherCommand, WithoutSignals])
async def test_changed_workflow_does_not_replay(kind: type) -> None:
    assert "ondeterminism" in repr((await replayed(kind, named("one-step"))).replay_failure)


async def test_patched_change_replays_older_histories() -> None:
    assert (await replayed(WithPatchedCommand, named("one-step"))).replay_failure is None


@pytest.mark.parametrize(("history", "about"), [("still-waiting", Start), ("two-steps", Succeeded)])
async def test_changed_rules_do_not_replay_even_with_the_same_commands(
    monkeypatch: pytest.MonkeyPatch, history: str, about: type
) -> None:
    """Temporal records the result of a local activity, not its arguments."""

    def otherwise(view: JobSnapshot, inputs: Sequence[Input], *given: Any) -> Decision:
        decision = decide_all(view, inputs, *given)
        if not any(isinstance(one, about) for one in inputs):
            return decision
        return replace(decision, job=replace(decision.job, event_hash="of another event"))

    monkeypatch.setattr("lucius.engine.temporal.workflow.decide_all", otherwise)
    monkeypatch.setattr("lucius.engine.temporal.early_messages.decide_all", otherwise)
    assert "decided otherwise" in repr((await replayed(JobWorkflow, named(history))).replay_failure)


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text().splitlines()[1])["events"]
    return events
