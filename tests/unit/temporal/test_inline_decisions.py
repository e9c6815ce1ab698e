"""Immediate answers of services are decided by the activity that waits for them, as the workflow decides them later;
everything else is left to the workflow.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from lucius.adapters.ledger.memory.store import open_memory
from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Defaults, JobSnapshot, NoTools
from lucius.core.model.inputs import Ack, DeadlinePassed, HandedOver, Heartbeat, Input, Start, Succeeded
from lucius.core.model.statuses import JobStatus
from lucius.engine.temporal.deterministic_env import make_env
from lucius.engine.temporal.early_messages import EarlyMessages
from lucius.engine.temporal.fastpath.inline_decisions import InlineDecisions
from lucius.engine.temporal.fastpath.open_tasks import OpenTasks
from lucius.engine.temporal.messages import (
    InlineDecision,
    JobMessage,
    Projection,
    ProjectionResult,
    decode_input,
    digest_decision,
    encode_input,
    make_projection,
)
from lucius.engine.temporal.shortcuts import Project
from lucius.engine.temporal.workflow_inbox import MAX_BATCH_INPUTS, WorkflowInbox
from lucius.ports.errors import LedgerDown
from tests.conformance.builders import accept
from tests.simulation.clock import in_virtual_time
from tests.support.clock import ManualClock

RUN, DEFAULTS = "run-1", Defaults()


class Task:
    """An open task of a job of two steps, the first of which was just handed out."""

    def __init__(self) -> None:
        self.ledger, self.open_tasks, self.clock = open_memory().ledger, OpenTasks(0.1), ManualClock()
        self.inline = InlineDecisions(self.ledger, self.open_tasks, NoTools())
        self.projecting: Project = self.project
        self.down = False

    async def project(self, asked: Projection) -> ProjectionResult:
        if self.down:
            raise LedgerDown("it is away")
        await self.ledger.commit(asked.decision((await self.view()).protocol))
        return ProjectionResult(digest=asked.digest)

    async def run(self, first: Projection) -> tuple[list[InlineDecision], list[JobMessage]]:
        return await self.inline.run(RUN, first, lambda asked: self.projecting(asked))

    async def begin(self) -> Projection:
        await self.ledger.commit(accept("j1", status=JobStatus.QUEUED, created_at=self.clock.now()))
        self.before = await self.view()
        self.started = decide_all(
            self.before, [Start()], self.clock.now(), make_env(RUN, self.before.job, DEFAULTS, NoTools())
        )
        await self.ledger.commit(self.started)
        self.open_tasks.open("j1", RUN)
        return replace(make_projection(self.started, self.started.outbox, ()), defaults=DEFAULTS)

    @property
    def started_view(self) -> JobSnapshot:
        return JobSnapshot(self.started.job, self.started.protocol, {one.step_id: one for one in self.started.steps})

    async def view(self) -> JobSnapshot:
        view = await self.ledger.load("j1", ["ocr", "embedding"])
        assert view is not None
        return view

    async def succeed(self, step_id: str, *message_ids: str) -> list[JobMessage]:
        """Add a success of the step, once for each message id; return the messages."""
        lease_id = (await self.view()).steps[step_id].attempt.lease_id
        said = [
            encode_input(Succeeded(step_id=step_id, attempt_no=1, lease_id=lease_id, result={"n": 1}), one)
            for one in message_ids
        ]
        self.open_tasks.add_messages("j1", said)
        return said


def answering(task: Task, step_ids: Sequence[str]) -> None:
    """Let services answer as soon as their attempts are projected."""
    project = task.projecting

    async def answered(asked: Projection) -> ProjectionResult:
        found = await project(asked)
        for step_id in step_ids:
            if any(row.step_id == step_id for row in asked.outbox):
                await task.succeed(step_id, f"of {step_id}")
        return found

    task.projecting = answered


@in_virtual_time
async def test_inline_decisions_continue_while_services_answer() -> None:
    task = Task()
    first = await task.begin()
    answering(task, ["embedding"])
    ocr = await task.succeed("ocr", "of ocr")
    decisions, messages = await task.run(first)
    assert [[one.message_id for one in inline.messages] for inline in decisions] == [["of ocr"], ["of embedding"]]
    assert decisions[0].messages == ocr
    assert messages == []
    assert (await task.view()).job.status is JobStatus.SUCCEEDED
    assert task.open_tasks.get("j1") is None, "no task is open any more"


@in_virtual_time
async def test_workflow_repeats_the_same_decisions() -> None:
    task = Task()
    first = await task.begin()
    answering(task, ["embedding"])
    await task.succeed("ocr", "of ocr")
    decisions, _ = await task.run(first)
    view = task.started_view
    for inline in decisions:
        env = make_env(RUN, view.job, DEFAULTS, NoTools())
        decision = decide_all(view, [decode_input(one) for one in inline.messages], inline.at, env)
        assert digest_decision(decision) == inline.digest
        view = JobSnapshot(decision.job, view.protocol, {**view.steps, **{one.step_id: one for one in decision.steps}})
    assert view.job == (await task.view()).job


async def assert_left_to_the_workflow(task: Task, first: Projection, said: Sequence[JobMessage]) -> None:
    """Check that the messages are left to the workflow and the job is unchanged."""
    before = (await task.view()).job
    assert await task.run(first) == (list[InlineDecision](), list(said))
    assert (await task.view()).job == before
    assert task.open_tasks.get("j1") is None, "later messages are for the next task"


@in_virtual_time
async def test_no_message_leads_to_no_decision() -> None:
    task = Task()
    await assert_left_to_the_workflow(task, await task.begin(), [])


@in_virtual_time
async def test_callback_about_another_attempt_is_left_to_the_workflow() -> None:
    """The workflow may have read messages about that attempt."""
    task = Task()
    first = await task.begin()
    of_another: Input = Ack(step_id="ocr", attempt_no=1, lease_id="another")
    said = [*await task.succeed("ocr", "of ocr"), encode_input(of_another, "of another")]
    task.open_tasks.add_messages("j1", said[1:])
    await assert_left_to_the_workflow(task, first, said)


@in_virtual_time
async def test_message_without_id_or_attempt_is_left_to_the_workflow() -> None:
    for said in (encode_input(HandedOver("ocr", 1, "lease"), ""), encode_input(DeadlinePassed(), "letter")):
        task = Task()
        first = await task.begin()
        task.open_tasks.add_messages("j1", [said])
        await assert_left_to_the_workflow(task, first, [said])


@in_virtual_time
async def test_too_many_messages_are_left_to_the_workflow() -> None:
    task = Task()
    first = await task.begin()
    await assert_left_to_the_workflow(
        task, first, await task.succeed("ocr", *(f"message {n}" for n in range(MAX_BATCH_INPUTS + 1)))
    )


@in_virtual_time
async def test_messages_of_a_partly_loaded_job_are_left_to_the_workflow() -> None:
    task = Task()
    first = await task.begin()
    await assert_left_to_the_workflow(task, replace(first, defaults=None), await task.succeed("ocr", "of ocr"))


@in_virtual_time
async def test_failed_commit_is_left_to_the_workflow() -> None:
    task = Task()
    first = await task.begin()
    task.down = True
    await assert_left_to_the_workflow(task, first, await task.succeed("ocr", "of ocr"))


@in_virtual_time
async def test_messages_of_a_changed_job_are_left_to_the_workflow() -> None:
    task = Task()
    first = await task.begin()
    moved = replace(first.job, version=first.job.version - 1)
    await assert_left_to_the_workflow(task, replace(first, job=moved), await task.succeed("ocr", "of ocr"))


@in_virtual_time
async def test_message_added_twice_is_decided_once() -> None:
    task = Task()
    first = await task.begin()
    project = task.projecting

    async def twice(asked: Projection) -> ProjectionResult:
        task.open_tasks.add_messages("j1", said)
        return await project(asked)

    task.projecting = twice
    said = await task.succeed("ocr", "of ocr")
    decisions, messages = await task.run(first)
    assert ([inline.messages for inline in decisions], messages) == ([said], [])


@in_virtual_time
async def test_inline_decisions_use_the_jobs_time() -> None:
    """Decisions use the job's time, not the wall clock."""
    task = Task()
    first = await task.begin()
    task.clock.advance(3_600)
    await task.succeed("ocr", "of ocr")
    decisions, _ = await task.run(first)
    assert [inline.at for inline in decisions] == [first.job.updated_at]


@in_virtual_time
async def test_due_job_takes_no_inline_decisions() -> None:
    """A decision that was too large for one commit is due at once."""
    task = Task()
    first = await task.begin()
    due = replace(first.job, due_at=first.job.updated_at)
    await task.succeed("ocr", "of ocr")
    assert await task.run(replace(first, job=due)) == ([], [])
    assert task.open_tasks.get("j1") is None


@in_virtual_time
async def test_message_read_from_a_signal_is_not_passed_to_the_open_task_again() -> None:
    """Another branch's heartbeat ends the waiting; the answer arrives before the task has ended."""
    task, inbox = Task(), WorkflowInbox()
    early = EarlyMessages(inbox, DEFAULTS)
    first = await task.begin()
    beat = encode_input(Heartbeat(step_id="other", attempt_no=1, lease_id="of another branch"), "j1/beat")
    task.open_tasks.add_messages("j1", [beat])
    assert await task.run(first) == ([], [beat])
    early.receive([beat])
    said = await task.succeed("ocr", "j1/result")
    inbox.receive(early.without_early([beat]))
    inbox.receive(early.without_early(said))
    message_ids = tuple(waiting.message_id for waiting in inbox.take())
    assert message_ids == ("j1/beat", "j1/result")
    decision = decide_all(
        task.started_view,
        [decode_input(said[0])],
        task.clock.now(),
        make_env(RUN, task.started.job, DEFAULTS, NoTools()),
    )
    second = replace(make_projection(decision, decision.outbox, message_ids), defaults=DEFAULTS)
    task.open_tasks.open("j1", RUN, message_ids)
    await task.project(second)
    assert await task.run(second) == ([], [])
    inbox.mark_recorded(message_ids)
    assert not early.awaits_signals
