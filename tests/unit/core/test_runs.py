"""New runs: retry from the failed step or an earlier one, skip with a result, adopt what was quarantined.

Rule 12 of DESIGN §3, and what the review queue can do about a job that has ended.
"""

from typing import Any

import pytest

from lucius.core.decision import Applied
from lucius.core.inputs import Cap, Retry
from lucius.core.model import JobStatus, ReviewStatus
from lucius.core.protocol import StepSpec
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story, three_steps
from tests.unit.core.shapes import approval, call, decision, each, parallel, protocol, task, wait_for


def failed_at_embedding() -> Story:
    return Story().dispatched().do("ocr", result={"pages": 7}).botch("embedding")


class TestRetry:
    def test_it_opens_a_new_run_from_the_failed_step_and_keeps_what_came_before(self) -> None:
        story = failed_at_embedding()
        first = story.steps["ocr"]
        assert story.retry() == Applied()
        assert (story.status, story.job.run_no, story.job.active) == (JobStatus.DISPATCHING, 2, ("embedding",))
        assert story.steps["ocr"] == first
        story.do("embedding", "sis")
        assert story.status is JobStatus.SUCCEEDED
        assert story.history("ocr") == ["SUCCEEDED"]
        assert story.history("embedding") == ["FAILED", "SUCCEEDED"]

    def test_the_run_before_stays_as_it_ended(self) -> None:
        story = failed_at_embedding()
        ended = story.job
        story.wait(MINUTE).retry()
        [run] = story.job.runs
        assert (run.run_no, run.status, run.error) == (1, JobStatus.FAILED_FINAL, ended.error)
        assert (run.started_at, run.completed_at) == (ended.created_at, ended.completed_at)
        assert (story.job.error, story.job.completed_at, story.job.failure) == (None, None, None)

    def test_numbers_of_attempts_go_on_and_the_budget_is_fresh(self) -> None:
        story = failed_at_embedding()
        story.retry()
        step = story.steps["embedding"]
        assert (step.attempt.attempt_no, step.attempt.run_no, step.tries, step.visit) == (2, 2, 1, 1)

    def test_a_step_that_was_not_done_keeps_its_key(self) -> None:
        story = failed_at_embedding()
        key = story.steps["embedding"].idempotency_key
        story.retry()
        assert story.steps["embedding"].idempotency_key == key

    def test_from_an_earlier_step_what_was_done_is_done_again_under_a_new_key(self) -> None:
        story = failed_at_embedding()
        keys = {step_id: step.idempotency_key for step_id, step in story.steps.items()}
        story.retry("ocr")
        assert story.job.active == ("ocr",)
        assert story.steps["ocr"].idempotency_key != keys["ocr"]
        story.do("ocr")
        assert story.steps["embedding"].idempotency_key == keys["embedding"]

    def test_its_key_stays_until_it_is_done(self) -> None:
        story = failed_at_embedding()
        story.retry("ocr")
        key = story.steps["ocr"].idempotency_key
        story.botch("ocr")
        story.retry()
        assert story.steps["ocr"].idempotency_key == key

    def test_from_an_earlier_step_later_results_are_not_seen_any_more(self) -> None:
        fresh = decision("fresh", {"steps.b.status == 'PENDING' and steps.a.status == 'SUCCEEDED'": "b"})
        story = Story(protocol(task("a"), fresh, task("b"), task("c"))).dispatched().do("a", "b").botch("c")
        story.retry("fresh")
        assert story.job.active == ("b",)

    def test_a_step_to_come_is_no_place_to_start(self) -> None:
        story = failed_at_embedding()
        assert code_of(story.retry("sis")) == "STEP_NOT_REACHED"
        assert code_of(story.retry("shredding")) == "STEP_NOT_FOUND"

    def test_a_step_inside_another_is_no_place_to_start(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")), task("c"))).dispatched().do("a", "b").botch("c")
        assert code_of(story.retry("a")) == "STEP_NOT_FOUND"
        assert story.retry("p") == Applied()

    def test_it_passes_the_limits_again_and_gets_a_new_deadline(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).dispatched().botch("ocr").wait(MINUTE)
        cap = Cap("jobs/tenant/acme", 5)
        story.feed(Retry(by="ada", caps=(cap,)))
        assert story.decision.caps == (cap,)
        assert story.decision.counters["jobs/tenant/acme"] == 1
        assert story.job.deadline == story.now + 10 * MINUTE

    def test_it_is_audited_and_closes_the_review(self) -> None:
        story = failed_at_embedding()
        item = story.own_review
        story.retry()
        [event] = [event for event in story.books.events if event.type == "RUN_STARTED"]
        assert event.data == {"by": "ada", "reason": "because", "act": "retry", "run_no": 2, "from_step": "embedding"}
        closed = story.books.reviews[item.review_id]
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

    def test_runs_can_follow_runs(self) -> None:
        story = Story().dispatched()
        for run in range(2, 60):
            story.botch("ocr")
            story.retry()
            assert story.job.run_no == run
        assert len(story.job.runs) == 50
        assert story.job.runs[-1].run_no == 58
        story.do("ocr", "embedding", "sis")
        assert story.status is JobStatus.SUCCEEDED

    def test_a_job_that_never_started_starts_from_its_beginning(self) -> None:
        story = Story(three_steps(job_timeout_ms=MINUTE))
        story.submit()
        story.wait(MINUTE).tick()
        assert story.status is JobStatus.FAILED_FINAL
        story.retry()
        assert story.job.active == ("ocr",)

    def test_a_decision_that_chose_to_fail_is_made_anew(self) -> None:
        story = Story(protocol(task("a"), decision("d", {"job.run_no > 1": "b"}), task("b"))).dispatched().do("a")
        assert story.status is JobStatus.FAILED_FINAL
        story.retry()
        assert story.job.active == ("b",)

    def test_a_loop_goes_on_with_what_the_round_before_left(self) -> None:
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
    def test_it_goes_on_where_it_was_stopped(self) -> None:
        story = Story().dispatched().do("ocr")
        story.cancel()
        assert story.retry() == Applied()
        assert story.job.active == ("embedding",)
        assert story.job.cancel is None

    def test_it_goes_on_after_what_succeeded_meanwhile(self) -> None:
        story = Story().processing()
        story.cancel()
        story.succeed(result={"pages": 1})
        assert story.status is JobStatus.CANCELLED
        story.retry()
        assert story.job.active == ("embedding",)

    def test_it_tries_again_what_failed_for_good_meanwhile(self) -> None:
        story = Story().processing()
        story.cancel()
        story.fail_for_good()
        assert story.status is JobStatus.CANCELLED
        story.retry()
        assert (story.status, story.job.active) == (JobStatus.DISPATCHING, ("ocr",))

    def test_it_goes_on_from_its_last_step_to_its_end(self) -> None:
        story = Story(protocol(task("a"))).processing()
        story.cancel()
        story.succeed()
        story.retry()
        assert story.status is JobStatus.SUCCEEDED
        assert story.job.output_step_id == "a"

    def test_one_that_was_never_taken_starts_from_its_beginning(self) -> None:
        story = Story()
        story.submit()
        story.cancel()
        story.retry()
        assert story.job.active == ("ocr",)

    def test_inside_a_container_what_was_done_stands(self) -> None:
        story = Story(protocol(parallel("p", task("a"), [task("b"), task("c")]), task("d"))).dispatched().do("a", "b")
        story.cancel()
        story.retry()
        assert story.job.active == ("c",)
        assert story.do("c", "d").status is JobStatus.SUCCEEDED
        assert story.history("a") == ["SUCCEEDED"]


class TestRetryAfterTheJobsTimeIsUp:
    def test_it_starts_from_the_step_that_ran(self) -> None:
        story = Story(three_steps(job_timeout_ms=10 * MINUTE)).dispatched().do("ocr")
        story.wait(10 * MINUTE).tick()
        story.retry()
        assert story.job.active == ("embedding",)

    def test_what_was_done_while_it_was_paused_stands(self) -> None:
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
    def test_the_failed_step_counts_as_done_with_the_result_that_a_person_supplies(self) -> None:
        story = failed_at_embedding()
        assert story.skip({"vectors": 3}) == Applied()
        assert story.job.active == ("sis",)
        step = story.steps["embedding"]
        assert (step.status, step.result, step.run_no) == ("SKIPPED", {"vectors": 3}, 2)
        assert story.do("sis").status is JobStatus.SUCCEEDED

    def test_it_is_audited_with_its_reason(self) -> None:
        story = failed_at_embedding()
        story.skip()
        types = story.event_types()
        assert {"RUN_STARTED", "STEP_SKIPPED", "REVIEW_CLOSED"} <= set(types)
        [event] = [event for event in story.books.events if event.type == "STEP_SKIPPED"]
        assert (event.data["by"], event.step_id) == ("ada", "embedding")

    def test_a_job_that_never_started_has_nothing_to_skip(self) -> None:
        story = Story()
        story.submit()
        story.cancel()
        assert code_of(story.skip()) == "STEP_NOT_FOUND"

    def test_a_skipped_decision_goes_where_the_person_says(self) -> None:
        story = Story(protocol(decision("d", {"input.x": "a"}), task("a"), task("b")), payload={}).dispatched()
        story.skip({"then": "b"})
        assert story.job.active == ("b",)

    @pytest.mark.parametrize("result", [None, 7, {"then": 7}, {"then": "nowhere"}, {"then": "x"}])
    def test_a_skipped_decision_without_a_place_to_go_goes_on(self, result: Any) -> None:
        shape = protocol(decision("d", {"input.x": "a"}), task("a"), parallel("p", task("x")))
        story = Story(shape, payload={}).dispatched()
        story.skip(result)
        assert story.job.active == ("a",)

    def test_inside_a_container_the_rest_stands(self) -> None:
        story = Story(protocol(parallel("p", task("a"), [task("b"), task("c")]))).dispatched().do("a").botch("b")
        story.skip({"b": 1})
        assert story.job.active == ("c",)
        story.do("c", result={"c": 1})
        assert story.status is JobStatus.SUCCEEDED
        branches = story.steps["p"].result["branches"]
        assert branches["b1"]["result"] == {"c": 1}

    @pytest.mark.parametrize("result", [{"then": "nowhere"}, {"then": "y"}])
    def test_a_skipped_decision_inside_a_map_goes_on_too(self, result: Any) -> None:
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

    def test_only_what_failed_or_was_not_done_is_done_again(self) -> None:
        story = self.failed()
        assert story.status == "FAILED_FINAL"
        story.retry()
        assert set(story.job.active) == {"y.1", "y.2"}
        story.do("y.1", "y.2", "x.3", "y.3", "last")
        assert story.status is JobStatus.SUCCEEDED
        assert [story.history(f"x.{n}") for n in range(4)] == [["SUCCEEDED"]] * 4
        assert story.history("y.1") == ["FAILED", "SUCCEEDED"]
        assert story.steps["m"].result["succeeded"] == 4

    def test_items_that_were_done_keep_their_key_and_their_result(self) -> None:
        story = self.failed()
        before = story.steps["y.0"]
        story.retry()
        after = story.steps["y.0"]
        assert (after.idempotency_key, after.result, after.completed_at) == (
            before.idempotency_key,
            before.result,
            before.completed_at,
        )

    def test_from_the_map_itself_every_item_is_done_again(self) -> None:
        story = self.failed()
        key = story.steps["x.0"].idempotency_key
        story.retry("m")
        assert set(story.job.active) == {"x.0", "x.1"}
        assert story.steps["x.0"].idempotency_key != key

    def test_what_an_earlier_step_made_void_never_comes_back(self) -> None:
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

    def test_an_item_that_decided_to_fail_decides_anew(self) -> None:
        body = (task("x"), decision("d", {"job.run_no > 1": "SUCCEED"}))
        story = Story(protocol(each("m", "range(2)", *body))).dispatched().do("x.0")
        assert story.status == "FAILED_FINAL"
        story.retry()
        assert story.status_of("d.0") == "SUCCEEDED"
        assert story.job.active == ("x.1",)
        assert story.history("x.0") == ["SUCCEEDED"]

    def test_what_a_run_kept_the_next_one_keeps_too(self) -> None:
        story = self.failed()
        story.retry()
        story.botch("y.1")
        story.retry()
        assert set(story.job.active) == {"y.1", "y.2"}
