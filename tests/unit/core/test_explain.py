"""Why a job waits, as a person reads it: which step, which service, until when."""

import pytest
from msgspec.structs import replace

from lucius.core.explain import clock_time, explain
from lucius.core.model import Blocked, BlockedReason, FailureClass
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


def test_a_job_that_the_engine_will_go_on_with_waits_for_nobody() -> None:
    story = Story().dispatched()
    job = replace(story.job, active=(), blocked=Blocked(BlockedReason.ENGINE, story.now))
    view = replace(story.view, job=job)
    assert explain(view, BlockedReason.ENGINE, story.env).endswith("the engine goes on with it at once")


def test_a_row_waits_for_its_service() -> None:
    story = Story().dispatched()
    assert sentence(story) == (
        "step ocr (attempt 1 of 3) waits in the outbox for service ocr-svc to take it, however long it takes"
    )


def test_a_row_waits_no_longer_than_its_job_may() -> None:
    story = Story(three_steps(job_timeout_ms=10 * MINUTE)).dispatched()
    assert f"until {clock_time(story.now + 10 * MINUTE)} at the latest" in sentence(story)


def test_a_row_waits_because_its_service_has_enough() -> None:
    story = Story().dispatched()
    said = sentence(story, BlockedReason.DISPATCH_WINDOW)
    assert "step ocr" in said
    assert "service ocr-svc" in said
    assert "when one of them is picked up" in said


def test_an_ack_is_waited_for() -> None:
    story = Story().initiated()
    assert sentence(story) == (
        "step ocr (attempt 1 of 3) was handed to service ocr-svc, which has until "
        f"{clock_time(story.now + 30 * SECOND)} to acknowledge it"
    )


def test_a_result_is_waited_for() -> None:
    story = Story().processing()
    until = clock_time(story.now + 15 * MINUTE)
    assert sentence(story) == f"service ocr-svc works on step ocr (attempt 1 of 3); its lease runs until {until}"
    story.heartbeat(progress=0.25)
    assert "(attempt 1 of 3, 25% done)" in sentence(story)


def test_a_result_is_waited_for_until_the_steps_time_limit_if_that_comes_first() -> None:
    story = Story(three_steps(first={"timeout_ms": MINUTE})).processing()
    assert sentence(story).endswith(f"its time limit ends at {clock_time(story.now + MINUTE)}")


def test_a_retry_is_waited_for() -> None:
    story = Story().processing()
    story.fail(code="OUT_OF_PAPER")
    assert sentence(story) == (
        "step ocr waits for its retry: attempt 1 of 3 at service ocr-svc ended with RETRYABLE (OUT_OF_PAPER), "
        f"the next one starts at {clock_time(story.now + 5 * SECOND)}"
    )


def test_a_cancel_waits_for_what_is_still_out() -> None:
    story = Story().processing()
    story.cancel()
    assert sentence(story).startswith("being cancelled once this ends: service ocr-svc works on step ocr")


def test_the_clock_is_told_in_utc() -> None:
    assert clock_time(1_700_000_000_000) == "22:13:20 UTC"


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_sentence_of_every_waiting_job_names_step_service_and_until(name: str) -> None:
    story = SITUATIONS[name]()
    if story.books.job is None or story.job.blocked is None:
        return
    said = sentence(story)
    if story.job.active:
        assert story.step.step_id in said
        assert story.step.service in said
    if story.job.blocked.until is not None:
        assert clock_time(story.job.blocked.until) in said


@pytest.mark.parametrize("name", [*SITUATIONS, *KIND_SITUATIONS])
def test_no_reason_in_any_state_is_too_much_for_it(name: str) -> None:
    story = {**SITUATIONS, **KIND_SITUATIONS}[name]()
    assert all(explain(story.view, reason, story.env) for reason in BlockedReason)


class TestOtherKinds:
    def test_an_approval_names_who_may_give_it_and_until_when(self) -> None:
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

    def test_a_paused_job_says_who_paused_it_and_why(self) -> None:
        story = Story().processing()
        story.pause("ada")
        assert sentence(story) == f"paused by ada since {clock_time(story.now)}: because"

    def test_a_held_job_names_the_item_and_the_step(self) -> None:
        story = Story(protocol(risky("pay"), task("z"))).dispatched().botch("pay")
        said = sentence(story)
        assert story.own_review.review_id in said
        assert "pay" in said

    def test_a_compensation_says_how_much_is_left(self) -> None:
        story = Story(protocol(undone_by("a"), undone_by("b"), risky("pay"), compensation="auto")).dispatched()
        story.do("a", "b").botch("pay")
        assert sentence(story).startswith("undoing what was done, 2 to go: step undo-b")

    def test_a_retry_says_after_which_failure_and_when(self) -> None:
        story = Story().processing()
        story.fail(failure_class=FailureClass.RATE_LIMITED, retry_after_ms=MINUTE)
        assert "attempt 1 of 3" in sentence(story)
        assert "RATE_LIMITED" in sentence(story)
        assert clock_time(story.now + MINUTE) in sentence(story)

    def test_the_date_is_told_where_it_is_another_day(self) -> None:
        story = Story(protocol(pause_for("w", 48 * 60 * MINUTE))).dispatched()
        assert "2023-11-16" in sentence(story)
