"""What services answer at once is decided by who waits for it, as the workflow decides it later; all else is left to
the workflow."""

from collections.abc import Sequence

from msgspec.structs import replace

from lucius.adapters.ledger_memory import MemoryLedger
from lucius.core.decide import decide_all
from lucius.core.decision import Defaults, JobView, NoTools
from lucius.core.inputs import Ack, DeadlinePassed, HandedOver, Heartbeat, Input, Start, Succeeded
from lucius.core.model import JobStatus
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.further import Further, env_of
from lucius.engine.temporal.mail import MOST_AT_ONCE, Mail
from lucius.engine.temporal.wire import Happened, Projected, Projection, Turn, digest, pack, projection, unpack
from lucius.ports.errors import LedgerDown
from tests.conformance.builders import accept
from tests.simulation.clock import in_virtual_time
from tests.support.clock import ManualClock

RUN, DEFAULTS = "run-1", Defaults()


class Task:
    """An open task of a job of two steps, the first of which was just handed out."""

    def __init__(self) -> None:
        self.ledger, self.ahead, self.clock = MemoryLedger(), Ahead(0.1), ManualClock()
        self.further = Further(self.ledger, self.ahead, NoTools(), self.project)
        self.down = False

    async def project(self, asked: Projection) -> Projected:
        if self.down:
            raise LedgerDown("it is away")
        await self.ledger.commit(asked.decision((await self.view()).protocol))
        return Projected(decided=asked.decided)

    async def begin(self) -> Projection:
        await self.ledger.commit(accept("j1", status=JobStatus.QUEUED, created_at=self.clock.now()))
        self.before = await self.view()
        self.started = decide_all(
            self.before, [Start()], self.clock.now(), env_of(RUN, self.before.job, DEFAULTS, NoTools())
        )
        await self.ledger.commit(self.started)
        self.ahead.open("j1", RUN)
        return replace(projection(self.started, self.started.outbox, ()), defaults=DEFAULTS)

    @property
    def started_view(self) -> JobView:
        return JobView(self.started.job, self.started.protocol, {one.step_id: one for one in self.started.steps})

    async def view(self) -> JobView:
        view = await self.ledger.load("j1", ["ocr", "embedding"])
        assert view is not None
        return view

    async def says(self, step_id: str, *letters: str) -> list[Happened]:
        """That it has succeeded, once for each letter."""
        lease_id = (await self.view()).steps[step_id].attempt.lease_id
        said = [
            pack(Succeeded(step_id=step_id, attempt_no=1, lease_id=lease_id, result={"n": 1}), one) for one in letters
        ]
        self.ahead.told("j1", said)
        return said


def answering(task: Task, step_ids: Sequence[str]) -> None:
    """As soon as their attempts are known, services answer."""
    project = task.further._project

    async def answered(asked: Projection) -> Projected:
        found = await project(asked)
        for step_id in step_ids:
            if any(row.step_id == step_id for row in asked.outbox):
                await task.says(step_id, f"of {step_id}")
        return found

    task.further._project = answered


@in_virtual_time
async def test_as_long_as_services_answer_at_once_it_goes_on() -> None:
    task = Task()
    first = await task.begin()
    answering(task, ["embedding"])
    ocr = await task.says("ocr", "of ocr")
    turns, heard = await task.further.listen(RUN, first)
    assert [[one.letter for one in turn.happened] for turn in turns] == [["of ocr"], ["of embedding"]]
    assert turns[0].happened == ocr
    assert heard == []
    assert (await task.view()).job.status is JobStatus.SUCCEEDED
    assert task.ahead.task("j1") is None, "nobody listens any more"


@in_virtual_time
async def test_the_workflow_decides_the_same() -> None:
    task = Task()
    first = await task.begin()
    answering(task, ["embedding"])
    await task.says("ocr", "of ocr")
    turns, _ = await task.further.listen(RUN, first)
    view = task.started_view
    for turn in turns:
        env = env_of(RUN, view.job, DEFAULTS, NoTools())
        decision = decide_all(view, [unpack(one) for one in turn.happened], turn.at, env)
        assert digest(decision) == turn.decided
        view = JobView(decision.job, view.protocol, {**view.steps, **{one.step_id: one for one in decision.steps}})
    assert view.job == (await task.view()).job


async def left(task: Task, first: Projection, said: Sequence[Happened]) -> None:
    """To the workflow, which finds the job as it was."""
    before = (await task.view()).job
    assert await task.further.listen(RUN, first) == (list[Turn](), list(said))
    assert (await task.view()).job == before
    assert task.ahead.task("j1") is None, "what is said from now on is for the next task"


@in_virtual_time
async def test_nothing_is_decided_if_nothing_is_said() -> None:
    task = Task()
    await left(task, await task.begin(), [])


@in_virtual_time
async def test_an_attempt_that_the_task_did_not_hand_out_is_for_the_workflow() -> None:
    """It may have read what is said of it."""
    task = Task()
    first = await task.begin()
    of_another: Input = Ack(step_id="ocr", attempt_no=1, lease_id="another")
    said = [*await task.says("ocr", "of ocr"), pack(of_another, "of another")]
    task.ahead.told("j1", said[1:])
    await left(task, first, said)


@in_virtual_time
async def test_so_is_what_is_in_no_letter_or_about_no_attempt() -> None:
    for said in (pack(HandedOver("ocr", 1, "lease"), ""), pack(DeadlinePassed(), "letter")):
        task = Task()
        first = await task.begin()
        task.ahead.told("j1", [said])
        await left(task, first, [said])


@in_virtual_time
async def test_so_is_more_than_one_decision_takes() -> None:
    task = Task()
    first = await task.begin()
    await left(task, first, await task.says("ocr", *(f"letter {n}" for n in range(MOST_AT_ONCE + 1))))


@in_virtual_time
async def test_so_is_whatever_is_said_of_a_job_of_which_the_workflow_knows_but_a_part() -> None:
    task = Task()
    first = await task.begin()
    await left(task, replace(first, defaults=None), await task.says("ocr", "of ocr"))


@in_virtual_time
async def test_so_is_what_the_ledger_did_not_take() -> None:
    task = Task()
    first = await task.begin()
    task.down = True
    await left(task, first, await task.says("ocr", "of ocr"))


@in_virtual_time
async def test_and_what_is_said_of_a_job_that_somebody_has_moved() -> None:
    task = Task()
    first = await task.begin()
    moved = replace(first.job, version=first.job.version - 1)
    await left(task, replace(first, job=moved), await task.says("ocr", "of ocr"))


@in_virtual_time
async def test_what_is_told_a_second_time_meanwhile_is_not_heard_again() -> None:
    task = Task()
    first = await task.begin()
    project = task.further._project

    async def twice(asked: Projection) -> Projected:
        task.ahead.told("j1", said)
        return await project(asked)

    task.further._project = twice
    said = await task.says("ocr", "of ocr")
    turns, heard = await task.further.listen(RUN, first)
    assert ([turn.happened for turn in turns], heard) == ([said], [])


@in_virtual_time
async def test_time_is_the_jobs_own() -> None:
    """Whatever the clock says that is on our wall."""
    task = Task()
    first = await task.begin()
    task.clock.advance(3_600)
    await task.says("ocr", "of ocr")
    turns, _ = await task.further.listen(RUN, first)
    assert [turn.at for turn in turns] == [first.job.updated_at]


@in_virtual_time
async def test_nobody_listens_while_there_is_more_to_do() -> None:
    """A decision that was too much for one commit is due at once."""
    task = Task()
    first = await task.begin()
    due = replace(first.job, due_at=first.job.updated_at)
    await task.says("ocr", "of ocr")
    assert await task.further.listen(RUN, replace(first, job=due)) == ([], [])
    assert task.ahead.task("j1") is None


@in_virtual_time
async def test_what_the_next_task_hears_of_a_signal_is_not_told_to_it_again() -> None:
    """Somebody else's heartbeat ends the listening; the answer comes before the task has ended."""
    task, mail = Task(), Mail()
    first = await task.begin()
    beat = pack(Heartbeat(step_id="other", attempt_no=1, lease_id="of another branch"), "j1/beat")
    task.ahead.told("j1", [beat])
    assert await task.further.listen(RUN, first) == ([], [beat])
    mail.hear_ahead([beat])
    said = await task.says("ocr", "j1/result")
    mail.hear([beat])
    mail.hear(said)
    letters = tuple(waiting.letter for waiting in mail.take())
    assert letters == ("j1/beat", "j1/result")
    decision = decide_all(
        task.started_view, [unpack(said[0])], task.clock.now(), env_of(RUN, task.started.job, DEFAULTS, NoTools())
    )
    second = replace(projection(decision, decision.outbox, letters), defaults=DEFAULTS)
    task.ahead.open("j1", RUN, letters)
    await task.project(second)
    assert await task.further.listen(RUN, second) == ([], [])
    mail.is_recorded(letters)
    assert not mail.is_ahead
