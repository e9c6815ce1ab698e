"""Cancel, in every state."""

from typing import Any

import pytest

from lucius.core.model.decision import Applied, Ignored, Refused
from lucius.core.model.statuses import Disposition, FailureClass, JobStatus
from lucius.core.protocol.definition import StepSpec
from tests.unit.core.acts import code_of
from tests.unit.core.bookings import booked
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import approval, each, pause_for, protocol, risky, task, undone_by

APPLIED = Disposition.APPLIED


class TestCancel:
    @pytest.mark.parametrize("state", ["queued", "dispatched", "retry after hand-over", "retry after failure"])
    def test_job_without_a_step_at_a_service_is_cancelled_at_once(self, state: str) -> None:
        story = nothing_at_a_service(state)
        assert story.cancel() == Applied()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["CANCELLED"] * 3
        assert story.pending_rows() == []
        assert not any(story.records.counters.values())

    @pytest.mark.parametrize("state", ["claimed", "initiated", "processing"])
    def test_cancel_waits_for_an_attempt_that_a_service_may_have(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        story.cancel()
        assert story.status is JobStatus.CANCELLING
        story.heartbeat()
        assert story.answer.cancel_requested

    def test_heartbeat_reply_requests_cancel_only_after_a_cancel(self) -> None:
        story = Story().processing()
        story.heartbeat()
        assert not story.answer.cancel_requested

    def test_success_during_a_cancel_is_recorded_and_starts_no_further_step(self) -> None:
        story = Story().processing()
        story.cancel()
        assert story.succeed(result={"pages": 1}) is APPLIED
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["SUCCEEDED", "CANCELLED", "CANCELLED"]
        assert story.steps["ocr"].result == {"pages": 1}

    @pytest.mark.parametrize("end", ["fail", "tick_when_due"])
    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_retryable_failure_during_a_cancel_is_not_retried(self, state: str, end: str) -> None:
        story: Story = getattr(Story(), state)()
        story.cancel()
        getattr(story, end)()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["CANCELLED"] * 3
        assert len(story.history()) == 1

    @pytest.mark.parametrize("cause", [FailureClass.NON_RETRYABLE, FailureClass.COMPENSATION_REQUIRED])
    def test_final_failure_during_a_cancel_fails_the_step_and_cancels_the_job(self, cause: FailureClass) -> None:
        story = Story().processing()
        story.cancel()
        story.fail(failure_class=cause)
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["FAILED_FINAL", "CANCELLED", "CANCELLED"]

    def test_cancel_waits_for_a_publish_in_flight_and_prevents_another_claim(self) -> None:
        story = Story().claimed()
        story.cancel()
        assert isinstance(story.claim(), Ignored)
        assert story.hand_over() == Applied()
        assert (story.status, story.statuses()[0]) == (JobStatus.CANCELLING, "INITIATED")

    def test_repeated_cancel_is_ignored_and_the_first_requester_is_recorded(self) -> None:
        story = Story().processing()
        story.cancel(by="ada")
        assert isinstance(story.cancel(by="bob"), Ignored)
        assert story.job.cancel is not None
        assert (story.job.cancel.by, story.job.cancel.reason) == ("ada", "no longer wanted")
        story.succeed()
        assert isinstance(story.cancel(), Ignored)

    def test_finished_job_cannot_be_cancelled(self) -> None:
        for story in (Story().finished(), failed_job()):
            reply = story.cancel()
            assert isinstance(reply, Refused)
            assert reply.code == "JOB_TERMINAL"


class TestWideJobBeingStopped:
    """One decision cannot stop all steps of the job: the remaining steps start nothing until they are stopped."""

    def stopping(self, *body: StepSpec) -> Story:
        return Story(protocol(each("m", "range(16)", *body, at_once=16))).dispatched().settle()

    def test_failed_step_of_a_job_being_stopped_is_not_retried(self) -> None:
        story = self.stopping(task("x"))
        for item in range(16):
            story.fail(story.lease_of(f"x.{item}"))
        story.wait(MINUTE).cancel()
        assert story.status_of("x.15") == "FAILED_RETRY"
        story.tick()
        assert story.history("x.15") == ["FAILED"]
        assert story.settle().status is JobStatus.CANCELLED

    def test_claim_and_hand_over_in_a_job_being_stopped_are_ignored(self) -> None:
        story = self.stopping(task("x"))
        story.cancel()
        assert isinstance(story.claim(story.lease_of("x.15")), Ignored)
        assert isinstance(story.hand_over(story.lease_of("x.15")), Ignored)

    def test_repair_in_a_job_being_stopped_adds_no_attempt(self) -> None:
        story = self.stopping(task("x"))
        story.cancel()
        story.records.lose_row(story.steps["x.15"].attempt.outbox_id)
        story.repair("x.15")
        assert len(story.history("x.15")) == (story.status_of("x.15") == "CANCELLED")
        assert story.settle().status is JobStatus.CANCELLED

    def test_vote_in_a_job_being_stopped_is_refused(self) -> None:
        story = self.stopping(approval("ok"))
        story.cancel()
        assert story.status_of("ok.15") == "AWAITING_APPROVAL"
        assert code_of(story.approve("ok.15")) == "APPROVAL_ENDED"
        assert story.settle().status is JobStatus.CANCELLED

    def test_timer_in_a_job_being_stopped_does_not_fire(self) -> None:
        story = self.stopping(pause_for("w", MINUTE))
        story.cancel()
        story.wait(MINUTE).settle()
        assert {story.status_of(f"w.{item}") for item in range(16)} == {"CANCELLED"}


class TestTimeoutWhileCancelling:
    def overdue(self, *before: StepSpec) -> Story:
        """Return a job that is cancelled and past its timeout while a service pays."""
        pay = risky("pay", compensation=task("refund"))
        story = Story(protocol(*before, pay, compensate_on_cancel=True, timeout_ms=MINUTE)).dispatched()
        story.do(*(spec.step_id for spec in before))
        story.ack()
        story.cancel()
        return story.wait(2 * MINUTE).settle()

    def test_stopped_step_is_undone_first_and_the_error_is_kept(self) -> None:
        story = self.overdue(undone_by("flight"))
        story.do("refund", "undo-flight")
        assert (story.status, story.job.undone) == (JobStatus.CANCELLED, ("pay", "flight"))
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_stopped_step_is_undone_if_nothing_was_completed(self) -> None:
        story = self.overdue()
        story.do("refund")
        assert (story.status, story.job.undone) == (JobStatus.CANCELLED, ("pay",))

    def test_timeout_error_is_kept_if_the_halted_job_is_retried(self) -> None:
        story = self.overdue().botch("refund")
        assert story.job.paused is not None
        story.retry()
        assert [run.error.code for run in story.job.runs if run.error is not None] == ["JOB_TIMEOUT"]


class TestPausedCompensation:
    def paused(self, **policies: Any) -> Story:
        """Return a failed job whose compensation was paused before a service has the first handler."""
        story = Story(protocol(undone_by("flight"), undone_by("hotel"), task("mail"), **policies)).dispatched()
        story.do("flight", "hotel").botch("mail")
        story.pause()
        return story

    def test_review_item_names_the_steps_not_undone(self) -> None:
        story = self.paused(compensate_on_failure=True)
        assert story.cancel() == Applied()
        assert (story.status, story.job.compensable) == (JobStatus.CANCELLED, ("flight", "hotel"))
        assert story.open_reviews() == [("COMPENSATION", "hotel")]
        error = story.own_review.error
        assert error is not None
        assert error.code == "CANCELLED"
        assert error.message.endswith("not undone by then: hotel, flight")

    def test_compensating_the_review_item_undoes_the_rest(self) -> None:
        story = self.paused(compensate_on_failure=True)
        story.cancel()
        assert story.compensate() == Applied()
        story.do("undo-hotel", "undo-flight")
        assert (story.job.undone, story.open_reviews()) == (("hotel", "flight"), [])

    def test_handler_that_succeeded_during_the_pause_is_not_named(self) -> None:
        story = self.paused(compensate_on_failure=True)
        story.succeed(story.lease_of("undo-hotel"))
        story.cancel()
        assert story.open_reviews() == [("COMPENSATION", "flight")]

    def test_existing_item_of_the_failed_step_names_the_steps_not_undone(self) -> None:
        story = booked(compensation="auto").botch("pay")
        before = story.own_review.error
        story.pause()
        story.cancel()
        assert story.open_reviews() == [("COMPENSATION", "pay")]
        error = story.own_review.error
        assert before is not None
        assert error is not None
        assert error.code == before.code
        assert error.message.startswith(before.message)
        assert error.message.endswith("not undone by then: hotel, flight")

    def test_cancel_resumes_the_compensation_under_compensate_on_cancel(self) -> None:
        story = self.paused(compensate_on_failure=True, compensate_on_cancel=True)
        story.cancel()
        assert (story.status, story.open_reviews()) == (JobStatus.CANCELLING, [])
        story.do("undo-hotel", "undo-flight")
        assert (story.status, story.job.undone) == (JobStatus.CANCELLED, ("hotel", "flight"))

    def test_refused_cancel_of_an_unpaused_compensation_suggests_a_pause(self) -> None:
        story = booked(compensation="auto").botch("pay")
        refused = story.cancel()
        assert isinstance(refused, Refused)
        assert refused.code == "COMPENSATING"
        assert "pause it first" in refused.message


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
