"""New runs: retry from the failed step or an earlier one, skip with a result, adopt a quarantined result.

Also what the review queue can do about a job that has ended.
"""

from typing import Any

import pytest

from lucius.core.model.decision import Applied
from lucius.core.model.inputs import Cap, Retry
from lucius.core.model.statuses import JobStatus, ReviewStatus
from lucius.core.protocol.definition import StepSpec
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story, three_steps
from tests.unit.core.shapes import approval, call, decision, each, parallel, protocol, task, wait_for


def failed_at_embedding() -> Story:
    return Story().dispatched().do("ocr", result={"pages": 7}).botch("embedding")


class TestRetry:
    def test_retry_opens_a_new_run_at_the_failed_step_and_keeps_earlier_results(self) -> None:
        story = failed_at_embedding()
        first = story.steps["ocr"]
        assert story.retry() == Applied()
        assert (story.status, story.job.run_no, story.job.active) == (JobStatus.DISPATCHING, 2, ("embedding",))
        assert story.steps["ocr"] == first
        story.do("embedding", "sis")
        assert story.status is JobStatus.SUCCEEDED
        assert story.history("ocr") == ["SUCCEEDED"]
        assert story.history("embedding") == ["FAILED", "SUCCEEDED"]

    def test_retry_leaves_the_record_of_the_earlier_run_unchanged(self) -> None:
        story = failed_at_embedding()
        ended = story.job
        story.wait(MINUTE).retry()
        [run] = story.job.runs
        assert (run.run_no, run.status, run.error) == (1, JobStatus.FAILED_FINAL, ended.error)
        assert (run.started_at, run.completed_at) == (ended.created_at, ended.completed_at)
        assert (story.job.error, story.job.completed_at, story.job.failure) == (None, None, None)

    def test_retry_continues_attempt_numbers_with_a_fresh_budget(self) -> None:
        story = failed_at_embedding()
        story.retry()
        step = story.steps["embedding"]
        assert (step.attempt.attempt_no, step.attempt.run_no, step.tries, step.visit) == (2, 2, 1, 1)

    def test_unfinished_step_keeps_its_idempotency_key(self) -> None:
        story = failed_at_embedding()
        key = story.steps["embedding"].idempotency_key
        story.retry()
        assert story.steps["embedding"].idempotency_key == key

    def test_retry_from_an_earlier_step_repeats_it_under_a_new_key(self) -> None:
        story = failed_at_embedding()
        keys = {step_id: step.idempotency_key for step_id, step in story.steps.items()}
        story.retry("ocr")
        assert story.job.active == ("ocr",)
        assert story.steps["ocr"].idempotency_key != keys["ocr"]
        story.do("ocr")
        assert story.steps["embedding"].idempotency_key == keys["embedding"]

    def test_new_key_of_a_repeated_step_stays_until_the_step_succeeds(self) -> None:
        story = failed_at_embedding()
        story.retry("ocr")
        key = story.steps["ocr"].idempotency_key
        story.botch("ocr")
        story.retry()
        assert story.steps["ocr"].idempotency_key == key

    def test_retry_from_an_earlier_step_hides_later_results(self) -> None:
        fresh = decision("fresh", {"steps.b.status == 'PENDING' and steps.a.status == 'SUCCEEDED'": "b"})
        story = Story(protocol(task("a"), fresh, task("b"), task("c"))).dispatched().do("a", "b").botch("c")
        story.retry("fresh")
        assert story.job.active == ("b",)

    def test_retry_from_a_step_not_yet_reached_is_refused(self) -> None:
        story = failed_at_embedding()
        assert code_of(story.retry("sis")) == "STEP_NOT_REACHED"
        assert code_of(story.retry("shredding")) == "STEP_NOT_FOUND"

    def test_retry_from_a_step_inside_a_container_is_refused(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")), task("c"))).dispatched().do("a", "b").botch("c")
        assert code_of(story.retry("a")) == "STEP_NOT_FOUND"
        assert story.retry("p") == Applied()

    def test_retry_counts_against_limits_and_gets_a_new_deadline(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).dispatched().botch("ocr").wait(MINUTE)
        cap = Cap("jobs/tenant/acme", 5)
        story.feed(Retry(by="ada", caps=(cap,)))
        assert story.decision.caps == (cap,)
        assert story.decision.counters["jobs/tenant/acme"] == 1
        assert story.job.deadline == story.now + 10 * MINUTE

    def test_retry_is_audited_and_closes_the_review_item(self) -> None:
        story = failed_at_embedding()
        item = story.own_review
        story.retry()
        [event] = [event for event in story.records.events if event.type == "RUN_STARTED"]
        assert event.data == {"by": "ada", "reason": "because", "act": "retry", "run_no": 2, "from_step": "embedding"}
        closed = story.records.reviews[item.review_id]
        assert (closed.status, closed.resolved_by, closed.act) == (ReviewStatus.REPROCESSED, "ada", "retry")
        assert story.job.review is None

    @pytest.mark.parametrize("state", ["queued", "dispatched", "processing", "waiting", "paused", "cancelling"])
    def test_a_live_job_is_not_retried(self, state: str) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go")))
        story.submit()
        if state != "queued":
            story.start()
        if state == "processing":
            story.ack()
        if state == "waiting":
            story.do("a")
        if state == "paused":
            story.pause()
        if state == "cancelling":
            story.ack()
            story.cancel()
        for reply in (story.retry(), story.skip(), story.compensate()):
            assert code_of(reply) == "JOB_LIVE"

    def test_a_job_that_succeeded_is_not_retried(self) -> None:
        story = Story().finished()
        for reply in (story.retry(), story.skip(), story.compensate()):
            assert code_of(reply) == "JOB_TERMINAL"

    def test_job_can_be_retried_many_times_and_keeps_fifty_runs(self) -> None:
        story = Story().dispatched()
        for run in range(2, 60):
            story.botch("ocr")
            story.retry()
            assert story.job.run_no == run
        assert len(story.job.runs) == 50
        assert story.job.runs[-1].run_no == 58
        story.do("ocr", "embedding", "sis")
        assert story.status is JobStatus.SUCCEEDED

    def test_retry_of_a_job_that_never_started_begins_with_its_first_step(self) -> None:
        story = Story(three_steps(job_timeout_ms=MINUTE))
        story.submit()
        story.wait(MINUTE).tick()
        assert story.status is JobStatus.FAILED_FINAL
        story.retry()
        assert story.job.active == ("ocr",)

    def test_retry_evaluates_a_failing_decision_step_again(self) -> None:
        story = Story(protocol(task("a"), decision("d", {"job.run_no > 1": "b"}), task("b"))).dispatched().do("a")
        assert story.status is JobStatus.FAILED_FINAL
        story.retry()
        assert story.job.active == ("b",)

    def test_retry_inside_a_loop_sees_results_of_the_previous_visit(self) -> None:
        shape = protocol(
            task("draft"),
            call("send", {"notes": "${steps.review.result}"}, on_failure="FAIL"),
            task("review", on_success="draft"),
        )
        shape = protocol(
            decision("begin", {"True": "draft"}),
            call("draft", {"notes": "${steps.review.result}"}),
            task("review"),
            decision("good", {"steps.review.result.good": "SUCCEED"}, otherwise="draft"),
        )
        story = Story(shape).dispatched().do("draft").do("review", result={"good": False}).botch("draft")
        story.retry()
        assert story.job.active == ("draft",)
        request = story.steps["draft"].request
        assert request is not None
        assert request.body == {"notes": {"good": False}}


class TestRetryOfACancelledJob:
    def test_retry_continues_at_the_step_that_was_cancelled(self) -> None:
        story = Story().dispatched().do("ocr")
        story.cancel()
        assert story.retry() == Applied()
        assert story.job.active == ("embedding",)
        assert story.job.cancel is None

    def test_retry_continues_after_a_step_that_succeeded_during_the_cancel(self) -> None:
        story = Story().processing()
        story.cancel()
        story.succeed(result={"pages": 1})
        assert story.status is JobStatus.CANCELLED
        story.retry()
        assert story.job.active == ("embedding",)

    def test_retry_repeats_a_step_that_failed_during_the_cancel(self) -> None:
        story = Story().processing()
        story.cancel()
        story.fail_for_good()
        assert story.status is JobStatus.CANCELLED
        story.retry()
        assert (story.status, story.job.active) == (JobStatus.DISPATCHING, ("ocr",))

    def test_retry_completes_a_job_whose_last_step_succeeded_during_the_cancel(self) -> None:
        story = Story(protocol(task("a"))).processing()
        story.cancel()
        story.succeed()
        story.retry()
        assert story.status is JobStatus.SUCCEEDED
        assert story.job.output_step_id == "a"

    def test_retry_of_a_job_cancelled_before_dispatch_begins_with_its_first_step(self) -> None:
        story = Story()
        story.submit()
        story.cancel()
        story.retry()
        assert story.job.active == ("ocr",)

    def test_retry_keeps_results_inside_a_container(self) -> None:
        story = Story(protocol(parallel("p", task("a"), [task("b"), task("c")]), task("d"))).dispatched().do("a", "b")
        story.cancel()
        story.retry()
        assert story.job.active == ("c",)
        assert story.do("c", "d").status is JobStatus.SUCCEEDED
        assert story.history("a") == ["SUCCEEDED"]


class TestRetryAfterJobTimeout:
    def test_retry_begins_with_the_step_that_ran_at_the_timeout(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).dispatched().do("ocr")
        story.wait(10 * MINUTE).tick()
        story.retry()
        assert story.job.active == ("embedding",)

    def test_retry_keeps_a_result_recorded_during_a_pause_after_the_deadline(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).processing().wait(11 * MINUTE)
        story.pause()
        story.succeed()
        story.resume()
        story.settle()
        assert story.status is JobStatus.FAILED_FINAL
        story.retry()
        assert story.job.active == ("embedding",)
        assert story.history("ocr") == ["SUCCEEDED"]


class TestSkip:
    def test_skipped_step_counts_as_done_with_the_supplied_result(self) -> None:
        story = failed_at_embedding()
        assert story.skip({"vectors": 3}) == Applied()
        assert story.job.active == ("sis",)
        step = story.steps["embedding"]
        assert (step.status, step.result, step.run_no) == ("SKIPPED", {"vectors": 3}, 2)
        assert story.do("sis").status is JobStatus.SUCCEEDED

    def test_skip_is_audited(self) -> None:
        story = failed_at_embedding()
        story.skip()
        types = story.event_types()
        assert {"RUN_STARTED", "STEP_SKIPPED", "REVIEW_CLOSED"} <= set(types)
        [event] = [event for event in story.records.events if event.type == "STEP_SKIPPED"]
        assert (event.data["by"], event.step_id) == ("ada", "embedding")

    def test_skip_in_a_job_that_never_started_is_refused(self) -> None:
        story = Story()
        story.submit()
        story.cancel()
        assert code_of(story.skip()) == "STEP_NOT_FOUND"

    def test_skipped_decision_continues_at_the_supplied_target(self) -> None:
        story = Story(protocol(decision("d", {"input.x": "a"}), task("a"), task("b")), payload={}).dispatched()
        story.skip({"then": "b"})
        assert story.job.active == ("b",)

    @pytest.mark.parametrize("result", [None, 7, {"then": 7}, {"then": "nowhere"}, {"then": "x"}])
    def test_skipped_decision_without_a_valid_target_continues_with_the_next_step(self, result: Any) -> None:
        shape = protocol(decision("d", {"input.x": "a"}), task("a"), parallel("p", task("x")))
        story = Story(shape, payload={}).dispatched()
        story.skip(result)
        assert story.job.active == ("a",)

    def test_skip_inside_a_container_keeps_other_results(self) -> None:
        story = Story(protocol(parallel("p", task("a"), [task("b"), task("c")]))).dispatched().do("a").botch("b")
        story.skip({"b": 1})
        assert story.job.active == ("c",)
        story.do("c", result={"c": 1})
        assert story.status is JobStatus.SUCCEEDED
        branches = story.steps["p"].result["branches"]
        assert branches["b1"]["result"] == {"c": 1}

    @pytest.mark.parametrize("result", [{"then": "nowhere"}, {"then": "y"}])
    def test_skipped_decision_inside_a_map_without_a_valid_target_continues(self, result: Any) -> None:
        body: tuple[StepSpec, ...] = (decision("d", {"input.x": "y"}), task("y"))
        story = Story(protocol(each("m", "[1]", *body)), payload={}).dispatched()
        story.skip(result)
        assert story.job.active == ("y.0",)

    def test_a_rejected_approval_can_be_skipped(self) -> None:
        story = Story(protocol(approval("ok"), task("a"))).dispatched()
        story.reject("ok")
        story.skip()
        assert story.job.active == ("a",)


class TestRetryOfAMap:
    def shape(self, **fields: Any) -> Story:
        body = (task("x"), task("y"))
        return Story(
            protocol(task("first"), each("m", "input.docs", *body, at_once=2, **fields), task("last")),
            payload={"docs": list(range(4))},
        )

    def failed(self) -> Story:
        story = self.shape().dispatched().do("first", "x.0", "y.0", "x.1", "x.2")
        return story.botch("y.1")

    def test_retry_of_a_map_repeats_only_failed_and_unfinished_items(self) -> None:
        story = self.failed()
        assert story.status == "FAILED_FINAL"
        story.retry()
        assert set(story.job.active) == {"y.1", "y.2"}
        story.do("y.1", "y.2", "x.3", "y.3", "last")
        assert story.status is JobStatus.SUCCEEDED
        assert [story.history(f"x.{n}") for n in range(4)] == [["SUCCEEDED"]] * 4
        assert story.history("y.1") == ["FAILED", "SUCCEEDED"]
        assert story.steps["m"].result["succeeded"] == 4

    def test_retry_of_a_map_keeps_key_and_result_of_finished_items(self) -> None:
        story = self.failed()
        before = story.steps["y.0"]
        story.retry()
        after = story.steps["y.0"]
        assert (after.idempotency_key, after.result, after.completed_at) == (
            before.idempotency_key,
            before.result,
            before.completed_at,
        )

    def test_retry_from_the_map_step_repeats_every_item(self) -> None:
        story = self.failed()
        key = story.steps["x.0"].idempotency_key
        story.retry("m")
        assert set(story.job.active) == {"x.0", "x.1"}
        assert story.steps["x.0"].idempotency_key != key

    def test_items_invalidated_by_a_retry_from_an_earlier_step_stay_invalid(self) -> None:
        """Run 2 starts before the map and fails in its first item: run 3 must not keep items of run 1."""
        story = self.failed()
        story.retry("first")
        story.do("first").botch("x.0")
        assert story.status is JobStatus.FAILED_FINAL
        story.retry()
        assert set(story.job.active) == {"x.0", "x.1"}
        assert story.history("x.2") == ["SUCCEEDED"]
        story.do("x.0", "y.0")
        assert set(story.job.active) == {"x.1", "x.2"}

    def test_retry_of_a_map_evaluates_a_failing_decision_of_an_item_again(self) -> None:
        body = (task("x"), decision("d", {"job.run_no > 1": "SUCCEED"}))
        story = Story(protocol(each("m", "range(2)", *body))).dispatched().do("x.0")
        assert story.status == "FAILED_FINAL"
        story.retry()
        assert story.status_of("d.0") == "SUCCEEDED"
        assert story.job.active == ("x.1",)
        assert story.history("x.0") == ["SUCCEEDED"]

    def test_items_kept_by_one_run_are_kept_by_the_next(self) -> None:
        story = self.failed()
        story.retry()
        story.botch("y.1")
        story.retry()
        assert set(story.job.active) == {"y.1", "y.2"}
