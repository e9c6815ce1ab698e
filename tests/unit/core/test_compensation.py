"""Rule 11 of DESIGN §3: what must not be repeated, and how what was done is undone: by policy or by a person."""

import pytest

from lucius.core.decision import Applied, Ignored
from lucius.core.model import AttemptOutcome, BlockedReason, Disposition, FailureClass, JobStatus, ReviewStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import call, decision, each, parallel, protocol, risky, task, undone_by, wait_for

F = FailureClass


def booked(*more: object, **policies: object) -> Story:
    """Book a flight and a hotel, both of which can be undone; then pay, which must not be repeated."""
    steps = (undone_by("flight"), undone_by("hotel"), *(more or (risky("pay"),)), task("mail"))
    story = Story(protocol(*steps, **policies)).dispatched()  # type: ignore[arg-type]
    return story.do("flight", "hotel")


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
