"""Loops: a step is visited as often as its limit allows, each visit with an effect of its own."""

import pytest

from lucius.core.model.statuses import JobStatus
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import approval, decision, each, pause_for, protocol, task, wait_for


def polling(max_visits: int = 3) -> Story:
    """Return a job that asks, waits a minute, and asks again until it is done."""
    shape = protocol(
        task("ask", max_visits=max_visits),
        decision("done", {"steps.ask.result.done": "SUCCEED"}, otherwise="rest", max_visits=100),
        pause_for("rest", MINUTE, on_success="ask", max_visits=100),
    )
    return Story(shape).dispatched()


def test_loop_repeats_until_its_decision_ends_it() -> None:
    story = polling()
    story.do("ask", result={"done": False})
    assert story.job.active == ("rest",)
    story.tick_when_due()
    assert (story.job.active, story.steps["ask"].visit) == (("ask",), 2)
    story.do("ask", result={"done": True})
    assert story.status is JobStatus.SUCCEEDED


def test_each_visit_has_its_own_key_and_continues_attempt_numbers() -> None:
    story = polling()
    first = story.steps["ask"]
    story.do("ask", result={"done": False}).tick_when_due()
    second = story.steps["ask"]
    assert second.idempotency_key != first.idempotency_key
    assert (second.attempt.attempt_no, second.tries, second.created_at) == (2, 1, first.created_at)


def test_each_visit_has_its_own_attempt_budget() -> None:
    story = polling()
    for _ in range(2):
        story.fail()
        story.tick_when_due()
    story.do("ask", result={"done": False}).tick_when_due()
    assert story.steps["ask"].tries == 1
    story.fail()
    assert story.status_of("ask") == "FAILED_RETRY"


def test_visit_above_the_limit_fails_the_job_with_visit_limit() -> None:
    story = polling(max_visits=3)
    for _ in range(3):
        story.do("ask", result={"done": False}).tick_when_due()
    assert story.status is JobStatus.FAILED_FINAL
    assert story.job.error is not None
    assert story.job.error.code == "VISIT_LIMIT"
    assert "more than 3 times" in story.job.error.message


def test_exceeded_visit_limit_does_not_take_the_failure_path() -> None:
    story = Story(protocol(task("a", on_success="a", on_failure="a", max_visits=2))).dispatched()
    story.do("a", "a")
    assert story.status is JobStatus.FAILED_FINAL


def test_new_run_resets_the_visit_count() -> None:
    story = polling(max_visits=2)
    for _ in range(2):
        story.do("ask", result={"done": False}).tick_when_due()
    story.retry()
    assert (story.status, story.steps["ask"].visit) == (JobStatus.DISPATCHING, 1)
    story.do("ask", result={"done": True})
    assert story.status is JobStatus.SUCCEEDED


def test_visits_of_a_new_run_have_new_keys() -> None:
    story = polling(max_visits=2)
    for _ in range(2):
        story.do("ask", result={"done": False}).tick_when_due()
    story.retry()
    story.do("ask", result={"done": False}).tick_when_due()
    keys = {attempt.idempotency_key for (step, _), attempt in story.records.history.items() if step == "ask"}
    assert len(keys | {story.steps["ask"].idempotency_key}) == 4


def test_a_step_that_names_itself_ends_at_its_limit() -> None:
    story = Story(protocol(decision("d", {"True": "d"}, max_visits=1000))).dispatched().settle()
    assert story.status is JobStatus.FAILED_FINAL
    assert story.steps["d"].visit == 1001


def test_a_failure_path_can_go_back() -> None:
    story = Story(protocol(task("a"), task("b", on_failure="a", max_visits=2), task("c"))).dispatched()
    story.do("a").botch("b").do("a").do("b")
    assert story.job.active == ("c",)
    assert (story.steps["a"].visit, story.steps["b"].visit) == (2, 2)


def test_a_wait_and_an_approval_can_be_visited_again() -> None:
    shape = protocol(
        wait_for("w", "go"),
        approval("ok", on_failure="w"),
        task("z"),
    )
    story = Story(shape).dispatched()
    story.signal("go", 1)
    story.reject("ok")
    assert story.job.active == ("w",)
    story.signal("go", 2)
    assert story.steps["w"].result["payload"] == 2
    assert story.steps["ok"].votes == ()
    story.approve("ok")
    assert story.job.active == ("z",)


def test_a_map_can_be_visited_again_with_other_items() -> None:
    shape = protocol(
        task("list"),
        each("m", "steps.list.result.found", task("x"), max_visits=5),
        decision("more", {"steps.list.result.more": "list"}, otherwise="SUCCEED"),
    )
    story = Story(shape).dispatched()
    story.do("list", result={"found": [1, 2, 3], "more": True}).do("x.0", "x.1", "x.2")
    story.do("list", result={"found": [4], "more": False})
    assert story.job.active == ("x.0",)
    assert story.steps["x.0"].visit == 2
    story.do("x.0", result={"n": 4})
    assert story.status is JobStatus.SUCCEEDED
    assert [item["result"] for item in story.steps["m"].result["items"]] == [{"n": 4}]


@pytest.mark.parametrize("kind", ["on_success", "on_failure"])
def test_loop_inside_a_map_is_counted_per_item(kind: str) -> None:
    body = task("x", max_visits=3, **{kind: "x"})
    story = Story(protocol(each("m", "range(2)", body, join="collect"))).dispatched()
    for _ in range(3):
        (story.do if kind == "on_success" else story.botch)("x.0")
    assert story.steps["x.0"].last_error is not None
    assert story.steps["x.0"].last_error.code == "VISIT_LIMIT"
    assert (story.steps["x.1"].visit, story.status) == (1, JobStatus.IN_PROGRESS)
