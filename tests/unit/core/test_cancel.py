"""Rule 8 of DESIGN §3: cancel, in every state."""

import pytest

from lucius.core.decision import Applied, Ignored, Refused
from lucius.core.model import Disposition, FailureClass, JobStatus
from tests.unit.core.builders import Story

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
