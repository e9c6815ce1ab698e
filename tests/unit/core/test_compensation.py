"""Rule 11 of DESIGN §3: what must not be repeated, and how what was done is undone: by policy or by a person."""

import pytest

from lucius.core.decision import Applied, Ignored
from lucius.core.model import BlockedReason, Disposition, FailureClass, JobStatus, ReviewStatus
from tests.unit.core.acts import code_of
from tests.unit.core.bookings import booked
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import call, each, parallel, protocol, risky, task, undone_by, wait_for

F = FailureClass


class TestNotSafe:
    @pytest.mark.parametrize("cause", FailureClass)
    def test_whatever_its_service_reports_it_is_not_tried_again(self, cause: FailureClass) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched().botch("pay", cause)
        assert (story.status_of("pay"), story.status) == ("FAILED_FINAL", JobStatus.PAUSED)
        assert story.history("pay") == ["FAILED"]
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    @pytest.mark.parametrize("end", ["ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"])
    def test_nor_after_a_timeout(self, end: str) -> None:
        fields = {"timeout_ms": MINUTE} if end == "STEP_TIMEOUT" else {}
        story = Story(protocol(risky("pay", **fields), task("mail"))).dispatched()
        story.hand_over()
        if end != "ACK_TIMEOUT":
            story.ack()
        story.tick_when_due()
        assert story.history("pay") == [end]
        assert (story.status_of("pay"), story.status) == ("FAILED_FINAL", JobStatus.PAUSED)

    def test_a_failure_path_is_not_taken_either(self) -> None:
        shape = protocol(risky("pay", on_failure="mail", on_timeout="mail"), task("mail"))
        assert Story(shape).dispatched().botch("pay").status is JobStatus.PAUSED

    def test_one_that_surely_was_not_handed_over_is_tried_again(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched()
        story.refuse_hand_over()
        assert story.status_of("pay") == "FAILED_RETRY"
        story.next_attempt().do("pay")
        assert story.job.active == ("mail",)

    def test_one_that_could_never_be_handed_over_just_fails(self) -> None:
        story = Story(protocol(risky("pay", on_failure="mail"), task("other"), task("mail"))).dispatched()
        for _ in range(2):
            story.refuse_hand_over()
            story.next_attempt()
        story.refuse_hand_over()
        assert story.job.active == ("mail",)

    def test_a_publish_whose_outcome_is_unknown_counts_as_handed_over(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).claimed()
        story.books.lose_row(story.attempt.outbox_id)
        story.repair("pay")
        assert story.status_of("pay") == "INITIATED"
        story.tick_when_due()
        assert story.status is JobStatus.PAUSED

    def test_a_person_may_have_it_done_again(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched().botch("pay")
        key = story.steps["pay"].idempotency_key
        assert story.retry() == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("pay",))
        assert story.steps["pay"].idempotency_key == key
        assert story.do("pay", "mail").status is JobStatus.SUCCEEDED

    def test_one_that_is_stopped_while_a_service_has_it_is_for_a_person_to_look_at(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), task("other")), task("mail"))).dispatched()
        story.ack(story.lease_of("pay"))
        story.botch("other")
        assert story.status_of("pay") == "CANCELLED"
        assert story.open_reviews() == [("COMPENSATION", "pay"), ("JOB_FAILED", "other")]

    def test_one_that_is_stopped_before_anyone_had_it_is_not(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), task("other")), task("mail"))).dispatched().botch("other")
        assert story.open_reviews() == [("JOB_FAILED", "other")]

    def test_a_safe_step_that_left_half_an_effect_needs_compensation_too(self) -> None:
        story = Story(protocol(task("pay", on_failure="mail"), task("mail"))).dispatched()
        story.botch("pay", F.COMPENSATION_REQUIRED)
        assert story.status is JobStatus.PAUSED
        assert story.open_reviews() == [("COMPENSATION", "pay")]


class TestAuto:
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

    def test_the_failed_steps_own_handler_is_the_first(self) -> None:
        story = booked(undone_by("pay", retry_safety="NOT_SAFE_TO_RETRY"), compensation="auto").botch("pay")
        assert story.job.active == ("undo-pay",)

    def test_without_handlers_the_job_just_fails(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"), compensation="auto")).dispatched().botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_an_ordinary_failure_undoes_nothing(self) -> None:
        story = booked(task("pay"), compensation="auto").botch("pay")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == [("JOB_FAILED", "pay")]

    def test_nothing_else_runs_meanwhile(self) -> None:
        shape = protocol(
            parallel("p", [undone_by("a"), risky("pay")], task("b"), wait_for("w", "go")), compensation="auto"
        )
        story = Story(shape).dispatched().do("a")
        story.ack(story.lease_of("b"))
        story.botch("pay")
        assert story.job.active == ("undo-a",)
        assert story.statuses("b", "w", "p") == ["CANCELLED", "CANCELLED", "CANCELLED"]
        assert story.do("undo-a").status is JobStatus.FAILED_FINAL

    def test_a_wide_job_is_cleared_first(self) -> None:
        wide = each("m", "range(40)", task("x"), at_once=31)
        shape = protocol(undone_by("a"), parallel("p", wide, risky("pay")), compensation="auto")
        story = Story(shape).dispatched().do("a").settle()
        assert len(story.job.active) == 32
        story.botch("pay").settle()
        assert story.job.active == ("undo-a",)

    def test_what_is_done_while_it_is_being_cleared_is_undone_first(self) -> None:
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

    def test_what_is_still_to_be_cleared_is_not_tried_again(self) -> None:
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

    def test_handlers_see_what_the_steps_came_to(self) -> None:
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

    def test_the_jobs_time_does_not_run_while_handlers_do(self) -> None:
        story = booked(compensation="auto", timeout_ms=MINUTE).botch("pay")
        assert story.job.deadline is None
        story.wait(60 * MINUTE).do("undo-hotel", "undo-flight")
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"

    def test_it_can_be_paused_and_resumed(self) -> None:
        story = booked(compensation="auto").botch("pay")
        story.pause()
        story.ack(story.lease_of("undo-hotel"))
        story.succeed(story.lease_of("undo-hotel"))
        assert (story.status, story.job.active) == (JobStatus.PAUSED, ())
        story.resume()
        assert story.job.active == ("undo-flight",)

    def test_it_cannot_be_cancelled(self) -> None:
        story = booked(compensation="auto").botch("pay")
        assert code_of(story.cancel()) == "COMPENSATING"

    def test_two_failures_at_once_are_both_undone(self) -> None:
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

    def test_each_act_is_audited(self) -> None:
        story = booked(compensation="auto").botch("pay").do("undo-hotel", "undo-flight")
        acts = [(e.type, e.data) for e in story.books.events if "COMPENSAT" in e.type]
        assert acts == [
            ("COMPENSATION_STARTED", {"by": "engine", "steps": ["hotel", "flight"]}),
            ("STEP_COMPENSATED", {"of": "hotel", "handler": "undo-hotel"}),
            ("STEP_COMPENSATED", {"of": "flight", "handler": "undo-flight"}),
            ("COMPENSATION_COMPLETED", {"steps": ["hotel", "flight"]}),
        ]


class TestManual:
    def test_the_job_is_held_on_the_review_until_a_person_acts(self) -> None:
        story = booked().botch("pay")
        assert story.status is JobStatus.PAUSED
        assert story.job.blocked is not None
        assert story.job.blocked.reason is BlockedReason.REVIEW
        assert code_of(story.resume()) == "REVIEW_OPEN"
        assert isinstance(story.pause(), Ignored)
        assert isinstance(story.wait(10**9).tick(), Ignored)

    def test_a_person_can_have_it_undone(self) -> None:
        story = booked().botch("pay")
        item = story.own_review
        assert story.compensate() == Applied()
        assert (story.status, story.job.active) == (JobStatus.IN_PROGRESS, ("undo-hotel",))
        story.do("undo-hotel", "undo-flight")
        assert (story.status, story.job.run_no) == (JobStatus.FAILED_FINAL, 1)
        closed = story.books.reviews[item.review_id]
        assert (closed.status, closed.resolved_by, closed.act) == (ReviewStatus.RESOLVED, "ada", "compensate")
        assert story.open_reviews() == []

    def test_a_person_can_say_that_it_took_effect(self) -> None:
        story = booked().botch("pay")
        assert story.skip({"paid": True}) == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("mail",))
        assert story.do("mail").status is JobStatus.SUCCEEDED

    def test_a_person_can_let_it_be(self) -> None:
        story = booked().botch("pay")
        story.discard()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.open_reviews() == []
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"

    def test_a_person_can_cancel_it_and_the_review_stays_open(self) -> None:
        story = booked().botch("pay")
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.open_reviews() == [("COMPENSATION", "pay")]

    def test_without_handlers_there_is_nothing_to_undo(self) -> None:
        story = Story(protocol(risky("pay"), task("mail"))).dispatched().botch("pay")
        assert code_of(story.compensate()) == "NOTHING_TO_COMPENSATE"

    def test_what_runs_beside_it_goes_on_and_is_recorded(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), [task("a"), task("b")]))).dispatched()
        story.ack(story.lease_of("a"))
        story.botch("pay")
        assert story.succeed(story.lease_of("a")) is Disposition.APPLIED
        assert (story.status, story.status_of("b")) == (JobStatus.PAUSED, "PENDING")

    def test_what_waits_in_the_outbox_beside_it_stays_there(self) -> None:
        story = Story(protocol(parallel("p", risky("pay"), task("a")))).dispatched().botch("pay")
        assert isinstance(story.claim(story.lease_of("a")), Ignored)
        assert all(row.next_attempt_at is not None for row in story.pending_rows())
