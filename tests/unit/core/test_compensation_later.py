"""Compensation that halts, is resumed, or follows a cancel: undone steps are recorded, the rest can still be undone."""

from typing import Any

import pytest

from lucius.core.model.decision import Applied
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, Disposition, FailureClass, JobStatus
from tests.unit.core.acts import code_of
from tests.unit.core.bookings import booked
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import call, decision, parallel, protocol, risky, task, undone_by

F = FailureClass


class TestHaltedCompensation:
    def halted(self, policy: str = "auto") -> Story:
        """Return a job whose flight handler fails permanently: the hotel is undone, the flight is not."""
        story = booked(compensation=policy).botch("pay")
        if policy == "manual":
            story.compensate()
        return story.do("undo-hotel").botch("undo-flight")

    @pytest.mark.parametrize("policy", ["auto", "manual"])
    def test_failed_handler_halts_compensation_with_a_review_item(self, policy: str) -> None:
        story = self.halted(policy)
        assert story.status is JobStatus.PAUSED
        compensation = story.job.compensation
        assert compensation is not None
        assert (compensation.done, compensation.todo, compensation.failed) == (("hotel",), ("flight",), "flight")
        assert story.open_reviews() == [("COMPENSATION", "undo-flight")]

    def test_compensate_resumes_at_the_failed_handler_and_is_audited_with_its_reason(self) -> None:
        story = self.halted()
        key = story.steps["undo-flight"].idempotency_key
        assert story.compensate() == Applied()
        assert story.job.active == ("undo-flight",)
        assert story.steps["undo-flight"].idempotency_key == key
        assert story.records.events[-2].data["reason"] == "because"
        story.do("undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.compensation is not None
        assert story.job.compensation.done == ("hotel", "flight")

    def test_discarded_halted_compensation_fails_the_job_and_stays_incomplete(self) -> None:
        story = self.halted()
        story.discard()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.compensation is not None
        assert story.job.compensation.failed == "flight"

    def test_job_cancelled_in_halted_compensation_can_still_undo_the_rest(self) -> None:
        story = self.halted()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        story.compensate()
        assert story.job.active == ("undo-flight",)
        assert story.do("undo-flight").job.live is False

    def test_retry_of_a_halted_compensation_repeats_the_undone_steps(self) -> None:
        story = self.halted()
        story.retry()
        assert story.job.active == ("hotel",)
        assert story.do("hotel").job.active == ("pay",)

    def test_handler_template_with_a_missing_value_halts_compensation(self) -> None:
        undo = call("undo", {"x": "${steps.a.result.nothing}"})
        shape = protocol(task("a", compensation=undo), risky("pay"), compensation="auto")
        story = Story(shape).dispatched().do("a").botch("pay")
        assert story.status is JobStatus.PAUSED
        assert story.open_reviews() == [("COMPENSATION", "undo")]


class TestCompensateAfterTheEnd:
    def test_operator_can_compensate_a_failed_job(self) -> None:
        story = booked(task("pay")).botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.compensate() == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == []

    def test_second_compensate_is_refused_with_nothing_to_compensate(self) -> None:
        story = booked(task("pay")).botch("pay")
        story.compensate()
        story.do("undo-hotel", "undo-flight")
        assert code_of(story.compensate()) == "NOTHING_TO_COMPENSATE"

    def test_retry_after_compensation_begins_with_the_first_undone_step(self) -> None:
        story = booked(task("pay")).botch("pay")
        story.compensate()
        story.do("undo-hotel", "undo-flight")
        story.retry()
        assert story.job.active == ("flight",)
        story.do("flight", "hotel", "pay", "mail")
        assert story.status is JobStatus.SUCCEEDED
        assert story.job.run_no == 3

    def test_repeated_steps_are_compensated_again_under_new_keys(self) -> None:
        story = booked(compensation="auto").botch("pay").do("undo-hotel", "undo-flight")
        keys = {step: story.steps[step].idempotency_key for step in ("undo-hotel", "undo-flight")}
        story.retry()
        story.do("flight", "hotel").botch("pay").do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert {step: story.steps[step].idempotency_key for step in keys} != keys

    def test_effect_of_an_earlier_run_can_still_be_compensated(self) -> None:
        """Run 2 starts before the hotel and fails at once: the hotel of run 1 is still booked."""
        steps = (undone_by("flight"), risky("check"), undone_by("hotel"), task("pay"))
        story = Story(protocol(*steps, compensation="auto")).dispatched().do("flight", "check", "hotel").botch("pay")
        story.retry("flight")
        story.do("flight").botch("check")
        assert story.job.active == ("undo-flight",)
        story.do("undo-flight")
        assert story.job.active == ("undo-hotel",)

    def test_undone_step_is_pending_in_expressions_until_repeated(self) -> None:
        look = decision("look", {"steps.hotel.status == 'PENDING'": "hotel"})
        steps = (undone_by("flight"), look, undone_by("hotel"), risky("pay"))
        story = Story(protocol(*steps, compensation="auto")).dispatched().do("flight", "hotel").botch("pay")
        story.do("undo-hotel", "undo-flight")
        story.retry()
        story.do("flight")
        assert story.job.active == ("hotel",)

    def test_retry_repeats_an_undone_nested_branch(self) -> None:
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

    def test_results_kept_across_runs_are_undone_in_reverse_order_of_completion(self) -> None:
        both = parallel("p", [undone_by("a"), task("x")], undone_by("b"))
        story = Story(protocol(both, risky("pay"), compensation="auto")).dispatched().do("b", "a").botch("x")
        story.retry()
        story.do("x").botch("pay")
        assert story.job.active == ("undo-a",)
        assert story.do("undo-a").job.active == ("undo-b",)

    def test_retry_repeats_an_undone_branch_and_keeps_the_other(self) -> None:
        shape = protocol(parallel("p", undone_by("a"), task("b")), risky("pay"), compensation="auto")
        story = Story(shape).dispatched().do("a", "b").botch("pay").do("undo-a")
        story.retry()
        assert story.job.active == ("a",)
        assert story.do("a").job.active == ("pay",)
        assert story.history("b") == ["SUCCEEDED"]


def paying(**policies: Any) -> Story:
    """Return a job with flight and hotel booked, which can be undone, and the payment next, which leaves no effect."""
    steps = undone_by("flight"), undone_by("hotel"), task("pay")
    return Story(protocol(*steps, **policies)).dispatched().do("flight", "hotel")


def stopped_while_paying(**policies: Any) -> Story:
    """Return a job that timed out while a service has the payment, which is unsafe to retry and can be refunded."""
    steps = undone_by("flight"), risky("pay", compensation=task("refund"))
    shape = protocol(*steps, compensate_on_failure=True, timeout_ms=MINUTE, **policies)
    story = Story(shape).dispatched().do("flight")
    story.ack()
    story.wait(2 * MINUTE).tick()
    return story


class TestCompensateOnFailure:
    def test_failed_job_undoes_nothing_by_default(self) -> None:
        story = paying(compensation="auto")
        story.botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.statuses("undo-flight", "undo-hotel") == ["SKIPPED"] * 2

    @pytest.mark.parametrize("policy", ["auto", "manual"])
    def test_failed_job_runs_handlers_in_reverse_and_ends_with_its_failure(self, policy: str) -> None:
        story = paying(compensation=policy, compensate_on_failure=True)
        story.botch("pay")
        assert (story.status, story.job.active) == (JobStatus.IN_PROGRESS, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.failure is not None
        assert story.job.failure.step_id == "pay"
        assert story.job.undone == ("hotel", "flight")
        assert story.open_reviews() == [("JOB_FAILED", "pay")]

    def test_timed_out_job_runs_handlers(self) -> None:
        story = paying(compensate_on_failure=True, timeout_ms=MINUTE)
        story.ack()
        story.wait(MINUTE).tick()
        assert story.job.active == ("undo-hotel",)
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"

    def test_step_that_may_have_run_when_time_is_up_is_undone_first_under_auto(self) -> None:
        story = stopped_while_paying(compensation="auto")
        assert story.job.active == ("refund",)
        story.do("refund", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.undone == ("pay", "flight")
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_step_that_may_have_run_when_time_is_up_waits_for_a_person_under_manual(self) -> None:
        story = stopped_while_paying(compensation="manual")
        assert (story.status, story.job.active) == (JobStatus.PAUSED, ())
        assert story.open_reviews() == [("COMPENSATION", "pay")]
        assert story.job.compensable == ("flight", "pay")
        story.compensate()
        story.do("refund", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.undone == ("pay", "flight")
        assert story.open_reviews() == []

    def test_timed_out_job_held_for_review_can_be_cancelled_or_retried(self) -> None:
        story = stopped_while_paying(compensation="manual")
        story.retry()
        assert story.job.active == ("pay",)
        story = stopped_while_paying(compensation="manual")
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.job.undone == ()

    def test_branches_that_may_have_run_when_time_is_up_are_all_undone_and_shown(self) -> None:
        branches = (risky("pay", compensation=task("refund")), risky("post", compensation=task("recall")))
        shape = protocol(
            undone_by("flight"),
            parallel("p", *branches),
            compensate_on_failure=True,
            compensation="auto",
            timeout_ms=MINUTE,
        )
        story = Story(shape).dispatched().do("flight")
        story.ack(story.lease_of("pay"))
        story.ack(story.lease_of("post"))
        story.wait(2 * MINUTE).tick()
        story.do("recall", "refund", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.undone == ("post", "pay", "flight")
        assert story.open_reviews() == [("COMPENSATION", "pay"), ("COMPENSATION", "post")]

    def test_handler_that_fails_for_good_holds_the_job_for_a_person(self) -> None:
        story = paying(compensate_on_failure=True)
        story.botch("pay")
        story.botch("undo-hotel")
        assert story.job.blocked is not None
        assert story.job.blocked.reason is BlockedReason.REVIEW
        story.compensate()
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL

    def test_retry_after_undoing_starts_with_the_first_undone_step(self) -> None:
        story = paying(compensate_on_failure=True)
        story.botch("pay")
        story.do("undo-hotel", "undo-flight")
        story.retry()
        assert story.job.active == ("flight",)

    def test_partial_effect_still_waits_for_a_person_under_the_manual_policy(self) -> None:
        story = booked(compensation="manual", compensate_on_failure=True).botch("pay")
        assert story.status is JobStatus.PAUSED
        assert story.open_reviews() == [("COMPENSATION", "pay")]


class TestCompensateOnCancel:
    def test_cancel_runs_no_handlers_by_default(self) -> None:
        story = booked()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses("undo-flight", "undo-hotel") == ["CANCELLED"] * 2

    def test_cancel_with_compensate_on_cancel_runs_handlers_before_the_end(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        assert (story.status, story.job.active) == (JobStatus.CANCELLING, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert story.status is JobStatus.CANCELLED
        assert story.open_reviews() == []

    def test_handlers_wait_for_a_step_in_progress_and_undo_it_too(self) -> None:
        story = Story(protocol(undone_by("a"), undone_by("b"), compensate_on_cancel=True)).dispatched().do("a")
        story.ack()
        story.cancel()
        assert story.job.active == ("b",)
        story.succeed()
        assert story.job.active == ("undo-b",)
        assert story.do("undo-b", "undo-a").status is JobStatus.CANCELLED

    def test_handler_gets_no_cancel_request(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.heartbeat()
        assert not story.answer.cancel_requested

    def test_failed_handler_is_retried_during_a_cancel(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.fail()
        assert story.status_of("undo-hotel") == "FAILED_RETRY"

    def test_handler_that_fails_finally_halts_the_cancel_for_review(self) -> None:
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
    def test_operator_can_end_a_halted_cancel(self, act: str) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.botch("undo-hotel")
        getattr(story, act)()
        if act == "discard":
            assert story.status is JobStatus.CANCELLED
        else:
            assert story.job.runs[-1].status is JobStatus.CANCELLED
            assert story.job.active == ("pay",)

    def test_job_that_times_out_during_a_cancel_runs_handlers(self) -> None:
        story = booked(compensate_on_cancel=True, timeout_ms=MINUTE)
        story.ack()
        story.cancel()
        story.wait(MINUTE).tick()
        assert story.steps["pay"].attempt.outcome is AttemptOutcome.JOB_TIMEOUT
        assert story.job.active == ("undo-hotel",)

    def test_retry_after_a_compensating_cancel_begins_with_the_first_undone_step(self) -> None:
        story = booked(compensate_on_cancel=True)
        story.cancel()
        story.do("undo-hotel", "undo-flight")
        story.retry()
        assert story.job.active == ("flight",)

    def test_retry_begins_with_the_undone_step_if_cancelled_between_two_steps(self) -> None:
        story = Story(protocol(undone_by("a"), task("b"), compensate_on_cancel=True)).processing()
        story.cancel()
        story.succeed()
        story.do("undo-a")
        assert story.status is JobStatus.CANCELLED
        story.retry()
        assert story.job.active == ("a",)

    def test_partial_effect_during_a_cancel_opens_a_review_item(self) -> None:
        story = booked()
        story.ack()
        story.cancel()
        story.fail(failure_class=F.COMPENSATION_REQUIRED)
        assert story.status is JobStatus.CANCELLED
        assert story.open_reviews() == [("COMPENSATION", "pay")]
        story.compensate()
        assert story.job.active == ("undo-hotel",)


class TestLateSuccessOfAHandler:
    def halted(self) -> Story:
        """Return a job whose hotel handler got no ACK and failed at its second attempt; then the first succeeded."""
        story = booked(compensation="auto").botch("pay")
        fenced = story.lease_of("undo-hotel")
        story.hand_over()
        story.tick_when_due()
        story.next_attempt().botch("undo-hotel")
        assert story.succeed(fenced) is Disposition.STALE
        return story

    def test_adopting_a_late_handler_success_resumes_compensation_after_it(self) -> None:
        story = self.halted()
        assert story.adopt() == Applied()
        assert story.status_of("undo-hotel") == "SUCCEEDED"
        assert story.job.active == ("undo-flight",)
        story.do("undo-flight")
        assert story.job.compensation is not None
        assert story.job.compensation.done == ("hotel", "flight")

    def test_late_handler_success_is_adopted_while_a_newer_attempt_runs(self) -> None:
        story = booked(compensation="auto").botch("pay")
        fenced = story.lease_of("undo-hotel")
        story.hand_over()
        story.tick_when_due()
        story.next_attempt()
        story.succeed(fenced)
        story.adopt()
        assert story.job.active == ("undo-flight",)

    def test_late_handler_success_cannot_be_adopted_after_the_item_is_discarded(self) -> None:
        story = self.halted()
        story.discard()
        assert code_of(story.adopt()) == "STEP_NOT_FOUND"


class TestCancelOfAPausedCompensation:
    def paused(self) -> Story:
        story = booked(compensation="auto").botch("pay")
        story.hand_over()
        story.pause()
        return story

    def test_handler_that_succeeds_before_the_cancel_has_undone_its_step(self) -> None:
        story = self.paused()
        story.succeed()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.job.compensable == ("flight",)
        story.retry()
        assert story.job.active == ("hotel",)

    def test_handler_that_succeeds_after_the_cancel_has_undone_its_step(self) -> None:
        story = self.paused()
        story.cancel()
        assert story.status == "CANCELLING"
        story.succeed()
        assert story.status == "CANCELLED"
        assert story.job.compensable == ("flight",)
        story.compensate()
        assert story.job.active == ("undo-flight",)

    def test_failed_handler_leaves_its_step_to_be_undone(self) -> None:
        story = self.paused()
        story.fail_for_good()
        story.cancel()
        assert story.job.compensable == ("flight", "hotel")
        story.retry()
        assert story.job.active == ("pay",)

    def test_retry_after_the_cancel_begins_with_an_undone_step_and_not_with_a_handler(self) -> None:
        story = booked(compensation="auto").botch("pay").do("undo-hotel")
        story.pause()
        story.cancel()
        story.retry()
        assert story.job.active == ("hotel",)


def test_job_resumed_after_its_item_was_discarded_opens_a_new_one() -> None:
    story = Story(protocol(risky("pay"), task("mail"))).processing()
    story.pause()
    story.fail()
    assert story.open_reviews() == [("COMPENSATION", "pay")]
    story.discard()
    story.resume()
    assert story.open_reviews() == [("COMPENSATION", "pay")]
    assert code_of(story.resume()) == "REVIEW_OPEN"
