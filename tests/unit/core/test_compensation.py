"""Steps that are unsafe to retry, and compensation by policy or by an operator."""

from typing import Any

import pytest

from lucius.core.model.decision import Applied, Ignored
from lucius.core.model.statuses import BlockedReason, Disposition, FailureClass, JobStatus, ReviewStatus
from tests.unit.core.acts import code_of
from tests.unit.core.bookings import booked
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import call, each, parallel, protocol, risky, task, undone_by, wait_for

F = FailureClass


class TestStepNotSafeToRetry:
    @pytest.mark.parametrize("cause", FailureClass)
    def test_not_safe_step_is_not_retried_after_any_reported_failure(self, cause: FailureClass) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched().botch("pay", cause)
        assert (story.status_of("pay"), story.status) == ("FAILED_FINAL", JobStatus.PAUSED)
        assert story.history("pay") == ["FAILED"]
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    @pytest.mark.parametrize("end", ["ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"])
    def test_not_safe_step_is_not_retried_after_a_timeout(self, end: str) -> None:
        fields = {"timeout_ms": MINUTE} if end == "STEP_TIMEOUT" else {}
        story = Story(protocol(risky("pay", **fields), task("mail"))).dispatched()
        story.hand_over()
        if end != "ACK_TIMEOUT":
            story.ack()
        story.tick_when_due()
        assert story.history("pay") == [end]
        assert (story.status_of("pay"), story.status) == ("FAILED_FINAL", JobStatus.PAUSED)

    def test_failed_not_safe_step_does_not_take_its_failure_path(self) -> None:
        shape = protocol(risky("pay", on_failure="mail", on_timeout="mail"), task("mail"))
        assert Story(shape).dispatched().botch("pay").status is JobStatus.PAUSED

    def test_not_safe_step_is_retried_if_its_hand_over_was_refused(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched()
        story.refuse_hand_over()
        assert story.status_of("pay") == "FAILED_RETRY"
        story.next_attempt().do("pay")
        assert story.job.active == ("mail",)

    def test_not_safe_step_never_handed_over_takes_its_failure_path(self) -> None:
        story = Story(protocol(risky("pay", on_failure="mail"), task("other"), task("mail"))).dispatched()
        for _ in range(2):
            story.refuse_hand_over()
            story.next_attempt()
        story.refuse_hand_over()
        assert story.job.active == ("mail",)

    def test_a_publish_whose_outcome_is_unknown_counts_as_handed_over(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).claimed()
        story.records.lose_row(story.attempt.outbox_id)
        story.repair("pay")
        assert story.status_of("pay") == "INITIATED"
        story.tick_when_due()
        assert story.status is JobStatus.PAUSED

    def test_operator_may_retry_a_not_safe_step(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched().botch("pay")
        key = story.steps["pay"].idempotency_key
        assert story.retry() == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("pay",))
        assert story.steps["pay"].idempotency_key == key
        assert story.do("pay", "mail").status is JobStatus.SUCCEEDED

    def test_not_safe_step_stopped_after_its_ack_opens_a_review_item(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), task("other")), task("mail"))).dispatched()
        story.ack(story.lease_of("pay"))
        story.botch("other")
        assert story.status_of("pay") == "CANCELLED"
        assert story.open_reviews() == [("COMPENSATION", "pay"), ("JOB_FAILED", "other")]

    def test_not_safe_step_stopped_before_hand_over_opens_no_review_item(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), task("other")), task("mail"))).dispatched().botch("other")
        assert story.open_reviews() == [("JOB_FAILED", "other")]

    def test_safe_step_with_a_partial_effect_is_held_for_compensation(self) -> None:
        story = Story(protocol(task("pay", on_failure="mail"), task("mail"))).dispatched()
        story.botch("pay", F.COMPENSATION_REQUIRED)
        assert story.status is JobStatus.PAUSED
        assert story.open_reviews() == [("COMPENSATION", "pay")]


class TestAutoPolicy:
    def test_handlers_run_in_reverse_order_and_the_job_ends_failed(self) -> None:
        story = booked(compensation="auto").botch("pay")
        assert story.job.active == ("undo-hotel",)
        assert story.job.blocked is not None
        assert story.job.blocked.step_id == "undo-hotel"
        story.do("undo-hotel")
        assert story.job.active == ("undo-flight",)
        story.do("undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"
        assert story.job.compensation is not None
        assert story.job.compensation.done == ("hotel", "flight")
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_handler_of_the_failed_step_runs_first(self) -> None:
        story = booked(undone_by("pay", retry_safety="NOT_SAFE_TO_RETRY"), compensation="auto").botch("pay")
        assert story.job.active == ("undo-pay",)

    def test_job_without_handlers_fails_with_a_review_item(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"), compensation="auto")).dispatched().botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_ordinary_failure_runs_no_handlers(self) -> None:
        story = booked(task("pay"), compensation="auto").botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == [("JOB_FAILED", "pay")]

    def test_other_branches_are_cancelled_before_compensation(self) -> None:
        shape = protocol(
            parallel("p", [undone_by("a"), risky("pay")], task("b"), wait_for("w", "go")), compensation="auto"
        )
        story = Story(shape).dispatched().do("a")
        story.ack(story.lease_of("b"))
        story.botch("pay")
        assert story.job.active == ("undo-a",)
        assert story.statuses("b", "w", "p") == ["CANCELLED", "CANCELLED", "CANCELLED"]
        assert story.do("undo-a").status is JobStatus.FAILED_FINAL

    def test_job_with_many_live_steps_is_cleared_before_compensation(self) -> None:
        wide = each("m", "range(40)", task("x"), at_once=31)
        shape = protocol(undone_by("a"), parallel("p", wide, risky("pay")), compensation="auto")
        story = Story(shape).dispatched().do("a").settle()
        assert len(story.job.active) == 32
        story.botch("pay").settle()
        assert story.job.active == ("undo-a",)

    def test_step_that_succeeds_while_the_job_is_cleared_is_undone_first(self) -> None:
        wide = each("m", "range(40)", task("x"), at_once=30)
        late = [task("first"), undone_by("b")]
        shape = protocol(undone_by("a"), parallel("p", wide, risky("pay"), late), compensation="auto")
        story = Story(shape).dispatched().do("a").settle().do("first")
        story.botch("pay")
        assert story.job.compensation is not None
        assert not story.job.compensation.cleared
        story.succeed(story.lease_of("b"))
        story.settle()
        assert story.job.active == ("undo-b",)
        assert story.do("undo-b").job.active == ("undo-a",)

    def test_step_waiting_to_be_cleared_is_not_retried(self) -> None:
        wide = each("m", "range(40)", task("x"), at_once=30)
        story = Story(protocol(undone_by("a"), parallel("p", wide, risky("pay")), compensation="auto")).dispatched()
        story.do("a").settle()
        for item in range(30):
            story.fail(story.lease_of(f"x.{item}"))
        story.wait(MINUTE).botch("pay")
        assert story.status_of("x.29") == "FAILED_RETRY"
        story.tick()
        assert story.history("x.29") in ([], ["FAILED"])
        assert story.settle().job.active == ("undo-a",)
        assert story.history("x.29") == ["FAILED"]

    def test_handlers_see_the_results_of_their_steps(self) -> None:
        refund = call("refund", {"flight": "${steps.flight.result.no}"})
        steps = (task("flight", compensation=refund), risky("pay"))
        story = (
            Story(protocol(*steps, compensation="auto")).dispatched().do("flight", result={"no": "LH1"}).botch("pay")
        )
        request = story.steps["refund"].request
        assert request is not None
        assert request.body == {"flight": "LH1"}

    def test_handlers_are_retried_like_any_step(self) -> None:
        story = booked(compensation="auto").botch("pay")
        story.fail()
        assert story.status_of("undo-hotel") == "FAILED_RETRY"
        story.next_attempt().do("undo-hotel")
        assert story.job.active == ("undo-flight",)

    def test_job_timeout_is_suspended_during_compensation(self) -> None:
        story = booked(compensation="auto", timeout_ms=MINUTE).botch("pay")
        assert story.job.deadline is None
        story.wait(60 * MINUTE).do("undo-hotel", "undo-flight")
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"

    def test_compensation_can_be_paused_and_resumed(self) -> None:
        story = booked(compensation="auto").botch("pay")
        story.pause()
        story.ack(story.lease_of("undo-hotel"))
        story.succeed(story.lease_of("undo-hotel"))
        assert (story.status, story.job.active) == (JobStatus.PAUSED, ())
        story.resume()
        assert story.job.active == ("undo-flight",)

    def test_running_compensation_cannot_be_cancelled(self) -> None:
        story = booked(compensation="auto").botch("pay")
        assert code_of(story.cancel()) == "COMPENSATING"

    def test_two_simultaneous_failures_are_both_undone(self) -> None:
        both = parallel(
            "p", undone_by("x", retry_safety="NOT_SAFE_TO_RETRY"), undone_by("y", retry_safety="NOT_SAFE_TO_RETRY")
        )
        story = booked(both, compensation="auto")
        story.pause()
        for step in ("x", "y"):
            story.ack(story.lease_of(step))
            story.fail(story.lease_of(step))
        story.resume()
        story.settle()
        undone = []
        while story.job.live:
            [handler] = story.job.active
            undone.append(handler)
            story.do(handler)
        assert undone == ["undo-y", "undo-x", "undo-hotel", "undo-flight"]

    def test_each_compensation_event_is_audited(self) -> None:
        story = booked(compensation="auto").botch("pay").do("undo-hotel", "undo-flight")
        acts = [(e.type, e.data) for e in story.records.events if "COMPENSAT" in e.type]
        assert acts == [
            ("COMPENSATION_STARTED", {"by": "engine", "steps": ["hotel", "flight"]}),
            ("STEP_COMPENSATED", {"of": "hotel", "handler": "undo-hotel"}),
            ("STEP_COMPENSATED", {"of": "flight", "handler": "undo-flight"}),
            ("COMPENSATION_COMPLETED", {"steps": ["hotel", "flight"]}),
        ]


class TestManualPolicy:
    def test_job_is_held_for_review_until_an_operator_acts(self) -> None:
        story = booked().botch("pay")
        assert story.status is JobStatus.PAUSED
        assert story.job.blocked is not None
        assert story.job.blocked.reason is BlockedReason.REVIEW
        assert code_of(story.resume()) == "REVIEW_OPEN"
        assert isinstance(story.pause(), Ignored)
        assert isinstance(story.wait(10**9).tick(), Ignored)

    def test_operator_can_compensate_the_held_job(self) -> None:
        story = booked().botch("pay")
        item = story.own_review
        assert story.compensate() == Applied()
        assert (story.status, story.job.active) == (JobStatus.IN_PROGRESS, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert (story.status, story.job.run_no) == (JobStatus.FAILED_FINAL, 1)
        closed = story.records.reviews[item.review_id]
        assert (closed.status, closed.resolved_by, closed.act) == (ReviewStatus.RESOLVED, "ada", "compensate")
        assert story.open_reviews() == []

    def test_operator_can_skip_the_failed_step_with_a_result(self) -> None:
        story = booked().botch("pay")
        assert story.skip({"paid": True}) == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("mail",))
        assert story.do("mail").status is JobStatus.SUCCEEDED

    def test_operator_can_discard_the_item_and_the_job_fails(self) -> None:
        story = booked().botch("pay")
        story.discard()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == []
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"

    def test_cancel_of_the_held_job_leaves_the_review_item_open(self) -> None:
        story = booked().botch("pay")
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_compensate_without_handlers_is_refused(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched().botch("pay")
        assert code_of(story.compensate()) == "NOTHING_TO_COMPENSATE"

    def test_result_of_a_parallel_step_is_recorded_while_the_job_is_held(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), [task("a"), task("b")]))).dispatched()
        story.ack(story.lease_of("a"))
        story.botch("pay")
        assert story.succeed(story.lease_of("a")) is Disposition.APPLIED
        assert (story.status, story.status_of("b")) == (JobStatus.PAUSED, "PENDING")

    def test_pending_row_of_a_parallel_step_stays_in_the_outbox_while_the_job_is_held(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), task("a")))).dispatched().botch("pay")
        assert isinstance(story.claim(story.lease_of("a")), Ignored)
        assert all(row.next_attempt_at is not None for row in story.pending_rows())


class TestStoppedBranches:
    def stopped(self, **policies: Any) -> Story:
        """Return a job whose other branch fails while a service pays."""
        branches = parallel("p", risky("pay", compensation=task("refund")), task("print"), **policies.pop("step", {}))
        story = Story(protocol(undone_by("flight"), branches, task("mail"), **policies)).dispatched().do("flight")
        story.ack(story.lease_of("pay"))
        return story.botch("print")

    def test_stopped_branch_is_undone_first_when_the_job_fails_under_auto(self) -> None:
        story = self.stopped(compensate_on_failure=True, compensation="auto")
        story.do("refund", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.undone == ("pay", "flight")
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_stopped_branch_holds_the_failed_job_for_a_person_under_manual(self) -> None:
        story = self.stopped(compensate_on_failure=True, compensation="manual")
        assert (story.status, story.job.active) == (JobStatus.PAUSED, ())
        assert story.open_reviews() == [("COMPENSATION", "pay")]
        assert story.compensate() == Applied()
        story.do("refund", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.undone == ("pay", "flight")
        assert story.open_reviews() == []

    def test_discarding_the_item_of_a_stopped_branch_ends_the_job_with_its_own_failure(self) -> None:
        story = self.stopped(compensate_on_failure=True, compensation="manual")
        story.discard()
        assert (story.status, story.job.undone) == (JobStatus.FAILED_FINAL, ())
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"

    def test_stopped_branch_can_be_undone_by_a_person_without_the_policy(self) -> None:
        story = self.stopped(compensation="auto")
        assert (story.status, story.job.undone) == (JobStatus.FAILED_FINAL, ())
        assert story.open_reviews() == [("COMPENSATION", "pay"), ("JOB_FAILED", "print")]
        assert story.compensate() == Applied()
        assert story.do("refund", "undo-flight").job.undone == ("pay", "flight")

    def test_failure_path_of_the_container_is_taken_and_the_item_stays_open(self) -> None:
        story = self.stopped(compensate_on_failure=True, compensation="manual", step={"on_failure": "mail"})
        assert story.do("mail").status is JobStatus.SUCCEEDED
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_timeout_after_the_failure_path_is_the_error_of_the_job(self) -> None:
        policies = {"compensate_on_failure": True, "compensation": "auto", "timeout_ms": MINUTE}
        story = self.stopped(**policies, step={"on_failure": "mail"})
        story.wait(2 * MINUTE).tick()
        story.do("refund", "undo-flight")
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"

    def test_later_failure_without_retry_leaves_the_first_item_open(self) -> None:
        branches = parallel("p", risky("pay"), task("print"), on_failure="post")
        story = Story(protocol(branches, risky("post"), compensate_on_failure=True)).dispatched()
        story.ack(story.lease_of("pay"))
        story.botch("print").botch("post")
        assert story.status is JobStatus.PAUSED
        assert story.open_reviews() == [("COMPENSATION", "pay"), ("COMPENSATION", "post")]

    def test_branch_stopped_by_the_compensation_is_undone_before_the_rest_and_its_container(self) -> None:
        branches = parallel(
            "p",
            risky("pay", compensation=task("refund")),
            risky("post", compensation=task("recall")),
            compensation=task("close"),
        )
        story = Story(protocol(undone_by("flight"), branches, compensation="auto")).dispatched().do("flight")
        story.ack(story.lease_of("pay"))
        story.ack(story.lease_of("post"))
        story.botch("pay").do("recall", "refund", "close", "undo-flight")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.undone == ("post", "pay", "p", "flight")
        assert story.open_reviews() == [("COMPENSATION", "pay"), ("COMPENSATION", "post")]
