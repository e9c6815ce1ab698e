"""Compensation that halts, goes on later, or follows a cancel: what was undone is known, what was not can still be."""

import pytest

from lucius.core.decision import Applied
from lucius.core.model import AttemptOutcome, BlockedReason, Disposition, FailureClass, JobStatus
from tests.unit.core.acts import code_of
from tests.unit.core.bookings import booked
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import call, decision, parallel, protocol, risky, task, undone_by

F = FailureClass


class TestPartial:
    def halted(self, policy: str = "auto") -> Story:
        """The flight's handler fails for good: the hotel is undone, the flight is not."""
        story = booked(compensation=policy).botch("pay")
        if policy == "manual":
            story.compensate()
        return story.do("undo-hotel").botch("undo-flight")

    @pytest.mark.parametrize("policy", ["auto", "manual"])
    def test_a_handler_that_fails_halts_it_for_a_person(self, policy: str) -> None:
        story = self.halted(policy)
        assert story.status is JobStatus.PAUSED
        compensation = story.job.compensation
        assert compensation is not None
        assert (compensation.done, compensation.todo, compensation.failed) == (("hotel",), ("flight",), "flight")
        assert story.open_reviews() == [("COMPENSATION", "undo-flight")]

    def test_it_is_resumed_where_it_was_halted_and_audited_with_its_reason(self) -> None:
        story = self.halted()
        key = story.steps["undo-flight"].idempotency_key
        assert story.compensate() == Applied()
        assert story.job.active == ("undo-flight",)
        assert story.steps["undo-flight"].idempotency_key == key
        assert story.books.events[-2].data["reason"] == "because"
        story.do("undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.compensation is not None
        assert story.job.compensation.done == ("hotel", "flight")

    def test_discarded_it_stays_as_it_is(self) -> None:
        story = self.halted()
        story.discard()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.compensation is not None
        assert story.job.compensation.failed == "flight"

    def test_cancelled_it_ends_and_what_is_left_can_still_be_undone(self) -> None:
        story = self.halted()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        story.compensate()
        assert story.job.active == ("undo-flight",)
        assert story.do("undo-flight").job.live is False

    def test_a_retry_does_again_what_was_undone(self) -> None:
        story = self.halted()
        story.retry()
        assert story.job.active == ("hotel",)
        assert story.do("hotel").job.active == ("pay",)

    def test_a_template_of_a_handler_that_misses_a_value_halts_it_too(self) -> None:
        undo = call("undo", {"x": "${steps.a.result.nothing}"})
        shape = protocol(task("a", compensation=undo), risky("pay"), compensation="auto")
        story = Story(shape).dispatched().do("a").botch("pay")
        assert story.status is JobStatus.PAUSED
        assert story.open_reviews() == [("COMPENSATION", "undo")]


class TestAfterTheEnd:
    def test_a_person_can_undo_what_a_failed_job_did(self) -> None:
        story = booked(task("pay")).botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.compensate() == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == []

    def test_nothing_is_undone_twice(self) -> None:
        story = booked(task("pay")).botch("pay")
        story.compensate()
        story.do("undo-hotel", "undo-flight")
        assert code_of(story.compensate()) == "NOTHING_TO_COMPENSATE"

    def test_a_retry_then_starts_from_the_first_that_was_undone(self) -> None:
        story = booked(task("pay")).botch("pay")
        story.compensate()
        story.do("undo-hotel", "undo-flight")
        story.retry()
        assert story.job.active == ("flight",)
        story.do("flight", "hotel", "pay", "mail")
        assert story.status is JobStatus.SUCCEEDED
        assert story.job.run_no == 3

    def test_what_is_done_again_can_be_undone_again(self) -> None:
        story = booked(compensation="auto").botch("pay").do("undo-hotel", "undo-flight")
        keys = {step: story.steps[step].idempotency_key for step in ("undo-hotel", "undo-flight")}
        story.retry()
        story.do("flight", "hotel").botch("pay").do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert {step: story.steps[step].idempotency_key for step in keys} != keys

    def test_an_effect_of_an_earlier_run_is_not_forgotten(self) -> None:
        """Run 2 starts before the hotel and fails at once: the hotel of run 1 is still booked."""
        steps = (undone_by("flight"), risky("check"), undone_by("hotel"), task("pay"))
        story = Story(protocol(*steps, compensation="auto")).dispatched().do("flight", "check", "hotel").botch("pay")
        story.retry("flight")
        story.do("flight").botch("check")
        assert story.job.active == ("undo-flight",)
        story.do("undo-flight")
        assert story.job.active == ("undo-hotel",)

    def test_what_was_undone_is_not_seen_until_it_is_done_again(self) -> None:
        look = decision("look", {"steps.hotel.status == 'PENDING'": "hotel"})
        steps = (undone_by("flight"), look, undone_by("hotel"), risky("pay"))
        story = Story(protocol(*steps, compensation="auto")).dispatched().do("flight", "hotel").botch("pay")
        story.do("undo-hotel", "undo-flight")
        story.retry()
        story.do("flight")
        assert story.job.active == ("hotel",)

    def test_a_branch_inside_a_branch_that_was_undone_is_done_again(self) -> None:
        inner = parallel("q", undone_by("a"), task("b"))
        story = Story(protocol(parallel("p", inner, task("c")), risky("pay"), compensation="auto")).dispatched()
        story.do("a", "b", "c").botch("pay").do("undo-a")
        story.retry()
        assert story.job.active == ("a",)

    def test_a_handler_sees_the_effect_of_an_earlier_run(self) -> None:
        undo = call("undo", {"no": "${steps.hotel.result.no}"})
        steps = (undone_by("flight"), risky("check"), task("hotel", compensation=undo), task("pay"))
        story = Story(protocol(*steps, compensation="auto")).dispatched().do("flight", "check")
        story.do("hotel", result={"no": 7}).botch("pay")
        story.retry("flight")
        story.do("flight").botch("check").do("undo-flight")
        request = story.steps["undo"].request
        assert request is not None
        assert request.body == {"no": 7}

    def test_what_is_kept_is_undone_in_the_order_in_which_it_was_done(self) -> None:
        both = parallel("p", [undone_by("a"), task("x")], undone_by("b"))
        story = Story(protocol(both, risky("pay"), compensation="auto")).dispatched().do("b", "a").botch("x")
        story.retry()
        story.do("x").botch("pay")
        assert story.job.active == ("undo-a",)
        assert story.do("undo-a").job.active == ("undo-b",)

    def test_a_branch_that_was_undone_is_done_again_and_one_that_was_not_stands(self) -> None:
        shape = protocol(parallel("p", undone_by("a"), task("b")), risky("pay"), compensation="auto")
        story = Story(shape).dispatched().do("a", "b").botch("pay").do("undo-a")
        story.retry()
        assert story.job.active == ("a",)
        assert story.do("a").job.active == ("pay",)
        assert story.history("b") == ["SUCCEEDED"]


class TestOnCancel:
    def test_a_cancel_undoes_nothing_unless_the_protocol_says_so(self) -> None:
        story = booked()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses("undo-flight", "undo-hotel") == ["CANCELLED"] * 2

    def test_where_it_says_so_handlers_run_before_the_end(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        assert (story.status, story.job.active) == (JobStatus.CANCELLING, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.CANCELLED
        assert story.open_reviews() == []

    def test_they_wait_for_what_is_with_a_service_and_undo_that_too(self) -> None:
        story = Story(protocol(undone_by("a"), undone_by("b"), compensate_on_cancel=True)).dispatched().do("a")
        story.ack()
        story.cancel()
        assert story.job.active == ("b",)
        story.succeed()
        assert story.job.active == ("undo-b",)
        assert story.do("undo-b", "undo-a").status is JobStatus.CANCELLED

    def test_a_handler_is_not_asked_to_stop(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.heartbeat()
        assert not story.answer.cancel_requested

    def test_a_handler_that_fails_is_tried_again(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.fail()
        assert story.status_of("undo-hotel") == "FAILED_RETRY"

    def test_one_that_fails_for_good_halts_it_for_a_person(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.botch("undo-hotel")
        assert story.job.blocked is not None
        assert (story.status, story.job.blocked.reason) == (JobStatus.CANCELLING, BlockedReason.REVIEW)
        assert code_of(story.resume()) == "REVIEW_OPEN"
        story.compensate()
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.CANCELLED

    @pytest.mark.parametrize("act", ["discard", "retry"])
    def test_a_person_can_end_that(self, act: str) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.botch("undo-hotel")
        getattr(story, act)()
        if act == "discard":
            assert story.status is JobStatus.CANCELLED
        else:
            assert story.job.runs[-1].status is JobStatus.CANCELLED
            assert story.job.active == ("pay",)

    def test_a_job_whose_time_is_up_while_it_is_being_cancelled_undoes_too(self) -> None:
        story = booked(compensate_on_cancel=True, timeout_ms=MINUTE)
        story.ack()
        story.cancel()
        story.wait(MINUTE).tick()
        assert story.steps["pay"].attempt.outcome is AttemptOutcome.JOB_TIMEOUT
        assert story.job.active == ("undo-hotel",)

    def test_a_retry_of_what_was_undone_starts_with_the_first_of_it(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.do("undo-hotel", "undo-flight")
        story.retry()
        assert story.job.active == ("flight",)

    def test_even_if_it_was_stopped_between_two_steps(self) -> None:
        story = Story(protocol(undone_by("a"), task("b"), compensate_on_cancel=True)).processing()
        story.cancel()
        story.succeed()
        story.do("undo-a")
        assert story.status is JobStatus.CANCELLED
        story.retry()
        assert story.job.active == ("a",)

    def test_a_half_effect_during_a_cancel_is_shown_to_a_person(self) -> None:
        story = booked()
        story.ack()
        story.cancel()
        story.fail(failure_class=F.COMPENSATION_REQUIRED)
        assert story.status is JobStatus.CANCELLED
        assert story.open_reviews() == [("COMPENSATION", "pay")]
        story.compensate()
        assert story.job.active == ("undo-hotel",)


class TestAHandlersOwnLateSuccess:
    def halted(self) -> Story:
        """The hotel's handler got no ACK in time, was tried again and failed; then its first attempt succeeds."""
        story = booked(compensation="auto").botch("pay")
        fenced = story.lease_of("undo-hotel")
        story.hand_over()
        story.tick_when_due()
        story.next_attempt().botch("undo-hotel")
        assert story.succeed(fenced) is Disposition.STALE
        return story

    def test_it_can_be_adopted_and_undoing_goes_on_after_it(self) -> None:
        story = self.halted()
        assert story.adopt() == Applied()
        assert story.status_of("undo-hotel") == "SUCCEEDED"
        assert story.job.active == ("undo-flight",)
        story.do("undo-flight")
        assert story.job.compensation is not None
        assert story.job.compensation.done == ("hotel", "flight")

    def test_while_the_handler_runs_it_is_adopted_too(self) -> None:
        story = booked(compensation="auto").botch("pay")
        fenced = story.lease_of("undo-hotel")
        story.hand_over()
        story.tick_when_due()
        story.next_attempt()
        story.succeed(fenced)
        story.adopt()
        assert story.job.active == ("undo-flight",)

    def test_no_run_starts_from_a_handler(self) -> None:
        story = self.halted()
        story.discard()
        assert code_of(story.adopt()) == "STEP_NOT_FOUND"


class TestCancelOfAPausedCompensation:
    def paused(self) -> Story:
        story = booked(compensation="auto").botch("pay")
        story.hand_over()
        story.pause()
        return story

    def test_a_handler_that_was_done_meanwhile_has_undone_its_step(self) -> None:
        story = self.paused()
        story.succeed()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.job.compensable == ("flight",)
        story.retry()
        assert story.job.active == ("hotel",)

    def test_so_has_one_that_is_done_after_it(self) -> None:
        story = self.paused()
        story.cancel()
        assert story.status == "CANCELLING"
        story.succeed()
        assert story.status == "CANCELLED"
        assert story.job.compensable == ("flight",)
        story.compensate()
        assert story.job.active == ("undo-flight",)

    def test_one_that_fails_leaves_its_step_to_be_undone(self) -> None:
        story = self.paused()
        story.fail_for_good()
        story.cancel()
        assert story.job.compensable == ("flight", "hotel")
        story.retry()
        assert story.job.active == ("pay",)

    def test_no_run_starts_with_a_handler(self) -> None:
        story = booked(compensation="auto").botch("pay").do("undo-hotel")
        story.pause()
        story.cancel()
        story.retry()
        assert story.job.active == ("hotel",)


def test_a_job_that_is_resumed_after_its_item_was_discarded_asks_again() -> None:
    story = Story(protocol(risky("pay"), task("mail"))).processing()
    story.pause()
    story.fail()
    assert story.open_reviews() == [("COMPENSATION", "pay")]
    story.discard()
    story.resume()
    assert story.open_reviews() == [("COMPENSATION", "pay")]
    assert code_of(story.resume()) == "REVIEW_OPEN"
