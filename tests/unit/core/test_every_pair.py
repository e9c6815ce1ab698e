"""Any input in any state has a defined outcome.

`every_pair.txt` lists the outcome of every input in every situation. To change behaviour, change that file: edit it,
or regenerate it with `python -m tests.unit.core.test_every_pair` and review the diff.
"""

import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from lucius.core.model.decision import Applied, CallbackReply, Decision, Ignored, Refused
from lucius.core.model.inputs import (
    Ack,
    Adopt,
    Cancel,
    CastVote,
    Compensate,
    DeadlinePassed,
    Discard,
    Failed,
    GiveSignal,
    HandedOver,
    HandOverFailed,
    HandOverReleased,
    HandOverStarted,
    Heartbeat,
    Input,
    Pause,
    Poisoned,
    Repair,
    Resume,
    Retry,
    RetryHandOver,
    Skip,
    Start,
    Succeeded,
    WebhookAttempted,
)
from lucius.core.model.records import ErrorInfo, OutboxRow, Quarantined, ReviewItem
from lucius.core.model.statuses import (
    Disposition,
    FailureClass,
    JobStatus,
    OutboxStatus,
    ReviewKind,
    ReviewStatus,
    StepStatus,
)
from tests.unit.core.builders import JOB_ID, NEVER_LEASED, Story
from tests.unit.core.kind_situations import KIND_SITUATIONS, WITHOUT_A_SERVICE
from tests.unit.core.situations import SITUATIONS as TASK_SITUATIONS
from tests.unit.core.spoken import Lease, failure, success

TABLE = Path(__file__).with_name("every_pair.txt")
REFUSED = ErrorInfo("HANDOVER_FAILED", "refused")
SITUATIONS = {**TASK_SITUATIONS, **KIND_SITUATIONS}


def ack(lease: Lease) -> Ack:
    return Ack(step_id=lease.step_id, attempt_no=lease.attempt_no, lease_id=lease.lease_id)


def heartbeat(lease: Lease) -> Heartbeat:
    return Heartbeat(step_id=lease.step_id, attempt_no=lease.attempt_no, lease_id=lease.lease_id, progress=0.5)


# inputs with a lease
SPOKEN: dict[str, Callable[[Lease], Input]] = {
    "hand-over started": lambda lease: HandOverStarted(*lease),
    "hand-over given back": lambda lease: HandOverReleased(*lease),
    "handed over": lambda lease: HandedOver(*lease),
    "hand-over refused": lambda lease: HandOverFailed(*lease, REFUSED),
    "poison": lambda lease: Poisoned(*lease, REFUSED),
    "ack": ack,
    "heartbeat": heartbeat,
    "success": success,
    "another success": lambda lease: success(lease, {"pages": 99}),
    "retryable failure": failure,
    "failure for good": lambda lease: failure(lease, FailureClass.NON_RETRYABLE),
}


def look(story: Story, *, back: bool = False) -> Input:
    if story.job.due_at is not None:
        story.now = max(story.now, story.job.due_at)
    return DeadlinePassed(story.now if back else 0)


def look_too_late(story: Story) -> Input:
    story.now = max(story.now, story.job.deadline or 0)  # there is no deadline while handlers run
    return DeadlinePassed()


def kept(story: Story) -> Quarantined:
    return Quarantined(JOB_ID, "ocr", 1, "lease-1", story.now, {"pages": 5}, [])


def some_item(story: Story, status: ReviewStatus = ReviewStatus.OPEN) -> ReviewItem:
    """Return a review item that is not the job's own."""
    return ReviewItem(
        review_id="another",
        job_id=JOB_ID,
        tenant_id="acme",
        request_type="OCR",
        kind=ReviewKind.STALE_RESULT,
        status=status,
        signature="s",
        created_at=story.now,
        updated_at=story.now,
        resolved_by=None if status is ReviewStatus.OPEN else "bob",
    )


def notice(story: Story) -> OutboxRow:
    return OutboxRow(
        outbox_id=f"{JOB_ID}/~job/1",
        job_id=JOB_ID,
        tenant_id="acme",
        step_id="~job",
        attempt_no=1,
        lease_id="",
        service="lucius.webhook",
        topic="",
        lane=0,
        status=OutboxStatus.PENDING,
        created_at=story.now,
    )


# inputs about the job
ABOUT_THE_JOB: dict[str, Callable[[Story], Input]] = {
    "submit": lambda story: story.submission(),
    "start": lambda story: Start(),
    "clock, too early": lambda story: DeadlinePassed(),
    "clock, when due": look,
    "clock, when due and just back": lambda story: look(story, back=True),
    "clock, job timeout": look_too_late,
    "cancel": lambda story: Cancel("ada"),
    "pause": lambda story: Pause("ada"),
    "resume": lambda story: Resume("ada"),
    "signal": lambda story: GiveSignal("go", "erp"),
    "another signal": lambda story: GiveSignal("come", "erp"),
    "approve": lambda story: CastVote(step_id="ocr", approves=True, by="ada"),
    "approve again": lambda story: CastVote(step_id="ocr", approves=True, by="bob"),
    "reject": lambda story: CastVote(step_id="ocr", approves=False, by="ada"),
    "a stranger approves": lambda story: CastVote(step_id="ocr", approves=True, by="eve"),
    "retry": lambda story: Retry(by="ada"),
    "retry from the first step": lambda story: Retry(by="ada", from_step=story.protocol.steps[0].step_id),
    "retry from the last step": lambda story: Retry(by="ada", from_step="sis"),
    "skip": lambda story: Skip(by="ada", result={"pages": 1}),
    "compensate": lambda story: Compensate(by="ada"),
    "adopt": lambda story: Adopt(kept=kept(story), by="ada"),
    "discard its review": lambda story: Discard(item=story.job.review or some_item(story), by="ada"),
    "discard another review": lambda story: Discard(item=some_item(story), by="ada"),
    "discard a closed review": lambda story: Discard(item=some_item(story, ReviewStatus.RESOLVED), by="ada"),
    "notice told": lambda story: WebhookAttempted(row=notice(story)),
    "retry hand-over": lambda story: RetryHandOver("ada"),
    "repair": lambda story: Repair(),
    "repair of its row": lambda story: Repair(("ocr",)),
}


def current(story: Story) -> Lease:
    step = story.steps.get("ocr")
    return Lease("ocr", step.attempt.attempt_no, step.attempt.lease_id) if step else Lease("ocr", 1, NEVER_LEASED)


def old(story: Story) -> Lease:
    return Lease("ocr", 1, "lease-1")


def foreign(story: Story) -> Lease:
    return Lease("ocr", current(story).attempt_no, NEVER_LEASED)


def of_no_step(story: Story) -> Lease:
    return Lease("shredding", 1, NEVER_LEASED)


def of_a_step_to_come(story: Story) -> Lease:
    return Lease("sis", 1, NEVER_LEASED)


LEASES: dict[str, Callable[[Story], Lease]] = {
    "old lease": old,
    "foreign lease": foreign,
    "no such step": of_no_step,
    "step to come": of_a_step_to_come,
}
WITHOUT_STEPS = ("QUEUED", "PAUSED/QUEUED", "FAILED_FINAL before it started", "CANCELLED before it started")
WITH_ALL_STEPS = ("SUCCEEDED",)


def outcome(story: Story, happened: Input) -> str:
    story.feed(happened)
    return described(story, story.decision)


def described(story: Story, decision: Decision) -> str:
    match decision.reply:
        case Applied() | CallbackReply(disposition=Disposition.APPLIED):
            step, held = story.status_of("ocr"), story.job.paused is not None and story.job.paused.on_review
            run = f" in run {story.job.run_no}" if story.job.run_no > 1 else ""
            undoing = " (undoing)" if story.job.live and story.job.compensation is not None else ""
            return f"APPLIED, then job {story.status}{' on review' if held else ''}{undoing}{run} and step {step}"
        case CallbackReply(disposition=disposition):
            return f"{disposition}, kept in quarantine" if decision.quarantined else str(disposition)
        case Ignored():
            return "ignored"
        case Refused(code=code):
            return f"refused, {code}"


def pairs_of(situation: str) -> dict[str, str]:
    """Return the outcome of every input, each from a new story."""
    outcomes = {}
    for name, on_job in ABOUT_THE_JOB.items():
        story = SITUATIONS[situation]()
        outcomes[name] = outcome(story, on_job(story))
    for name, said in SPOKEN.items():
        story = SITUATIONS[situation]()
        outcomes[name] = outcome(story, said(current(story)))
    return outcomes


def fenced_pairs(situation: str, whose: str) -> dict[str, str]:
    outcomes = {}
    for name, said in SPOKEN.items():
        story = SITUATIONS[situation]()
        outcomes[name] = outcome(story, said(LEASES[whose](story)))
    return outcomes


def whose_leases(situation: str) -> list[str]:
    if situation in WITHOUT_STEPS:
        return ["no such step", "step to come"]
    spoken_for = [] if situation in WITHOUT_A_SERVICE else ["old lease", "foreign lease"]
    return [*spoken_for, "no such step", *([] if situation in WITH_ALL_STEPS else ["step to come"])]


def read_table() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("# ") or not line:
            continue
        if not line.startswith(" "):
            table[line] = section = {}
        else:
            name, _, found = line.strip().partition(": ")
            section[name] = found.strip()
    return table


EXPECTED = read_table()


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_input_has_the_outcome_in_the_table(situation: str) -> None:
    assert pairs_of(situation) == EXPECTED[situation]


@pytest.mark.parametrize(
    ("situation", "whose"), [(situation, whose) for situation in SITUATIONS for whose in whose_leases(situation)]
)
def test_input_with_a_lease_that_is_not_current_has_the_outcome_in_the_table(situation: str, whose: str) -> None:
    assert fenced_pairs(situation, whose) == EXPECTED[f"any situation, {whose}"]


def test_table_has_no_unknown_situation() -> None:
    assert set(EXPECTED) == {*SITUATIONS, *(f"any situation, {whose}" for whose in LEASES)}


def test_table_covers_each_state_and_each_input() -> None:
    stories = {name: make() for name, make in SITUATIONS.items()}
    assert {story.status for story in stories.values()} == set(JobStatus)
    assert {status for story in stories.values() for status in story.statuses()} == {str(s) for s in StepStatus}
    story = stories["PROCESSING"]
    fed = [on_job(story) for on_job in ABOUT_THE_JOB.values()] + [said(current(story)) for said in SPOKEN.values()]
    assert {type(happened) for happened in fed} == set(typing.get_args(Input))
    assert {Succeeded, Failed} <= {type(happened) for happened in fed}


def write_table() -> None:
    """Rewrite the table. Use only if the new outcomes are intended."""
    lines = ["# situation, then input: outcome. Read by test_every_pair.py."]
    sections = {situation: pairs_of(situation) for situation in SITUATIONS}
    sections |= {f"any situation, {whose}": fenced_pairs("PROCESSING", whose) for whose in LEASES}
    for situation, outcomes in sections.items():
        lines += ["", situation, *(f"    {name + ':':<31} {found}" for name, found in outcomes.items())]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_table()
