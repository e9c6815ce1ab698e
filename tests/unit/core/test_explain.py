"""Readable explanations of why a job waits: for which step and service, until when."""

import pytest
from msgspec.structs import replace

from lucius.core.decide.explain import clock_time, date_time, explain
from lucius.core.model.records import Blocked, ProgressCounts
from lucius.core.model.statuses import BlockedReason, FailureClass
from tests.unit.core.builders import MINUTE, SECOND, Story, three_steps
from tests.unit.core.kind_situations import KIND_SITUATIONS
from tests.unit.core.shapes import approval, pause_for, protocol, risky, task, undone_by, wait_for
from tests.unit.core.situations import SITUATIONS


def sentence(story: Story, reason: BlockedReason | None = None) -> str:
    assert story.job.blocked is not None
    return explain(story.view, reason or story.job.blocked.reason, story.env)


def test_a_queued_job_waits_for_an_engine() -> None:
    story = Story()
    story.submit()
    assert sentence(story) == "accepted; waits for an engine to take it"


def test_job_blocked_on_the_engine_is_described_as_continuing_at_once() -> None:
    story = Story().dispatched()
    job = replace(story.job, active=(), blocked=Blocked(BlockedReason.ENGINE, story.now))
    view = replace(story.view, job=job)
    assert explain(view, BlockedReason.ENGINE, story.env).endswith("ready; the engine continues it")


def test_queued_step_names_its_service_and_since_when_it_waits() -> None:
    story = Story().dispatched()
    since = date_time(story.now)
    story.wait(3 * MINUTE)
    assert sentence(story) == (
        f"step ocr (attempt 1 of 3) is queued until service ocr-svc pulls it (since {since}, no deadline)"
    )


def test_queued_step_of_a_job_with_a_timeout_names_the_deadline() -> None:
    story = Story(three_steps(job_timeout_ms=10 * MINUTE)).dispatched()
    since, deadline = date_time(story.now), date_time(story.now + 10 * MINUTE)
    assert sentence(story).endswith(f"pulls it (since {since}, job deadline {deadline})")


def test_date_time_has_the_date() -> None:
    assert date_time(1_800_000_000_000) == "2027-01-15 08:00:00 UTC"


def test_pending_row_of_a_service_at_its_cap_names_the_cap() -> None:
    story = Story().dispatched()
    said = sentence(story, BlockedReason.DISPATCH_WINDOW)
    assert said.startswith(f"step ocr has waited since {date_time(story.now)} because service ocr-svc has as many")
    assert "when one of them is picked up" in said


def test_missing_ack_is_described_with_service_and_deadline() -> None:
    story = Story().initiated()
    assert sentence(story) == (
        "step ocr (attempt 1 of 3) was handed to service ocr-svc, which has until "
        f"{clock_time(story.now + 30 * SECOND)} to acknowledge it"
    )


def test_missing_result_is_described_with_service_and_lease() -> None:
    story = Story().processing()
    until = clock_time(story.now + 15 * MINUTE)
    assert sentence(story) == f"service ocr-svc works on step ocr (attempt 1 of 3); its lease runs until {until}"
    story.heartbeat(progress=0.25)
    assert "(attempt 1 of 3, 25% done)" in sentence(story)
    story.heartbeat(counts=ProgressCounts(7, 20, "page"))
    assert "(attempt 1 of 3, page 7 of 20)" in sentence(story)
    story.heartbeat(counts=ProgressCounts(7, 0))
    assert "(attempt 1 of 3, 7 done)" in sentence(story)
    story.heartbeat(counts=ProgressCounts(8))
    assert "(attempt 1 of 3, 8 done)" in sentence(story)
    story.heartbeat(counts=ProgressCounts(9, unit="page"))
    assert "(attempt 1 of 3, page 9)" in sentence(story)
    story.heartbeat(counts=ProgressCounts(30, 20, "page"))
    assert "(attempt 1 of 3, page 30)" in sentence(story)


def test_missing_result_is_described_with_the_step_timeout_if_that_comes_first() -> None:
    story = Story(three_steps(first={"timeout_ms": MINUTE})).processing()
    assert sentence(story).endswith(f"its time limit ends at {clock_time(story.now + MINUTE)}")


def test_pending_retry_is_described_with_its_time() -> None:
    story = Story().processing()
    story.fail(code="OUT_OF_PAPER")
    assert sentence(story) == (
        "step ocr waits for its retry: attempt 1 of 3 at service ocr-svc ended with RETRYABLE (OUT_OF_PAPER), "
        f"the next attempt starts at {clock_time(story.now + 5 * SECOND)}"
    )


def test_cancel_names_the_step_that_it_waits_for() -> None:
    story = Story().processing()
    story.cancel()
    assert sentence(story).startswith("being cancelled once this ends: service ocr-svc works on step ocr")


def test_times_are_shown_in_utc() -> None:
    assert clock_time(1_700_000_000_000) == "22:13:20 UTC"


@pytest.mark.parametrize("name", SITUATIONS)
def test_explanation_of_each_waiting_job_names_step_service_and_end(name: str) -> None:
    story = SITUATIONS[name]()
    if story.records.job is None or story.job.blocked is None:
        return
    said = sentence(story)
    if story.job.active:
        assert story.step.step_id in said
        assert story.step.service in said
    if story.job.blocked.until is not None:
        assert clock_time(story.job.blocked.until) in said


@pytest.mark.parametrize("name", [*SITUATIONS, *KIND_SITUATIONS])
def test_every_blocked_reason_is_explained_in_every_state(name: str) -> None:
    story = {**SITUATIONS, **KIND_SITUATIONS}[name]()
    assert all(explain(story.view, reason, story.env) for reason in BlockedReason)


class TestOtherStepKinds:
    def test_approval_names_its_approvers_and_timeout(self) -> None:
        story = Story(protocol(approval("ok", "finance", quorum=2, timeout_ms=MINUTE))).dispatched()
        since, until = clock_time(story.now), clock_time(story.now + MINUTE)
        assert sentence(story) == f"waiting for approval by finance since {since}, 0 of 2 given, times out at {until}"
        story.approve("ok", "ada", groups=("finance",))
        assert "1 of 2 given" in sentence(story)

    def test_a_signal_and_a_timer_are_named(self) -> None:
        story = Story(protocol(wait_for("w", "go"))).dispatched()
        assert sentence(story) == "step w waits for signal go"
        story = Story(protocol(pause_for("w", MINUTE))).dispatched()
        assert sentence(story) == f"step w waits until {clock_time(story.now + MINUTE)}"

    def test_paused_job_names_the_operator_and_the_reason(self) -> None:
        story = Story().processing()
        story.pause("ada")
        assert sentence(story) == f"paused by ada since {clock_time(story.now)}: because"

    def test_a_held_job_names_the_item_and_the_step(self) -> None:
        story = Story(protocol(risky("pay"), task("z"))).dispatched().botch("pay")
        said = sentence(story)
        assert story.own_review.review_id in said
        assert "pay" in said

    def test_compensation_names_the_number_of_steps_left(self) -> None:
        story = Story(protocol(undone_by("a"), undone_by("b"), risky("pay"), compensation="auto")).dispatched()
        story.do("a", "b").botch("pay")
        assert sentence(story).startswith("undoing what was done, 2 to go: step undo-b")

    def test_retry_names_the_failure_class_and_its_time(self) -> None:
        story = Story().processing()
        story.fail(failure_class=FailureClass.RATE_LIMITED, retry_after_ms=MINUTE)
        assert "attempt 1 of 3" in sentence(story)
        assert "RATE_LIMITED" in sentence(story)
        assert clock_time(story.now + MINUTE) in sentence(story)

    def test_date_is_shown_if_it_is_another_day(self) -> None:
        story = Story(protocol(pause_for("w", 48 * 60 * MINUTE))).dispatched()
        assert "2023-11-16" in sentence(story)
