"""Each row of every transition table: the documents' as DESIGN §3 translates them, and each arrow of the code."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from lucius.core.draft import Draft, IllegalTransition
from lucius.core.model import TERMINAL_JOB, TERMINAL_STEP, FailureClass, JobStatus, OutboxStatus, Step, StepStatus
from lucius.core.protocol import RetryPolicy
from lucius.core.transitions import (
    JOB_ARROWS,
    JOB_TRANSITIONS,
    NOT_STARTED,
    OUTBOX_ARROWS,
    OUTBOX_TRANSITIONS,
    STEP_ARROWS,
    STEP_TRANSITIONS,
    Transition,
)
from tests.unit.core.builders import MINUTE, Story, three_steps

J, S, O = JobStatus, StepStatus, OutboxStatus  # noqa: E741
Arrow = tuple[Any, Any]


class Case(NamedTuple):
    """Told up to `given`, `when` takes these arrows; `then` is how job and first step stand after it."""

    name: str
    given: Callable[[], Story]
    when: Callable[[Story], object]
    job: tuple[Arrow, ...] = ()
    step: tuple[Arrow, ...] = ()
    row: tuple[Arrow, ...] = ()
    then: tuple[JobStatus, StepStatus] | None = None


def one_attempt() -> Story:
    return Story(three_steps(retry=RetryPolicy(max_attempts=1)))


def short_job() -> Story:
    return Story(three_steps(job_timeout_ms=10 * MINUTE))


def queued(story: Story) -> Story:
    story.submit()
    return story


def waiting_for_retry() -> Story:
    story = Story().initiated()
    story.tick_when_due()
    return story


def hand_over_refused(story: Story) -> Story:
    story.refuse_hand_over()
    return story


def cancelling(story: Story) -> Story:
    story.cancel()
    return story


def before_last_success() -> Story:
    story = Story().dispatched().finish_step().finish_step()
    story.hand_over()
    story.ack()
    return story


def past_the_job_timeout(story: Story) -> None:
    story.wait(10 * MINUTE).tick()


# ledger-state-model.md and flow-canvas.md, row by row
DOCUMENTED = [
    Case(
        "job QUEUED to DISPATCHING: first step's outbox row created",
        lambda: queued(Story()),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING),),
        step=((S.PENDING, S.DISPATCHING),),
        row=((None, O.PENDING),),
        then=(J.DISPATCHING, S.DISPATCHING),
    ),
    Case(
        "job DISPATCHING to IN_PROGRESS: first directive handed over (outbox SENT, step INITIATED)",
        lambda: Story().dispatched(),
        Story.hand_over,
        job=((J.DISPATCHING, J.IN_PROGRESS),),
        step=((S.DISPATCHING, S.INITIATED),),
        row=((O.PENDING, O.SENT),),
        then=(J.IN_PROGRESS, S.INITIATED),
    ),
    Case(
        "job DISPATCHING to IN_PROGRESS: ACK of the first step, before its hand-over was reported",
        lambda: Story().dispatched(),
        Story.ack,
        job=((J.DISPATCHING, J.IN_PROGRESS),),
        step=((S.DISPATCHING, S.INITIATED), (S.INITIATED, S.PROCESSING)),
        row=((O.PENDING, O.SENT),),
        then=(J.IN_PROGRESS, S.PROCESSING),
    ),
    Case(
        "job stays IN_PROGRESS: step N succeeded, step N+1 activated",
        lambda: Story().processing(),
        Story.succeed,
        step=((S.PROCESSING, S.SUCCEEDED), (S.PENDING, S.DISPATCHING)),
        row=((None, O.PENDING),),
        then=(J.IN_PROGRESS, S.SUCCEEDED),
    ),
    Case(
        "job IN_PROGRESS to SUCCEEDED: final step succeeded",
        before_last_success,
        Story.succeed,
        job=((J.IN_PROGRESS, J.SUCCEEDED),),
        step=((S.PROCESSING, S.SUCCEEDED),),
        then=(J.SUCCEEDED, S.SUCCEEDED),
    ),
    Case(
        "job IN_PROGRESS to FAILED_FINAL: a step failed for good",
        lambda: Story().processing(),
        Story.fail_for_good,
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.PROCESSING, S.FAILED_FINAL), (S.PENDING, S.SKIPPED)),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "job QUEUED to CANCELLING: cancel asked",
        lambda: queued(Story()),
        Story.cancel,
        job=((J.QUEUED, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.PENDING, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "job DISPATCHING to CANCELLING: cancel asked",
        lambda: Story().dispatched(),
        Story.cancel,
        job=((J.DISPATCHING, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.DISPATCHING, S.CANCELLED),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "job IN_PROGRESS to CANCELLING: cancel asked",
        lambda: Story().processing(),
        Story.cancel,
        job=((J.IN_PROGRESS, J.CANCELLING),),
        then=(J.CANCELLING, S.PROCESSING),
    ),
    Case(
        "job CANCELLING to CANCELLED: active step terminal",
        lambda: cancelling(Story().processing()),
        Story.succeed,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.PROCESSING, S.SUCCEEDED),),
        then=(J.CANCELLED, S.SUCCEEDED),
    ),
    Case(
        "step PENDING to DISPATCHING: outbox row created",
        lambda: queued(Story()),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING),),
        step=((S.PENDING, S.DISPATCHING),),
        row=((None, O.PENDING),),
    ),
    Case(
        "step DISPATCHING to INITIATED: outbox SENT",
        lambda: Story().claimed(),
        Story.hand_over,
        job=((J.DISPATCHING, J.IN_PROGRESS),),
        step=((S.DISPATCHING, S.INITIATED),),
        row=((O.PENDING, O.SENT),),
        then=(J.IN_PROGRESS, S.INITIATED),
    ),
    Case(
        "step INITIATED to PROCESSING: ACK callback",
        lambda: Story().initiated(),
        Story.ack,
        step=((S.INITIATED, S.PROCESSING),),
        then=(J.IN_PROGRESS, S.PROCESSING),
    ),
    Case(
        "step PROCESSING to FAILED_RETRY: RESULT retryable",
        lambda: Story().processing(),
        Story.fail,
        step=((S.PROCESSING, S.FAILED_RETRY),),
        then=(J.IN_PROGRESS, S.FAILED_RETRY),
    ),
    Case(
        "step PROCESSING to FAILED_RETRY: lease expired",
        lambda: Story().processing(),
        Story.tick_when_due,
        step=((S.PROCESSING, S.FAILED_RETRY),),
        then=(J.IN_PROGRESS, S.FAILED_RETRY),
    ),
    Case(
        "step INITIATED to FAILED_RETRY: ACK timeout",
        lambda: Story().initiated(),
        Story.tick_when_due,
        step=((S.INITIATED, S.FAILED_RETRY),),
        then=(J.IN_PROGRESS, S.FAILED_RETRY),
    ),
    Case(
        "step FAILED_RETRY to DISPATCHING: retry dispatch",
        waiting_for_retry,
        Story.tick_when_due,
        step=((S.FAILED_RETRY, S.DISPATCHING),),
        row=((None, O.PENDING),),
        then=(J.IN_PROGRESS, S.DISPATCHING),
    ),
    Case(
        "any non-terminal step to CANCELLED: cancel while FAILED_RETRY",
        waiting_for_retry,
        Story.cancel,
        job=((J.IN_PROGRESS, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.FAILED_RETRY, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "any non-terminal step to CANCELLED: cancelled INITIATED step gets no ACK",
        lambda: cancelling(Story().initiated()),
        Story.tick_when_due,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.INITIATED, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "any non-terminal step to CANCELLED: cancelled PROCESSING step fails retryably",
        lambda: cancelling(Story().processing()),
        Story.fail,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.PROCESSING, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "outbox PENDING to FAILED_FINAL: publish failed, no attempt left (step and job too)",
        lambda: one_attempt().dispatched(),
        Story.refuse_hand_over,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.DISPATCHING, S.FAILED_FINAL), (S.PENDING, S.SKIPPED)),
        row=((O.PENDING, O.FAILED_FINAL),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "outbox stays PENDING: publish failed, attempts left",
        lambda: Story().dispatched(),
        Story.refuse_hand_over,
        step=((S.DISPATCHING, S.FAILED_RETRY),),
        then=(J.DISPATCHING, S.FAILED_RETRY),
    ),
]

# what DESIGN §3 adds
DESIGNED = [
    Case("a command is accepted", Story, Story.submit, job=((None, J.QUEUED),)),
    Case(
        "a queued job's time is up",
        lambda: queued(short_job()),
        past_the_job_timeout,
        job=((J.QUEUED, J.FAILED_FINAL),),
        step=((S.PENDING, S.SKIPPED),),
        then=(J.FAILED_FINAL, S.SKIPPED),
    ),
    Case(
        "a job's time is up while it waits for hand-over",
        lambda: short_job().dispatched(),
        past_the_job_timeout,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.DISPATCHING, S.FAILED_FINAL),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "a job's time is up while a publish is under way: it may have left us",
        lambda: short_job().claimed(),
        past_the_job_timeout,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.DISPATCHING, S.FAILED_FINAL),),
        row=((O.PENDING, O.SENT),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "no ACK and no attempt left",
        lambda: one_attempt().initiated(),
        Story.tick_when_due,
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.INITIATED, S.FAILED_FINAL),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "a job's time is up while a step waits for its retry",
        lambda: hand_over_refused(short_job().dispatched()),
        past_the_job_timeout,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.FAILED_RETRY, S.FAILED_FINAL),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "a timed-out attempt succeeds before its retry",
        waiting_for_retry,
        Story.succeed,
        step=((S.FAILED_RETRY, S.SUCCEEDED), (S.PENDING, S.DISPATCHING)),
        then=(J.IN_PROGRESS, S.SUCCEEDED),
    ),
    Case(
        "a lost outbox row is recorded anew",
        lambda: Story().dispatched(),
        lambda story: story.repair("ocr"),
        step=((S.DISPATCHING, S.DISPATCHING),),
        row=((O.PENDING, O.WITHDRAWN), (None, O.PENDING)),
        then=(J.DISPATCHING, S.DISPATCHING),
    ),
    Case(
        "a failed hand-over while being cancelled",
        lambda: cancelling(Story().claimed()),
        Story.refuse_hand_over,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.DISPATCHING, S.CANCELLED),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "a hand-over given back while being cancelled",
        lambda: cancelling(Story().claimed()),
        Story.release,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.DISPATCHING, S.CANCELLED),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "a step's last attempt fails retryably",
        lambda: one_attempt().processing(),
        lambda story: story.fail(failure_class=FailureClass.TRANSIENT),
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.PROCESSING, S.FAILED_FINAL),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
]
CASES = [*DOCUMENTED, *DESIGNED]


class Taken:
    """The arrows that were taken, also those passed through within one decision."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.job: set[Arrow] = set()
        self.step: set[Arrow] = set()
        self.row: set[Arrow] = set()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    arrows = Taken()
    create, change_job = Draft.create, Draft.change_job
    start_step, change_step = Draft.start_step, Draft.change_step

    def seen_create(self: Draft, job: Any, protocol: Any) -> None:
        arrows.job.add((None, job.status))
        create(self, job, protocol)

    def seen_change_job(self: Draft, **fields: Any) -> None:
        if "status" in fields:
            arrows.job.add((self.job.status, fields["status"]))
        change_job(self, **fields)

    def seen_start_step(self: Draft, step: Step) -> None:
        arrows.step.add((S.PENDING, step.status))
        start_step(self, step)

    def seen_change_step(self: Draft, step: Step, **fields: Any) -> Step:
        changed = change_step(self, step, **fields)
        if changed.status is not step.status or changed.attempt.attempt_no != step.attempt.attempt_no:
            arrows.step.add((step.status, changed.status))
        return changed

    monkeypatch.setattr(Draft, "create", seen_create)
    monkeypatch.setattr(Draft, "change_job", seen_change_job)
    monkeypatch.setattr(Draft, "start_step", seen_start_step)
    monkeypatch.setattr(Draft, "change_step", seen_change_step)
    return arrows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_row_of_the_transition_tables(case: Case, taken: Taken) -> None:
    story = case.given()
    taken.forget()
    rows_before = {outbox_id: row.status for outbox_id, row in story.books.rows.items()}
    pending_before = [s.step_id for s in story.protocol.steps if s.step_id not in story.steps]

    case.when(story)

    for row in story.decision.outbox:
        if row.status is not rows_before.get(row.outbox_id):
            taken.row.add((rows_before.get(row.outbox_id), row.status))
    if not story.job.live:
        taken.step |= {(S.PENDING, story.status_of(step_id)) for step_id in pending_before}
    assert taken.job == set(case.job)
    assert taken.step >= set(case.step)
    assert taken.row >= set(case.row)
    if case.then:
        assert (story.status, story.status_of("ocr")) == case.then


def test_every_arrow_of_the_code_is_taken_by_a_story() -> None:
    assert {arrow for case in CASES for arrow in case.job} == JOB_ARROWS
    assert {arrow for case in CASES for arrow in case.step} == STEP_ARROWS
    assert {arrow for case in CASES for arrow in case.row} == OUTBOX_ARROWS


@pytest.mark.parametrize(
    "table", [JOB_TRANSITIONS, STEP_TRANSITIONS, OUTBOX_TRANSITIONS], ids=["job", "step", "outbox"]
)
def test_each_arrow_is_written_once_and_has_its_reason(table: tuple[Transition, ...]) -> None:
    arrows = [(t.before, t.after) for t in table]
    assert len(arrows) == len(set(arrows))
    assert all(t.why for t in table)


def test_no_arrow_leaves_a_terminal_state() -> None:
    assert not {before for before, _ in JOB_ARROWS} & TERMINAL_JOB
    assert not {before for before, _ in STEP_ARROWS} & TERMINAL_STEP
    assert {before for before, _ in OUTBOX_ARROWS} == {None, O.PENDING}


def test_every_state_can_be_reached_and_every_live_one_left() -> None:
    assert {after for _, after in JOB_ARROWS} == set(J)
    assert {after for _, after in STEP_ARROWS} | {S.PENDING} == set(S)
    assert {before for before, _ in JOB_ARROWS} - {None} == set(J) - TERMINAL_JOB
    assert {before for before, _ in STEP_ARROWS} == set(S) - TERMINAL_STEP


def test_cancelling_can_be_entered_from_any_other_live_state() -> None:
    assert {before for before, after in JOB_ARROWS if after is J.CANCELLING} == set(J) - TERMINAL_JOB - {J.CANCELLING}


def draft_of(story: Story) -> Draft:
    return Draft(story.view, story.now, story.env)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b, a) for b in J for a in J if (b, a) not in JOB_ARROWS],
    ids=lambda status: str(status),
)
def test_a_job_refuses_every_other_transition(before: JobStatus, after: JobStatus) -> None:
    story = Story().dispatched()
    story.books.job = replace(story.job, status=before)
    with pytest.raises(IllegalTransition):
        draft_of(story).change_job(status=after)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b, a) for b in S for a in S if (b, a) not in STEP_ARROWS and b is not a],
    ids=lambda status: str(status),
)
def test_a_step_refuses_every_other_transition(before: StepStatus, after: StepStatus) -> None:
    story = Story().dispatched()
    step = replace(story.step, status=before)
    with pytest.raises(IllegalTransition):
        draft_of(story).change_step(step, status=after)


def test_a_step_starts_once() -> None:
    story = Story().dispatched()
    with pytest.raises(IllegalTransition):
        draft_of(story).start_step(story.step)


def test_a_step_that_never_started_ends_with_its_job() -> None:
    assert set(NOT_STARTED) == TERMINAL_JOB
    assert set(NOT_STARTED.values()) <= TERMINAL_STEP
