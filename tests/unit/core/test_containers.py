"""Parallel branches and maps: joined, fail-fast or collected; items start as capacity frees."""

from typing import Any

import pytest

from lucius.core.model.decision import Applied
from lucius.core.model.statuses import AttemptOutcome, Disposition, JobStatus, OutboxStatus
from lucius.core.protocol.definition import StepSpec
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import (
    approval,
    call,
    decision,
    each,
    notify,
    parallel,
    pause_for,
    protocol,
    task,
    wait_for,
)


def mapped(n: int, *body: StepSpec, at_once: int = 2, join: str = "fail_fast", **fields: Any) -> Story:
    shape = protocol(each("m", "input.list", *(body or (task("x"),)), at_once=at_once, join=join, **fields), task("z"))
    return Story(shape, payload={"list": list(range(n))}).dispatched()


class TestParallel:
    def test_branches_run_in_parallel_and_advance_independently(self) -> None:
        story = Story(protocol(parallel("p", [task("a"), task("b")], [task("c"), task("d")]), task("z"))).dispatched()
        assert set(story.job.active) == {"a", "c"}
        story.do("c")
        assert set(story.job.active) == {"a", "d"}
        story.do("a", "b")
        assert story.job.active == ("d",)
        story.do("d")
        assert story.job.active == ("z",)

    def test_branches_are_joined_into_one_result(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")), task("z"))).dispatched()
        story.do("a", result={"n": 1}).do("b", result={"n": 2})
        assert story.steps["p"].result == {
            "total": 2,
            "succeeded": 2,
            "failed": 0,
            "branches": {
                "b0": {"status": "SUCCEEDED", "result": {"n": 1}, "artifact_refs": ["file:///w/pages.json"]},
                "b1": {"status": "SUCCEEDED", "result": {"n": 2}, "artifact_refs": ["file:///w/pages.json"]},
            },
        }

    def test_later_expressions_see_the_joined_result(self) -> None:
        joined = decision("d", {"steps.p.result.branches.b1.result.n == 2": "z"})
        story = Story(protocol(parallel("p", task("a"), task("b")), joined, task("z"))).dispatched()
        story.do("a").do("b", result={"n": 2})
        assert story.job.active == ("z",)

    def test_blocked_reason_is_that_of_the_first_active_step(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")))).dispatched()
        story.hand_over(story.lease_of("b"))
        assert story.job.current_step_id == "a"
        assert story.job.blocked is not None
        assert story.job.blocked.step_id == "a"

    def test_earliest_deadline_of_all_branches_is_the_jobs_due_time(self) -> None:
        story = Story(protocol(parallel("p", pause_for("w", MINUTE), task("a")))).dispatched()
        story.hand_over(story.lease_of("a"))
        assert story.job.due_at == story.steps["a"].attempt.ack_deadline
        story.ack(story.lease_of("a"))
        assert story.job.due_at == story.steps["w"].wake_at


class TestFailFast:
    def test_first_failure_ends_all_other_branches(self) -> None:
        shape = protocol(
            parallel("p", task("a"), task("b"), wait_for("w", "go"), approval("ok"), [task("c"), task("d")])
        )
        story = Story(shape).dispatched()
        story.hand_over(story.lease_of("b"))
        running = story.lease_of("b")
        story.botch("a")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.statuses("p", "a", "b", "w", "ok", "c", "d") == [
            "FAILED_FINAL",
            "FAILED_FINAL",
            "CANCELLED",
            "CANCELLED",
            "CANCELLED",
            "CANCELLED",
            "SKIPPED",
        ]
        assert story.steps["b"].attempt.outcome is AttemptOutcome.FENCED
        assert story.pending_rows() == []
        assert story.succeed(running) is Disposition.LATE

    def test_job_error_names_the_failed_step_inside_the_container(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")))).dispatched().botch("a")
        assert story.job.error is not None
        assert "step a" in story.job.error.message
        assert story.open_reviews() == [("JOB_FAILED", "a")]

    def test_claimed_row_of_a_stopped_branch_counts_as_possibly_published(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")))).dispatched()
        story.claim(story.lease_of("b"))
        row = story.steps["b"].attempt.outbox_id
        story.botch("a")
        assert story.records.rows[row].status is OutboxStatus.SENT

    def test_the_container_can_have_a_failure_path(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b"), on_failure="z"), task("y"), task("z"))).dispatched()
        story.botch("a")
        assert story.job.active == ("z",)

    def test_failure_inside_a_branch_can_take_a_failure_path_inside(self) -> None:
        story = Story(
            protocol(parallel("p", [task("a", on_failure="c"), task("b"), task("c")], task("d")))
        ).dispatched()
        story.botch("a")
        assert set(story.job.active) == {"d", "c"}
        story.do("c", "d")
        assert story.status is JobStatus.SUCCEEDED
        assert story.steps["p"].result["branches"]["b0"]["status"] == "SUCCEEDED"

    def test_failed_map_creates_no_more_items(self) -> None:
        story = mapped(5).botch("x.0")
        assert story.statuses("x.0", "x.1", "x.2") == ["FAILED_FINAL", "CANCELLED", "SKIPPED"]

    def test_an_inner_container_ends_with_the_outer_one(self) -> None:
        inner = parallel("q", task("b"), each("m", "range(2)", task("c")))
        story = Story(protocol(parallel("p", task("a"), inner))).dispatched().settle()
        assert set(story.job.active) == {"a", "b", "c.0", "c.1"}
        story.botch("a")
        assert story.settle().status is JobStatus.FAILED_FINAL
        assert story.statuses("p", "q", "m", "b", "c.0") == ["FAILED_FINAL", *["CANCELLED"] * 4]

    def test_outer_container_collects_the_failure_of_an_inner_one(self) -> None:
        inner = parallel("q", task("b"), task("c"))
        story = Story(protocol(parallel("p", task("a"), inner, join="collect"), task("z"))).dispatched()
        story.botch("b").do("a")
        assert story.statuses("q", "c", "p") == ["FAILED_FINAL", "CANCELLED", "SUCCEEDED"]
        assert story.steps["p"].result["failed"] == 1
        assert story.job.active == ("z",)


class TestCollect:
    def test_failures_are_collected_and_other_items_continue(self) -> None:
        story = mapped(3, join="collect").botch("x.0").do("x.1", result={"n": 1}).do("x.2", result={"n": 2})
        assert story.job.active == ("z",)
        result = story.steps["m"].result
        assert (result["total"], result["succeeded"], result["failed"]) == (3, 2, 1)
        assert result["items"][0] == {
            "status": "FAILED_FINAL",
            "error": {"code": "OUT_OF_PAPER", "message": "it did not work"},
        }
        assert [item["result"] for item in result["items"][1:]] == [{"n": 1}, {"n": 2}]
        assert story.do("z").status is JobStatus.SUCCEEDED
        assert story.open_reviews() == []

    def test_collecting_map_whose_items_all_fail_continues_with_the_next_step(self) -> None:
        judge = decision("judge", {"steps.m.result.failed < 2": "SUCCEED"})
        shape = protocol(each("m", "range(2)", task("x"), join="collect"), judge)
        story = Story(shape).dispatched().settle().botch("x.0").botch("x.1")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "DECIDED_TO_FAIL"

    def test_item_that_decides_to_fail_counts_as_failed(self) -> None:
        body = (task("x"), decision("d", {"steps.x.result.good": "SUCCEED"}))
        story = mapped(2, *body, join="collect").do("x.0", result={"good": True}).do("x.1", result={"good": False})
        result = story.steps["m"].result
        assert (result["succeeded"], result["failed"]) == (1, 1)
        assert [item["status"] for item in result["items"]] == ["SUCCEEDED", "FAILED_FINAL"]
        assert result["items"][0]["result"] == {"good": True}
        assert result["items"][1]["error"]["code"] == "DECIDED_TO_FAIL"

    def test_item_that_fails_after_its_failure_path_counts_as_failed(self) -> None:
        body = (task("x", on_failure="clean"), task("y"), task("clean", on_success="FAIL"))
        story = mapped(1, *body, join="collect").botch("x.0").do("clean.0")
        result = story.steps["m"].result
        assert (result["failed"], result["items"][0]["status"]) == (1, "FAILED_FINAL")
        assert result["items"][0]["error"]["code"] == "FAILED"

    def test_item_that_recovers_counts_as_succeeded(self) -> None:
        body = (task("x", on_failure="y"), task("y"))
        story = mapped(1, *body, join="collect").botch("x.0").do("y.0", result={"y": 1})
        assert story.steps["m"].result["items"] == [
            {"status": "SUCCEEDED", "result": {"y": 1}, "artifact_refs": ["file:///w/pages.json"]}
        ]

    def test_result_of_an_item_is_that_of_its_last_step_with_a_result(self) -> None:
        body = (task("x"), notify("tell"), decision("d", {"True": "SUCCEED"}))
        story = mapped(1, *body).do("x.0", result={"n": 7}).do("tell.0")
        assert story.steps["m"].result["items"][0]["result"] == {"n": 7}


class TestMap:
    def test_items_are_created_as_capacity_frees(self) -> None:
        story = mapped(5)
        assert set(story.job.active) == {"x.0", "x.1"}
        story.do("x.1")
        assert set(story.job.active) == {"x.0", "x.2"}
        story.do("x.0", "x.2", "x.3", "x.4")
        assert story.job.active == ("z",)

    def test_map_over_an_empty_list_succeeds_at_once(self) -> None:
        story = mapped(0)
        assert story.steps["m"].result == {"total": 0, "succeeded": 0, "failed": 0, "items": []}
        assert story.job.active == ("z",)

    def test_map_over_one_item_has_one_result(self) -> None:
        story = mapped(1).do("x.0", result={"n": 1})
        assert [item["result"] for item in story.steps["m"].result["items"]] == [{"n": 1}]

    @pytest.mark.parametrize("items", ["input.nothing", "'abc'", "input.list[0]", "range(10001)", "['x' * 300000]"])
    def test_invalid_items_expression_fails_the_map(self, items: str) -> None:
        shape = protocol(each("m", items, task("x"), on_failure="z"), task("y"), task("z"))
        story = Story(shape, payload={"list": [1]}).dispatched()
        assert story.job.active == ("z",)
        assert story.steps["m"].last_error is not None
        assert story.steps["m"].last_error.code == "MAP_ITEMS_INVALID"

    def test_steps_of_an_item_see_the_item_and_each_others_results(self) -> None:
        body = (task("x"), call("send", {"item": "${item.doc}", "n": "${item_index}", "x": "${steps.x.result.n}"}))
        shape = protocol(each("m", "input.docs", *body))
        story = Story(shape, payload={"docs": [{"doc": "a"}, {"doc": "b"}]}).dispatched()
        story.do("x.0", result={"n": 10}).do("x.1", result={"n": 11})
        requests = [story.steps[f"send.{n}"].request for n in range(2)]
        assert [r.body for r in requests if r] == [{"item": "a", "n": 0, "x": 10}, {"item": "b", "n": 1, "x": 11}]

    def test_nested_maps_see_the_inner_item_and_the_outer_steps(self) -> None:
        inner = each("in", "item", call("send", {"v": "${item}", "at": "${item_index}", "x": "${steps.x.result}"}))
        story = Story(
            protocol(each("out", "input.rows", task("x"), inner)), payload={"rows": [[1, 2], [3]]}
        ).dispatched()
        story.do("x.0", result="row 0").do("x.1", result="row 1").settle()
        bodies = {s: step.request.body for s, step in story.steps.items() if step.request is not None}
        assert bodies == {
            "send.0.0": {"v": 1, "at": 0, "x": "row 0"},
            "send.0.1": {"v": 2, "at": 1, "x": "row 0"},
            "send.1.0": {"v": 3, "at": 0, "x": "row 1"},
        }
        story.do("send.0.1", "send.1.0", "send.0.0")
        assert story.status is JobStatus.SUCCEEDED
        assert [item["result"]["total"] for item in story.steps["out"].result["items"]] == [2, 1]

    def test_map_inside_a_parallel_inside_a_map_completes(self) -> None:
        shape = protocol(each("m", "range(2)", parallel("p", each("n", "range(2)", task("x")), task("y"))))
        story = Story(shape).dispatched().settle()
        assert set(story.job.active) == {"x.0.0", "x.0.1", "x.1.0", "x.1.1", "y.0", "y.1"}
        story.do("x.0.0", "x.0.1", "y.0", "y.1", "x.1.1", "x.1.0")
        assert story.status is JobStatus.SUCCEEDED

    def test_each_item_has_its_own_idempotency_key(self) -> None:
        story = mapped(2)
        assert story.steps["x.0"].idempotency_key != story.steps["x.1"].idempotency_key

    def test_oversized_item_results_are_omitted_with_a_note(self) -> None:
        story = mapped(4)
        for item in range(4):
            story.do(f"x.{item}", result={"text": "x" * 100_000})
        result = story.steps["m"].result
        assert "items" not in result
        assert (result["succeeded"], result["total"]) == (4, 4)
        assert "read the results of the steps inside" in result["omitted"]
        assert story.job.active == ("z",)

    def test_a_visit_limit_inside_a_collecting_map_fails_the_item(self) -> None:
        story = mapped(2, task("x", on_success="x", max_visits=2), join="collect")
        story.do("x.0", "x.0", "x.1", "x.1")
        result = story.steps["m"].result
        assert [item["error"]["code"] for item in result["items"]] == ["VISIT_LIMIT"] * 2
        assert story.job.active == ("z",)

    def test_retries_inside_a_map_use_no_additional_capacity(self) -> None:
        story = mapped(3)
        story.fail(story.lease_of("x.0"))
        assert set(story.job.active) == {"x.0", "x.1"}
        story.tick_when_due()
        assert story.statuses("x.0", "x.1", "x.2") == ["DISPATCHING", "DISPATCHING", "PENDING"]


class TestJobTimeout:
    def test_job_timeout_ends_all_items_of_a_wide_map(self) -> None:
        shape = protocol(each("m", "range(40)", task("x"), at_once=32), task("z"), timeout_ms=MINUTE)
        story = Story(shape).dispatched().settle()
        for item in range(10):
            story.hand_over(story.lease_of(f"x.{item}"))
            story.ack(story.lease_of(f"x.{item}"))
        story.wait(MINUTE).settle()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert {story.status_of(f"x.{item}") for item in range(32)} == {"FAILED_FINAL"}
        assert story.statuses("m", "x.39", "z") == ["FAILED_FINAL", "SKIPPED", "SKIPPED"]
        assert story.pending_rows() == []

    def test_retry_after_a_job_timeout_repeats_only_unfinished_items(self) -> None:
        shape = protocol(each("m", "range(3)", task("x"), at_once=2), timeout_ms=MINUTE)
        story = Story(shape).dispatched().do("x.0").wait(MINUTE).settle()
        story.retry()
        assert set(story.job.active) == {"x.1", "x.2"}
        assert story.do("x.1", "x.2").status is JobStatus.SUCCEEDED


class TestCancel:
    def test_cancel_waits_for_items_at_a_service_and_ends_the_rest(self) -> None:
        story = mapped(5, at_once=3)
        story.ack(story.lease_of("x.1"))
        story.cancel()
        assert story.statuses("x.0", "x.1", "x.2") == ["CANCELLED", "PROCESSING", "CANCELLED"]
        assert story.status == "CANCELLING"
        story.succeed(story.lease_of("x.1"))
        assert story.status is JobStatus.CANCELLED
        assert story.statuses("x.1", "x.3", "m") == ["SUCCEEDED", "CANCELLED", "CANCELLED"]

    def test_a_wide_map_is_cancelled_in_more_than_one_decision(self) -> None:
        shape = protocol(each("m", "range(40)", parallel("p", task("x"), wait_for("w", "go")), at_once=16))
        story = Story(shape).dispatched().settle()
        assert story.cancel() == Applied()
        assert story.status is JobStatus.CANCELLING
        assert story.settle().status is JobStatus.CANCELLED
        assert {step.status for step in story.steps.values()} == {"CANCELLED"}
