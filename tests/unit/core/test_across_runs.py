"""State carried from one visit or run to the next: results, keys, guards, effects to undo, and review items."""

import pytest

from lucius.core.decide.derived_state import is_result_valid
from lucius.core.model.decision import Applied, Ignored, Refused
from lucius.core.model.inputs import HandedOver
from lucius.core.model.statuses import FailureClass, JobStatus, ReviewKind, ReviewStatus, StepStatus
from lucius.usecases.handover.rendering import render_guard
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import call, decision, each, parallel, protocol, risky, task, undone_by, wait_until

UNDO = FailureClass.COMPENSATION_REQUIRED


@pytest.mark.parametrize(
    "until", [253_402_300_800_000, -1, "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", True, 1.5, None]
)
def test_wait_until_an_unrepresentable_instant_fails_the_step(until: object) -> None:
    story = Story(protocol(wait_until("w", "input.at")), payload={"at": until}).dispatched()
    assert story.status is JobStatus.FAILED_FINAL
    assert story.job.error is not None
    assert story.job.error.code == "EXPRESSION_FAILED"


def two_at_risk() -> Story:
    story = Story(protocol(parallel("p", risky("a"), risky("b")))).dispatched()
    story.hand_over(story.lease_of("a"))
    story.hand_over(story.lease_of("b"))
    story.fail(story.lease_of("a"), UNDO)
    story.fail(story.lease_of("b"), UNDO)
    return story


def test_second_side_effect_in_a_held_job_opens_its_own_review_item() -> None:
    story = two_at_risk()
    assert story.open_reviews() == [(ReviewKind.COMPENSATION, "a"), (ReviewKind.COMPENSATION, "b")]
    story.discard()
    story.settle()
    assert story.status is JobStatus.FAILED_FINAL
    assert story.open_reviews() == [(ReviewKind.COMPENSATION, "b")]


def test_side_effect_in_a_paused_job_opens_one_review_item_at_once() -> None:
    story = Story(protocol(risky("a"))).dispatched()
    story.hand_over(story.lease_of("a"))
    story.pause()
    story.fail(story.lease_of("a"), UNDO)
    assert story.open_reviews() == [(ReviewKind.COMPENSATION, "a")]
    story.resume()
    assert story.open_reviews() == [(ReviewKind.COMPENSATION, "a")]
    assert story.job.blocked is not None
    assert story.job.blocked.reason == "REVIEW"


def test_a_late_result_of_another_visit_is_not_adopted() -> None:
    story = Story(protocol(task("x"), decision("more", {"job.run_no > 0": "x"}))).dispatched()
    story.hand_over(story.lease_of("x"))
    first = story.lease_of("x")
    story.tick_when_due()
    story.tick_when_due()
    story.do("x")
    assert story.steps["x"].visit == 2
    story.succeed(first)
    reply = story.adopt()
    assert isinstance(reply, Refused)
    assert reply.code == "ACT_NOT_APPLICABLE"


def test_late_result_after_the_failed_step_is_not_adopted() -> None:
    story = Story(protocol(task("a"), task("b"), task("c"))).dispatched()
    story.do("a")
    story.hand_over(story.lease_of("b"))
    late = story.lease_of("b")
    story.tick_when_due()
    story.tick_when_due()
    story.botch("b")
    story.retry("a")
    story.botch("a")
    story.succeed(late)
    reply = story.adopt()
    assert isinstance(reply, Refused)
    assert reply.code == "STEP_NOT_REACHED"


def test_result_adopted_inside_a_map_is_not_repeated() -> None:
    story = Story(
        protocol(task("first"), each("m", "input.l", task("x"), at_once=1), task("end")), payload={"l": [1, 2]}
    ).dispatched()
    story.do("first", "x.0")
    story.hand_over(story.lease_of("x.1"))
    late = story.lease_of("x.1")
    story.tick_when_due()
    story.tick_when_due()
    story.botch("x.1")
    story.retry()
    story.botch("x.1")
    story.succeed(late)
    assert isinstance(story.adopt(), Applied)
    story.settle()
    assert story.steps["x.1"].status is StepStatus.SUCCEEDED
    assert story.steps["end"].status is StepStatus.DISPATCHING


def test_undone_steps_are_still_recorded_after_a_cancel() -> None:
    steps = (undone_by("a"), undone_by("b"), task("c"))
    story = Story(protocol(*steps, compensation="auto")).dispatched()
    story.do("a", "b")
    story.hand_over(story.lease_of("c"))
    story.fail(story.lease_of("c"), UNDO)
    story.do("undo-b")
    story.botch("undo-a")
    assert story.job.blocked is not None
    assert story.job.blocked.reason == "REVIEW"
    story.cancel()
    assert story.status is JobStatus.CANCELLED
    assert story.job.undone == ("b",)
    story.retry()
    assert story.steps["b"].status is StepStatus.DISPATCHING, "the run starts with what was undone"


def test_handler_of_a_map_runs_if_one_item_requires_compensation() -> None:
    mapped = each("m", "input.list", risky("x"), compensation=task("undo-m"))
    story = Story(protocol(mapped, compensation="auto"), payload={"list": [1, 2, 3]}).dispatched()
    story.do("x.0", "x.1")
    story.botch("x.2", UNDO)
    assert story.steps["undo-m"].status is StepStatus.DISPATCHING


def test_handler_sees_the_earlier_result_of_a_step_that_failed_when_repeated() -> None:
    handler = call("undo-a", body={"cancel": "${steps.a.result['id']}"})
    story = Story(protocol(task("a", compensation=handler), task("b"))).dispatched()
    story.do("a", result={"id": 7})
    story.botch("b")
    story.retry("a")
    story.botch("a")
    story.compensate()
    request = story.steps["undo-a"].request
    assert request is not None
    assert request.body == {"cancel": 7}


def test_skipped_step_is_never_compensated() -> None:
    story = Story(protocol(undone_by("a"), task("b"))).dispatched()
    story.botch("a")
    story.skip({"supplied": True})
    story.botch("b")
    reply = story.compensate()
    assert isinstance(reply, Refused)
    assert reply.code == "NOTHING_TO_COMPENSATE"


@pytest.mark.parametrize("why", ["the time is up", "a branch failed"])
def test_hand_over_of_a_step_being_stopped_is_ignored(why: str) -> None:
    branches = [task(f"s{n}") for n in range(24)]
    story = Story(protocol(parallel("p", *branches), timeout_ms=MINUTE)).dispatched()
    story.settle()
    last = story.lease_of("s23")
    if why == "the time is up":
        story.wait(MINUTE)
        story.tick()
    else:
        story.botch("s0")
    assert story.steps["s23"].status is StepStatus.DISPATCHING, "one decision can't stop all of them"
    assert isinstance(story.feed(HandedOver(*last)), Ignored)
    story.settle()
    assert not story.job.live


def test_first_visit_of_a_new_run_has_a_key_unlike_later_visits() -> None:
    story = Story(protocol(task("first"), task("x"), decision("more", {"job.run_no > 0": "x"}))).dispatched()
    story.do("first", "x")
    story.botch("x")
    before = {attempt.idempotency_key for (step_id, _), attempt in story.records.history.items() if step_id == "x"}
    story.retry("first")
    story.do("first")
    assert story.steps["x"].idempotency_key not in before


def test_guard_is_required_only_if_the_same_work_may_have_been_done() -> None:
    guarded = task("x", retry_safety="SAFE_TO_RETRY_WITH_GUARD", guard={"look": "there"})
    story = Story(protocol(guarded, decision("more", {"job.run_no > 0": "x"}))).dispatched()
    spec = story.protocol.plan.places["x"].spec
    assert render_guard(spec, story.steps["x"]) is None
    story.do("x")
    assert story.steps["x"].visit == 2
    assert render_guard(spec, story.steps["x"]) is None, "another visit is other work"
    story.botch("x", FailureClass.TRANSIENT)
    story.tick_when_due()
    assert render_guard(spec, story.steps["x"]) == {"previous_attempts": 1, "look": "there"}


def test_results_dropped_by_one_run_are_not_restored_by_the_next() -> None:
    ways = decision("d", {"steps.start.result['to'] == 'alt'": "alt"}, otherwise="main")
    story = Story(protocol(task("start"), ways, task("alt", on_success="end"), task("main"), task("end"))).dispatched()
    story.do("start", result={"to": "alt"})
    story.do("alt")
    story.botch("end")
    story.retry("start")
    story.do("start", result={"to": "main"})
    story.do("main")
    story.botch("end")
    story.retry("end")
    assert is_result_valid(story.job, story.steps["main"])
    assert not is_result_valid(story.job, story.steps["alt"])


def test_collected_failure_is_not_reported_as_the_cause_of_a_later_one() -> None:
    mapped = each("m", "input.l", task("x"), join="collect")
    story = Story(protocol(mapped, task("tell", on_success="FAIL")), payload={"l": [1]}).dispatched()
    story.botch("x.0")
    story.do("tell")
    assert story.status is JobStatus.FAILED_FINAL
    assert story.job.failure is not None
    assert story.job.failure.step_id != "x.0"


def test_job_paused_during_compensation_can_be_cancelled() -> None:
    story = Story(protocol(undone_by("a"), task("b"), compensation="auto")).dispatched()
    story.do("a")
    story.hand_over(story.lease_of("b"))
    story.fail(story.lease_of("b"), UNDO)
    story.pause()
    assert isinstance(story.cancel(), Applied)
    story.settle()
    assert story.status is JobStatus.CANCELLED
    assert [item.status for item in story.records.reviews.values()] == [ReviewStatus.OPEN]
