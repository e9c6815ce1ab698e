"""Each row of every transition table, and each transition in the code."""

from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset, IllegalTransition
from lucius.core.decide.transitions import (
    JOB_ARROWS,
    JOB_TRANSITIONS,
    NOT_STARTED,
    OUTBOX_TRANSITIONS,
    STEP_ARROWS,
    STEP_TRANSITIONS,
    Transition,
)
from lucius.core.model.records import Step
from lucius.core.model.statuses import TERMINAL_JOB, TERMINAL_STEP, JobStatus, OutboxStatus, StepStatus
from tests.unit.core.builders import Story
from tests.unit.core.kind_cases import KIND_CASES
from tests.unit.core.shapes import approval, protocol, task
from tests.unit.core.transition_cases import CASES as TASK_CASES
from tests.unit.core.transition_cases import Arrow, Case

J, S, O = JobStatus, StepStatus, OutboxStatus  # noqa: E741
OUTBOX_ARROWS = {(t.before, t.after) for t in OUTBOX_TRANSITIONS}
CASES = [*TASK_CASES, *KIND_CASES]


class Taken:
    """Records the transitions taken, also those passed through within one decision."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.job: set[Arrow] = set()
        self.step: set[Arrow] = set()
        self.row: set[Arrow] = set()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    arrows = Taken()
    create, change_job = Changeset.create, Changeset.change_job
    start_step, change_step = Changeset.start_step, Changeset.change_step

    def seen_create(self: Changeset, job: Any, protocol: Any) -> None:
        arrows.job.add((None, job.status))
        create(self, job, protocol)

    def seen_change_job(self: Changeset, **fields: Any) -> None:
        if "status" in fields:
            arrows.job.add((self.job.status, fields["status"]))
        change_job(self, **fields)

    def seen_start_step(self: Changeset, step: Step) -> None:
        old = self.steps.get(step.step_id)
        arrows.step.add((old.status if old else S.PENDING, step.status))
        start_step(self, step)

    def seen_change_step(self: Changeset, step: Step, **fields: Any) -> Step:
        changed = change_step(self, step, **fields)
        if changed.status is not step.status or changed.attempt.attempt_no != step.attempt.attempt_no:
            arrows.step.add((step.status, changed.status))
        return changed

    monkeypatch.setattr(Changeset, "create", seen_create)
    monkeypatch.setattr(Changeset, "change_job", seen_change_job)
    monkeypatch.setattr(Changeset, "start_step", seen_start_step)
    monkeypatch.setattr(Changeset, "change_step", seen_change_step)
    return arrows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_takes_the_documented_transitions(case: Case, taken: Taken) -> None:
    story = case.given()
    taken.forget()
    rows_before = {outbox_id: row.status for outbox_id, row in story.records.rows.items()}
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


def test_each_transition_in_the_code_is_covered_by_a_case() -> None:
    assert {arrow for case in CASES for arrow in case.job} == JOB_ARROWS
    assert {arrow for case in CASES for arrow in case.step} == STEP_ARROWS
    assert {arrow for case in CASES for arrow in case.row} == OUTBOX_ARROWS


@pytest.mark.parametrize(
    "table", [JOB_TRANSITIONS, STEP_TRANSITIONS, OUTBOX_TRANSITIONS], ids=["job", "step", "outbox"]
)
def test_each_transition_is_listed_once_and_has_a_reason(table: tuple[Transition, ...]) -> None:
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
    story.records.steps["ocr"] = ended = replace(story.step, status=status)
    story.records.job = replace(story.job, active=())
    again = replace(ended, status=S.DISPATCHING)
    with pytest.raises(IllegalTransition):
        draft_of(story).start_step(again)
    for later in (replace(again, visit=2), replace(again, run_no=2)):
        draft_of(story).start_step(later)


def test_each_state_is_reachable_and_each_live_state_can_be_left() -> None:
    assert {after for _, after in JOB_ARROWS} == set(J)
    assert {after for _, after in STEP_ARROWS} | {S.PENDING} == set(S)
    assert {before for before, _ in JOB_ARROWS} - {None} >= set(J) - TERMINAL_JOB
    assert {before for before, _ in STEP_ARROWS} >= set(S) - TERMINAL_STEP


def test_cancelling_can_be_entered_from_any_other_live_state() -> None:
    assert {before for before, after in JOB_ARROWS if after is J.CANCELLING} == set(J) - TERMINAL_JOB - {J.CANCELLING}


def draft_of(story: Story) -> Changeset:
    return Changeset(story.view, story.now, story.env)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b, a) for b in J for a in J if (b, a) not in JOB_ARROWS],
    ids=lambda status: str(status),
)
def test_a_job_refuses_every_other_transition(before: JobStatus, after: JobStatus) -> None:
    story = Story().dispatched()
    story.records.job = replace(story.job, status=before)
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


def test_step_that_never_started_ends_with_its_job() -> None:
    assert set(NOT_STARTED) == TERMINAL_JOB
    assert set(NOT_STARTED.values()) <= TERMINAL_STEP


# the life of a job in coarser states

WORDS = {
    J.QUEUED: "running",
    J.DISPATCHING: "running",
    J.IN_PROGRESS: "running",
    J.WAITING_APPROVAL: "waiting_approval",
    J.PAUSED: "paused",
    J.CANCELLING: "canceled",  # no other end is possible
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
    ("waiting_approval", "paused"),
}


def in_coarse_states(arrows: set[Arrow]) -> set[tuple[str, str]]:
    said = {
        (WORDS[before], WORDS[after]) for before, after in arrows if before is not None and before not in TERMINAL_JOB
    }
    return {(before, after) for before, after in said if before != after}


def test_job_transitions_in_coarse_states_are_the_allowed_ones() -> None:
    assert in_coarse_states(set(JOB_ARROWS)) == ALLOWED


def test_each_allowed_coarse_transition_is_covered_by_a_case() -> None:
    assert in_coarse_states({arrow for case in CASES for arrow in case.job}) == ALLOWED


def test_cancelling_job_can_only_become_cancelled() -> None:
    assert {after for before, after in JOB_ARROWS if before is J.CANCELLING} == {J.CANCELLED}


@pytest.mark.parametrize("ends", ["succeeded", "failed"])
def test_paused_job_ends_only_after_resume(ends: str) -> None:
    story = Story(protocol(task("ocr"))).processing()
    story.pause()
    (story.succeed if ends == "succeeded" else story.fail_for_good)()
    assert WORDS[story.status] == "paused"
    story.resume()
    assert WORDS[story.status] == ends


@pytest.mark.parametrize(("vote", "ends"), [("approve", "succeeded"), ("reject", "failed")])
def test_job_waiting_for_approval_ends_only_through_running(vote: str, ends: str, taken: Taken) -> None:
    story = Story(protocol(approval("ocr"))).dispatched()
    taken.forget()
    getattr(story, vote)("ocr")
    assert WORDS[story.status] == ends
    assert in_coarse_states(taken.job) == {("waiting_approval", "running"), ("running", ends)}
