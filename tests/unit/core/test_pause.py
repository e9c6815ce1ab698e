"""Pause stops only what comes next."""

from collections.abc import Callable

import pytest

from lucius.core.model.decision import Applied, Ignored
from lucius.core.model.records import NEVER
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, Disposition, FailureClass, JobStatus, StepStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, SECOND, Story, three_steps
from tests.unit.core.shapes import approval, decision, each, parallel, pause_for, protocol, task, wait_for

APPLIED = Disposition.APPLIED


def queued() -> Story:
    story = Story()
    story.submit()
    return story


STATES: dict[str, Callable[[], Story]] = {
    "QUEUED": queued,
    "DISPATCHING": lambda: Story().dispatched(),
    "INITIATED": lambda: Story().initiated(),
    "PROCESSING": lambda: Story().processing(),
    "FAILED_RETRY": lambda: Story().dispatched().botch("ocr", FailureClass.TRANSIENT),
    "WAITING": lambda: Story(protocol(wait_for("ocr", "go"), task("sis"))).dispatched(),
    "WAITING_APPROVAL": lambda: Story(protocol(approval("ocr"), task("sis"))).dispatched(),
}


@pytest.mark.parametrize("state", STATES)
def test_live_job_can_be_paused_and_resumed_to_its_earlier_status(state: str) -> None:
    story = STATES[state]()
    before = story.job
    assert story.pause() == Applied()
    assert story.status is JobStatus.PAUSED
    assert story.job.blocked is not None
    assert story.job.blocked.reason is BlockedReason.PAUSED
    assert story.resume() == Applied()
    if state == "QUEUED":
        assert (story.status, story.job.active) == (JobStatus.DISPATCHING, ("ocr",))
    else:
        assert (story.status, story.job.active, story.job.due_at) == (before.status, before.active, before.due_at)


@pytest.mark.parametrize("state", STATES)
def test_a_paused_job_can_be_cancelled(state: str) -> None:
    story = STATES[state]()
    story.pause()
    story.cancel()
    out = state in ("INITIATED", "PROCESSING")
    assert story.status is (JobStatus.CANCELLING if out else JobStatus.CANCELLED)
    assert story.job.paused is None


def test_repeated_pause_and_resume_are_ignored_and_audited_once() -> None:
    story = Story().processing()
    story.pause("ada")
    assert isinstance(story.pause("bob"), Ignored)
    assert story.job.paused is not None
    assert story.job.paused.by == "ada"
    story.resume("bob")
    assert isinstance(story.resume("bob"), Ignored)
    audited = [(e.type, e.data) for e in story.records.events if e.type in ("JOB_PAUSED", "JOB_RESUMED")]
    assert audited == [
        ("JOB_PAUSED", {"by": "ada", "reason": "because"}),
        ("JOB_RESUMED", {"by": "bob", "reason": "because"}),
    ]


def test_a_job_that_is_being_cancelled_cannot_be_paused() -> None:
    story = Story().processing()
    story.cancel()
    assert code_of(story.pause()) == "JOB_CANCELLING"


def test_a_job_that_has_ended_cannot_be_paused_or_resumed() -> None:
    story = Story().finished()
    assert code_of(story.pause()) == "JOB_TERMINAL"
    assert code_of(story.resume()) == "JOB_TERMINAL"


class TestWorkInProgress:
    def test_result_during_a_pause_is_recorded_and_the_next_step_waits(self) -> None:
        story = Story().processing()
        story.pause()
        assert story.heartbeat() is APPLIED
        assert story.succeed(result={"pages": 1}) is APPLIED
        assert story.statuses() == ["SUCCEEDED", "PENDING", "PENDING"]
        assert (story.status, story.job.due_at) == (JobStatus.PAUSED, NEVER)
        story.resume()
        assert story.job.active == ("embedding",)

    def test_last_result_during_a_pause_ends_the_job_only_after_resume(self) -> None:
        story = Story(protocol(task("a"))).processing()
        story.pause()
        story.succeed()
        assert story.status == "PAUSED"
        story.resume()
        assert story.status == "SUCCEEDED"

    def test_final_failure_during_a_pause_ends_the_job_only_after_resume(self) -> None:
        story = Story().processing()
        story.pause()
        story.fail_for_good()
        assert (story.status, story.statuses()[0]) == (JobStatus.PAUSED, "FAILED_FINAL")
        story.resume()
        assert story.status is JobStatus.FAILED_FINAL

    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_deadlines_still_end_attempts_and_the_retry_waits(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        story.pause()
        story.tick_when_due()
        assert story.statuses()[0] == "FAILED_RETRY"
        assert story.job.due_at == NEVER
        assert isinstance(story.wait(60 * MINUTE).tick(), Ignored)
        story.resume()
        story.settle()
        assert story.statuses()[0] == "DISPATCHING"
        assert story.attempt.attempt_no == 2

    def test_publish_in_flight_may_end_during_a_pause(self) -> None:
        story = Story().claimed()
        story.pause()
        assert story.hand_over() == Applied()
        assert story.statuses()[0] == "INITIATED"

    def test_row_released_during_a_pause_is_held_until_resume(self) -> None:
        story = Story().claimed()
        story.pause()
        story.release()
        assert isinstance(story.claim(), Ignored)
        assert [row.next_attempt_at for row in story.pending_rows()] == [NEVER]
        story.resume()
        assert [row.next_attempt_at for row in story.pending_rows()] == [None]
        assert story.claim() == Applied()

    def test_a_refused_hand_over_waits_for_its_retry_and_for_resume(self) -> None:
        story = Story().claimed()
        story.pause()
        story.refuse_hand_over()
        assert isinstance(story.retry_hand_over(), Ignored)
        assert isinstance(story.wait(60 * MINUTE).tick(), Ignored)
        story.resume()
        story.settle()
        assert story.statuses()[0] == "DISPATCHING"

    def test_failure_of_a_held_step_is_retried_once_after_resume(self) -> None:
        """The directive of the paused step had been sent after all."""
        story = Story().dispatched()
        story.pause()
        story.fail()
        assert story.statuses()[0] == "FAILED_RETRY"
        story.resume()
        assert story.job.due_at == story.steps["ocr"].retry_at
        assert isinstance(story.tick(), Ignored)


class TestWorkNotStarted:
    def test_claim_and_hand_over_during_a_pause_are_ignored(self) -> None:
        story = Story().dispatched()
        story.pause()
        assert isinstance(story.claim(), Ignored)
        assert isinstance(story.hand_over(), Ignored)
        assert [row.next_attempt_at for row in story.pending_rows()] == [NEVER]
        story.resume()
        assert [row.next_attempt_at for row in story.pending_rows()] == [None]
        assert story.hand_over() == Applied()

    def test_paused_queued_job_is_not_started(self) -> None:
        story = queued()
        story.pause()
        assert isinstance(story.start(), Ignored)
        assert isinstance(story.tick(), Ignored)
        assert story.job.active == ()

    def test_timer_that_expires_during_a_pause_fires_after_resume(self) -> None:
        story = Story(protocol(pause_for("w", MINUTE), task("a"))).dispatched()
        story.pause()
        assert isinstance(story.wait(5 * MINUTE).tick(), Ignored)
        story.resume()
        assert story.settle().job.active == ("a",)

    def test_signal_and_approval_timeouts_during_a_pause_apply_after_resume(self) -> None:
        shape = protocol(
            parallel("p", wait_for("w", "go", timeout_ms=MINUTE), approval("ok", timeout_ms=MINUTE), join="collect")
        )
        story = Story(shape).dispatched()
        story.pause()
        assert isinstance(story.wait(5 * MINUTE).tick(), Ignored)
        story.resume()
        story.settle()
        assert story.statuses("w", "ok") == ["FAILED_FINAL", "FAILED_FINAL"]

    def test_decision_is_not_evaluated_during_a_pause(self) -> None:
        story = Story(protocol(task("a"), decision("d", {"True": "SUCCEED"}))).processing()
        story.pause()
        story.succeed()
        assert "d" not in story.steps


class TestVotesAndSignals:
    def test_votes_during_a_pause_count_on_resume(self) -> None:
        story = Story(protocol(approval("ok", quorum=2), task("a"))).dispatched()
        story.pause()
        assert story.approve("ok", "ada") == Applied()
        assert story.approve("ok", "bob") == Applied()
        assert (story.status, story.status_of("ok")) == (JobStatus.PAUSED, "AWAITING_APPROVAL")
        story.resume()
        assert story.job.active == ("a",)

    def test_vote_during_a_pause_counts_before_a_timeout_that_passed(self) -> None:
        story = Story(protocol(approval("ok", timeout_ms=MINUTE), task("a"))).dispatched()
        story.pause()
        story.wait(5 * MINUTE).approve("ok")
        story.resume()
        assert story.settle().job.active == ("a",)

    def test_rejection_during_a_pause_counts_on_resume(self) -> None:
        story = Story(protocol(approval("ok"), task("a"))).dispatched()
        story.pause()
        story.reject("ok")
        story.resume()
        assert story.status is JobStatus.FAILED_FINAL

    @pytest.mark.parametrize(("first", "then"), [("approve", "reject"), ("reject", "approve")])
    def test_vote_after_the_deciding_one_is_refused_during_a_pause(self, first: str, then: str) -> None:
        story = Story(protocol(approval("ok"), task("a"))).dispatched()
        story.pause()
        getattr(story, first)("ok", "ada")
        assert code_of(getattr(story, then)("ok", "bob")) == "APPROVAL_ENDED"

    def test_signal_during_a_pause_reaches_its_step_on_resume(self) -> None:
        story = Story(protocol(wait_for("w", "go", timeout_ms=MINUTE), task("a"))).dispatched()
        story.pause()
        story.signal("go", 1)
        assert story.status_of("w") is StepStatus.WAITING
        story.wait(5 * MINUTE)
        story.resume()
        assert story.settle().job.active == ("a",)
        assert story.steps["w"].result["payload"] == 1


class TestJobTimeout:
    def test_job_timeout_does_not_run_during_a_pause(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).processing().wait(MINUTE)
        deadline = story.job.deadline or 0
        story.pause()
        story.wait(60 * MINUTE)
        story.succeed()
        assert story.status is JobStatus.PAUSED
        story.resume()
        assert story.job.deadline == deadline + 60 * MINUTE
        assert story.job.active == ("embedding",)

    def test_run_that_timed_out_on_resume_leaves_no_pending_work_to_the_next_run(self) -> None:
        story = Story(protocol(approval("ok"), task("a"), timeout_ms=MINUTE)).dispatched().wait(2 * MINUTE)
        story.pause()
        story.resume()
        assert story.settle().status == "FAILED_FINAL"
        story.retry()
        assert story.job.due_at == story.job.deadline
        story.pause()
        story.approve("ok")
        assert isinstance(story.tick(), Ignored)
        assert story.status_of("ok") == "AWAITING_APPROVAL"

    def test_job_timeout_that_passed_before_the_pause_applies_after_resume(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).processing().wait(10 * MINUTE + SECOND)
        story.pause()
        story.wait(MINUTE).resume()
        story.settle()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.attempt.outcome is AttemptOutcome.JOB_TIMEOUT


class TestDowntime:
    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_resume_after_a_long_pause_fences_no_attempt(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        story.pause()
        story.wait(60 * MINUTE)
        story.resume()
        assert story.attempt.outcome is None
        story.tick(resumed_at=story.now)
        assert story.attempt.outcome is None


class TestWideJobs:
    def test_all_rows_of_a_wide_map_are_held_by_pause_and_released_by_resume(self) -> None:
        story = Story(protocol(each("m", "range(40)", task("x"), at_once=32)), payload={}).dispatched().settle()
        assert len(story.job.active) == 32
        story.pause()
        story.settle()
        assert {row.next_attempt_at for row in story.pending_rows()} == {NEVER}
        story.resume()
        story.settle()
        assert {row.next_attempt_at for row in story.pending_rows()} == {None}

    def test_all_votes_and_signals_of_a_wide_map_count_on_resume(self) -> None:
        body = parallel("p", wait_for("w", "go"), approval("ok"))
        story = Story(protocol(each("m", "range(16)", body, at_once=16)), payload={}).dispatched().settle()
        story.pause()
        for item in range(16):
            story.approve(f"ok.{item}")
            story.signal("go", item)
        story.resume()
        story.settle()
        assert story.status is JobStatus.SUCCEEDED

    def test_votes_not_yet_applied_wait_again_after_a_second_pause(self) -> None:
        story = Story(protocol(each("m", "range(16)", approval("ok"), at_once=16)), payload={}).dispatched().settle()
        story.pause()
        for item in range(16):
            story.approve(f"ok.{item}")
        story.resume()
        left = len(story.job.active)
        assert left > 0
        story.pause()
        assert isinstance(story.tick(), Ignored)
        assert len(story.job.active) == left
        story.resume()
        assert story.settle().status is JobStatus.SUCCEEDED
