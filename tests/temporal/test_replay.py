"""What was begun by a version that was deployed can be gone on with by today's: recorded histories are replayed.

`python -m scripts.record_histories` writes them. One that fails here would fail for the jobs that run: see how to
change the workflow in docs/adr/0015-temporal-workflow.md.
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

from lucius.adapters.expressions import CelTools
from lucius.core.decide import decide_all
from lucius.core.decision import Decision, JobView, NoTools
from lucius.core.inputs import Input, Start, Succeeded
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.mail import Mail
from lucius.engine.temporal.rules import rules
from lucius.engine.temporal.wire import WORKFLOW, Begin, Happened
from lucius.engine.temporal.worker import PASSED_THROUGH
from lucius.engine.temporal.workflow import JobWorkflow

RECORDED = sorted((Path(__file__).parents[1] / "data" / "histories").glob("*.json"))
MOST_BYTES = 64 * 1024
MACHINE = re.compile(r"/(home|root|tmp|work|Users)/|site-packages")


@pytest.fixture(autouse=True)
def _tools() -> Iterator[None]:
    rules.tools = CelTools()
    yield
    rules.tools = NoTools()


def recorded(path: Path) -> WorkflowHistory:
    head, text = path.read_text().splitlines()
    return WorkflowHistory.from_json(json.loads(head)["workflow_id"], text)


def named(name: str) -> WorkflowHistory:
    return recorded(next(path for path in RECORDED if path.name.startswith(f"{name}.")))


async def replayed(kind: type, history: WorkflowHistory) -> WorkflowReplayResult:
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, "tests")
    replayer = Replayer(
        workflows=[kind],
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
        data_converter=data_converter({}),
    )
    return await replayer.replay_workflow(history, raise_on_replay_failure=False)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_todays_workflow_does_what_was_done_before(path: Path) -> None:
    assert (await replayed(JobWorkflow, recorded(path))).replay_failure is None


def test_what_was_recorded_has_every_kind_of_thing_that_a_workflow_does() -> None:
    seen = {event["eventType"].removeprefix("EVENT_TYPE_") for path in RECORDED for event in _events(path)}
    assert seen >= {
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED",
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
def test_what_was_recorded_is_small_and_names_no_machine(path: Path) -> None:
    text = path.read_text()
    assert len(text) < MOST_BYTES
    inside = b" ".join(base64.b64decode(found) for found in re.findall(r'"data":"([^"]+)"', text)).decode()
    for said in (text, inside):
        assert socket.gethostname() not in said
        found = MACHINE.search(said)
        assert found is None, said[max(0, found.start() - 100) :][:300]


# Changes that are no changes of the workflow alone


@workflow.defn(name=WORKFLOW)
class WithAnotherCommand(JobWorkflow):
    @workflow.init
    def __init__(self, begin: Begin) -> None:
        super().__init__(begin)

    @workflow.run
    async def run(self, begin: Begin) -> str:
        await workflow.sleep(1)
        return await super().run(begin)


@workflow.defn(name=WORKFLOW)
class WithThatPatched(JobWorkflow):
    """As the page on the design says."""

    @workflow.init
    def __init__(self, begin: Begin) -> None:
        super().__init__(begin)

    @workflow.run
    async def run(self, begin: Begin) -> str:
        if workflow.patched("sleeps-first"):
            await workflow.sleep(1)
        return await super().run(begin)


class _Deaf(Mail):
    def hear(self, said: Sequence[Happened], *, again: bool = False) -> None:
        pass


@workflow.defn(name=WORKFLOW)
class WithoutSignals(JobWorkflow):
    @workflow.init
    def __init__(self, begin: Begin) -> None:
        super().__init__(begin)
        self._mail = _Deaf()

    @workflow.run
    async def run(self, begin: Begin) -> str:
        return await super().run(begin)


@pytest.mark.parametrize("kind", [WithAnotherCommand, WithoutSignals])
async def test_a_workflow_that_does_something_else_is_found_out(kind: type) -> None:
    assert "ondeterminism" in repr((await replayed(kind, named("without-trouble"))).replay_failure)


async def test_a_change_that_is_patched_in_leaves_what_was_begun_before_alone() -> None:
    assert (await replayed(WithThatPatched, named("without-trouble"))).replay_failure is None


@pytest.mark.parametrize(("history", "about"), [("still-waiting", Start), ("decided-at-once", Succeeded)])
async def test_rules_that_decide_otherwise_are_found_out_though_the_commands_are_the_same(
    monkeypatch: pytest.MonkeyPatch, history: str, about: type
) -> None:
    """Temporal keeps what a local activity gave back, not what it was asked."""

    def otherwise(view: JobView, inputs: Sequence[Input], *given: Any) -> Decision:
        decision = decide_all(view, inputs, *given)
        if not any(isinstance(one, about) for one in inputs):
            return decision
        return replace(decision, job=replace(decision.job, event_hash="of another event"))

    monkeypatch.setattr("lucius.engine.temporal.workflow.decide_all", otherwise)
    assert "decided otherwise" in repr((await replayed(JobWorkflow, named(history))).replay_failure)


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text().splitlines()[1])["events"]
    return events
