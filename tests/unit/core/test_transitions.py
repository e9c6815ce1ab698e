"""Each row of every transition table: the documents' as DESIGN §3 translates them, and each arrow of the code."""

from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.draft import Draft, IllegalTransition
from lucius.core.model import TERMINAL_JOB, TERMINAL_STEP, JobStatus, OutboxStatus, Step, StepStatus
from lucius.core.transitions import (
    JOB_ARROWS,
    JOB_TRANSITIONS,
    NOT_STARTED,
    OUTBOX_TRANSITIONS,
    STEP_ARROWS,
    STEP_TRANSITIONS,
    Transition,
)
from tests.unit.core.builders import Story
from tests.unit.core.kind_cases import KIND_CASES
from tests.unit.core.shapes import approval, protocol, task
from tests.unit.core.transition_cases import CASES as TASK_CASES
from tests.unit.core.transition_cases import Arrow, Case

J, S, O = JobStatus, StepStatus, OutboxStatus  # noqa: E741
OUTBOX_ARROWS = {(t.before, t.after) for t in OUTBOX_TRANSITIONS}
CASES = [*TASK_CASES, *KIND_CASES]


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
        old = self.steps.get(step.step_id)
        arrows.step.add((old.status if old else S.PENDING, step.status))
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
    assert taken.job == set(case.job) or (case in KIND_CASES and taken.job > set(case.job))
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


def test_a_terminal_state_is_left_for_a_new_run_only() -> None:
    left = [(t.before, t.after, t.why) for t in JOB_TRANSITIONS if t.before in TERMINAL_JOB]
    assert {(before, after) for before, after, _ in left} == {(J.FAILED_FINAL, J.QUEUED), (J.CANCELLED, J.QUEUED)}
    assert all("new run" in why for _, _, why in left)
    assert all("new run" in t.why for t in STEP_TRANSITIONS if t.before in TERMINAL_STEP)
    assert {before for before, _ in OUTBOX_ARROWS} == {None, O.PENDING}


@pytest.mark.parametrize("status", sorted(TERMINAL_STEP), ids=str)
def test_a_step_that_has_ended_is_not_changed_within_its_visit(status: StepStatus) -> None:
    story = Story().dispatched()
    step = replace(story.step, status=status)
    for after in S:
        if after is not status:
            with pytest.raises(IllegalTransition):
                draft_of(story).change_step(step, status=after)


@pytest.mark.parametrize("status", sorted(TERMINAL_STEP), ids=str)
def test_a_step_that_has_ended_begins_again_with_a_later_visit_or_run_only(status: StepStatus) -> None:
    story = Story().dispatched()
    story.books.steps["ocr"] = ended = replace(story.step, status=status)
    story.books.job = replace(story.job, active=())
    again = replace(ended, status=S.DISPATCHING)
    with pytest.raises(IllegalTransition):
        draft_of(story).start_step(again)
    for later in (replace(again, visit=2), replace(again, run_no=2)):
        draft_of(story).start_step(later)


def test_every_state_can_be_reached_and_every_live_one_left() -> None:
    assert {after for _, after in JOB_ARROWS} == set(J)
    assert {after for _, after in STEP_ARROWS} | {S.PENDING} == set(S)
    assert {before for before, _ in JOB_ARROWS} - {None} >= set(J) - TERMINAL_JOB
    assert {before for before, _ in STEP_ARROWS} >= set(S) - TERMINAL_STEP


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


# orchestration-engine.md §3.1, in its words

WORDS = {
    J.QUEUED: "running",
    J.DISPATCHING: "running",
    J.IN_PROGRESS: "running",
    J.WAITING_APPROVAL: "waiting_approval",
    J.PAUSED: "paused",
    J.CANCELLING: "canceled",  # nothing else can come of it
    J.CANCELLED: "canceled",
    J.SUCCEEDED: "succeeded",
    J.FAILED_FINAL: "failed",
}
ALLOWED = {
    ("running", "waiting_approval"),
    ("waiting_approval", "running"),
    ("running", "paused"),
    ("paused", "running"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "canceled"),
    ("paused", "canceled"),
    ("waiting_approval", "canceled"),
}
ADDED = {("waiting_approval", "paused")}  # rule 9: from any live state but CANCELLING


def in_its_words(arrows: set[Arrow]) -> set[tuple[str, str]]:
    said = {
        (WORDS[before], WORDS[after]) for before, after in arrows if before is not None and before not in TERMINAL_JOB
    }
    return {(before, after) for before, after in said if before != after}


def test_a_job_moves_as_the_document_allows_and_no_other_way() -> None:
    assert in_its_words(set(JOB_ARROWS)) == ALLOWED | ADDED


def test_each_of_them_is_taken_by_a_story() -> None:
    assert in_its_words({arrow for case in CASES for arrow in case.job}) == ALLOWED | ADDED


def test_canceled_is_final_once_it_is_being_done() -> None:
    assert {after for before, after in JOB_ARROWS if before is J.CANCELLING} == {J.CANCELLED}


@pytest.mark.parametrize("ends", ["succeeded", "failed"])
def test_paused_comes_to_its_end_only_through_resume(ends: str) -> None:
    story = Story(protocol(task("ocr"))).processing()
    story.pause()
    (story.succeed if ends == "succeeded" else story.fail_for_good)()
    assert WORDS[story.status] == "paused"
    story.resume()
    assert WORDS[story.status] == ends


@pytest.mark.parametrize(("vote", "ends"), [("approve", "succeeded"), ("reject", "failed")])
def test_waiting_approval_comes_to_its_end_only_through_running(vote: str, ends: str, taken: Taken) -> None:
    story = Story(protocol(approval("ocr"))).dispatched()
    taken.forget()
    getattr(story, vote)("ocr")
    assert WORDS[story.status] == ends
    assert in_its_words(taken.job) == {("waiting_approval", "running"), ("running", ends)}
