"""The review queue as the core fills it: what opens and closes an item, and which items share a cause."""

import pytest

from lucius.core.model.decision import Applied, Ignored
from lucius.core.model.records import ErrorInfo
from lucius.core.model.statuses import Disposition, FailureClass, ReviewKind, ReviewStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story, three_steps
from tests.unit.core.shapes import each, protocol, risky, task, undone_by

F = FailureClass


def stale(story: Story) -> Story:
    """Let an attempt succeed after it lost its lease."""
    story.ack()
    fenced = story.lease
    story.tick_when_due()
    story.tick_when_due()
    assert story.succeed(fenced) is Disposition.STALE
    return story


class TestOpening:
    def test_finally_failed_job_opens_an_item(self) -> None:
        story = Story().dispatched().botch("ocr")
        item = story.own_review
        assert (item.kind, item.status, item.step_id) == (ReviewKind.JOB_FAILED, ReviewStatus.OPEN, "ocr")
        assert (item.job_id, item.tenant_id, item.run_no) == ("job-1", "acme", 1)
        assert item.failure_class is F.NON_RETRYABLE
        assert item.error is not None
        assert item.error.code == "OUT_OF_PAPER"
        assert story.event_types()[-1] == "REVIEW_OPENED"

    def test_message_finally_refused_by_the_bus_opens_a_poison_item(self) -> None:
        story = Story().dispatched()
        for _ in range(2):
            story.refuse_hand_over()
            story.next_attempt()
        story.refuse_hand_over()
        assert story.open_reviews() == [(ReviewKind.POISON, "ocr")]

    def test_message_given_out_too_often_opens_a_poison_item(self) -> None:
        story = Story().initiated()
        story.poison()
        assert story.open_reviews() == [(ReviewKind.POISON, "ocr")]
        assert (story.own_review.failure_class, story.own_review.error) == (
            F.NON_RETRYABLE,
            ErrorInfo("POISON_MESSAGE", "given out 5 times"),
        )

    def test_poison_report_on_an_ended_attempt_is_ignored(self) -> None:
        story = Story().initiated()
        old = story.lease
        story.fail()
        assert isinstance(story.poison(), Ignored)
        story.next_attempt()
        assert isinstance(story.poison(old), Ignored)
        assert story.open_reviews() == []

    def test_timed_out_job_opens_an_item(self) -> None:
        story = Story(three_steps(job_timeout_ms=MINUTE)).dispatched().wait(MINUTE)
        story.tick()
        assert story.open_reviews() == [(ReviewKind.JOB_FAILED, "ocr")]

    def test_cancelled_job_opens_no_item(self) -> None:
        story = Story().processing()
        story.cancel()
        story.fail()
        assert story.records.reviews == {}

    def test_stale_success_opens_an_item_that_names_its_attempt(self) -> None:
        story = stale(Story().dispatched())
        [item] = story.records.reviews.values()
        [kept] = story.records.quarantined
        assert (item.kind, item.step_id) == (ReviewKind.STALE_RESULT, "ocr")
        assert (item.attempt_no, item.lease_id) == (kept.attempt_no, kept.lease_id)

    def test_repeated_stale_success_opens_one_item(self) -> None:
        story = stale(Story().dispatched())
        [kept] = story.records.quarantined
        fenced = story.lease._replace(attempt_no=kept.attempt_no, lease_id=kept.lease_id)
        story.succeed(fenced)
        assert len(story.records.reviews) == 1

    def test_a_job_has_one_item_of_its_own_at_a_time(self) -> None:
        story = Story(protocol(undone_by("a"), risky("b"), compensation="auto")).dispatched()
        story.do("a").botch("b").botch("undo-a")
        assert len(story.records.reviews) == 1
        assert story.own_review.step_id == "undo-a"


class TestSignature:
    def test_signature_is_equal_for_the_same_cause_in_different_map_items(self) -> None:
        stories = [Story(protocol(each("m", "range(3)", task("x")))).dispatched() for _ in range(2)]
        signatures = {
            story.botch(step).own_review.signature for story, step in zip(stories, ("x.0", "x.2"), strict=True)
        }
        assert signatures == {"SHAPE/x/JOB_FAILED/NON_RETRYABLE/OUT_OF_PAPER"}

    @pytest.mark.parametrize("cause", [F.TRANSIENT, F.NON_RETRYABLE])
    def test_signature_contains_the_failure_class(self, cause: FailureClass) -> None:
        story = Story().processing()
        for _ in range(3):
            story.fail(failure_class=cause)
            if story.job.live:
                story.next_attempt()
        assert f"/{cause}/" in story.own_review.signature

    def test_item_whose_cause_changes_gets_a_new_signature(self) -> None:
        story = Story(protocol(undone_by("a"), risky("b"), compensation="auto")).dispatched().do("a").botch("b")
        before = story.own_review.signature
        story.botch("undo-a")
        assert story.own_review.signature != before
        assert "/undo-a/" in story.own_review.signature


class TestClosing:
    @pytest.mark.parametrize(
        ("act", "status"), [("retry", "REPROCESSED"), ("skip", "REPROCESSED"), ("discard", "DISCARDED")]
    )
    def test_item_closed_by_an_operator_records_status_operator_and_reason(self, act: str, status: str) -> None:
        story = Story().dispatched().botch("ocr")
        review_id = story.own_review.review_id
        assert getattr(story, act)() == Applied()
        closed = story.records.reviews[review_id]
        assert (closed.status, closed.resolved_by, closed.reason, closed.act) == (status, "ada", "because", act)
        [event] = [event for event in story.records.events if event.type == "REVIEW_CLOSED"]
        assert event.data["by"] == "ada"
        assert event.data["reason"] == "because"

    def test_discarding_an_item_leaves_the_ended_job_unchanged(self) -> None:
        story = Story().dispatched().botch("ocr")
        ended = story.job
        story.discard()
        assert (story.job.status, story.job.error, story.job.run_no) == (ended.status, ended.error, 1)
        assert story.retry() == Applied()

    def test_a_closed_item_is_not_closed_again(self) -> None:
        story = Story().dispatched().botch("ocr")
        item = story.own_review
        story.discard(item)
        assert code_of(story.discard(story.records.reviews[item.review_id])) == "REVIEW_CLOSED"

    def test_stale_result_item_can_be_discarded_while_the_job_runs(self) -> None:
        story = stale(Story().dispatched())
        [item] = story.records.reviews.values()
        story.discard(item)
        assert story.records.reviews[item.review_id].status is ReviewStatus.DISCARDED
        assert story.job.active == ("ocr",)

    def test_failed_new_run_opens_another_item(self) -> None:
        story = Story().dispatched().botch("ocr")
        first = story.own_review.review_id
        story.retry()
        story.botch("ocr")
        assert story.own_review.review_id != first
        assert len(story.records.reviews) == 2
