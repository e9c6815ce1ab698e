"""Rule 8 of DESIGN §3: cancel, in every state."""

import pytest

from lucius.core.decision import Applied, Ignored, Refused
from lucius.core.model import Disposition, FailureClass, JobStatus
from lucius.core.protocol import StepSpec
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import approval, each, pause_for, protocol, task

APPLIED = Disposition.APPLIED


class TestRule8Cancel:
    @pytest.mark.parametrize("state", ["queued", "dispatched", "retry after hand-over", "retry after failure"])
    def test_with_nothing_at_a_service_it_is_cancelled_at_once(self, state: str) -> None:
        story = nothing_at_a_service(state)
        assert story.cancel() == Applied()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["CANCELLED"] * 3
        assert story.pending_rows() == []
        assert not any(story.books.counters.values())

    @pytest.mark.parametrize("state", ["claimed", "initiated", "processing"])
    def test_what_may_be_with_a_service_is_waited_for(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        story.cancel()
        assert story.status is JobStatus.CANCELLING
        story.heartbeat()
        assert story.answer.cancel_requested

    def test_heartbeats_ask_to_stop_only_once_cancel_was_asked(self) -> None:
        story = Story().processing()
        story.heartbeat()
        assert not story.answer.cancel_requested

    def test_a_success_is_recorded_and_no_further_step_starts(self) -> None:
        story = Story().processing()
        story.cancel()
        assert story.succeed(result={"pages": 1}) is APPLIED
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["SUCCEEDED", "CANCELLED", "CANCELLED"]
        assert story.steps["ocr"].result == {"pages": 1}

    @pytest.mark.parametrize("end", ["fail", "tick_when_due"])
    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_a_retryable_end_is_not_retried(self, state: str, end: str) -> None:
        story: Story = getattr(Story(), state)()
        story.cancel()
        getattr(story, end)()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["CANCELLED"] * 3
        assert len(story.history()) == 1

    @pytest.mark.parametrize("cause", [FailureClass.NON_RETRYABLE, FailureClass.COMPENSATION_REQUIRED])
    def test_a_failure_for_good_ends_the_step_as_failed_and_the_job_as_cancelled(self, cause: FailureClass) -> None:
        story = Story().processing()
        story.cancel()
        story.fail(failure_class=cause)
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["FAILED_FINAL", "CANCELLED", "CANCELLED"]

    def test_a_publish_under_way_is_waited_for_and_not_claimed_again(self) -> None:
        story = Story().claimed()
        story.cancel()
        assert isinstance(story.claim(), Ignored)
        assert story.hand_over() == Applied()
        assert (story.status, story.statuses()[0]) == (JobStatus.CANCELLING, "INITIATED")

    def test_cancel_is_said_once_and_by_whom(self) -> None:
        story = Story().processing()
        story.cancel(by="ada")
        assert isinstance(story.cancel(by="bob"), Ignored)
        assert story.job.cancel is not None
        assert (story.job.cancel.by, story.job.cancel.reason) == ("ada", "no longer wanted")
        story.succeed()
        assert isinstance(story.cancel(), Ignored)

    def test_a_job_that_ended_otherwise_cannot_be_cancelled(self) -> None:
        for story in (Story().finished(), failed_job()):
            reply = story.cancel()
            assert isinstance(reply, Refused)
            assert reply.code == "JOB_TERMINAL"


class TestWhileAWideJobIsBeingStopped:
    """More is to be stopped than one decision may touch: what is left begins nothing until its turn comes."""

    def stopping(self, *body: StepSpec) -> Story:
        return Story(protocol(each("m", "range(16)", *body, at_once=16))).dispatched().settle()

    def test_no_retry_starts(self) -> None:
        story = self.stopping(task("x"))
        for item in range(16):
            story.fail(story.lease_of(f"x.{item}"))
        story.wait(MINUTE).cancel()
        assert story.status_of("x.15") == "FAILED_RETRY"
        story.tick()
        assert story.history("x.15") == ["FAILED"]
        assert story.settle().status is JobStatus.CANCELLED

    def test_nothing_is_handed_out_or_repaired(self) -> None:
        story = self.stopping(task("x"))
        story.cancel()
        assert isinstance(story.claim(story.lease_of("x.15")), Ignored)
        assert isinstance(story.hand_over(story.lease_of("x.15")), Ignored)

    def test_nothing_is_recorded_anew(self) -> None:
        story = self.stopping(task("x"))
        story.cancel()
        story.books.lose_row(story.steps["x.15"].attempt.outbox_id)
        story.repair("x.15")
        assert len(story.history("x.15")) == (story.status_of("x.15") == "CANCELLED")
        assert story.settle().status is JobStatus.CANCELLED

    def test_nobody_votes(self) -> None:
        story = self.stopping(approval("ok"))
        story.cancel()
        assert story.status_of("ok.15") == "AWAITING_APPROVAL"
        assert code_of(story.approve("ok.15")) == "APPROVAL_ENDED"
        assert story.settle().status is JobStatus.CANCELLED

    def test_no_timer_rings(self) -> None:
        story = self.stopping(pause_for("w", MINUTE))
        story.cancel()
        story.wait(MINUTE).settle()
        assert {story.status_of(f"w.{item}") for item in range(16)} == {"CANCELLED"}


def nothing_at_a_service(state: str) -> Story:
    story = Story()
    if state == "queued":
        story.submit()
        return story
    if state == "retry after failure":
        story.processing().fail()
        return story
    story.dispatched()
    if state == "retry after hand-over":
        story.refuse_hand_over()
    return story


def failed_job() -> Story:
    story = Story().processing()
    story.fail_for_good()
    return story
