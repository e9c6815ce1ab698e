"""Flow of decisions: expressions choose the next step, paths merge, and steps off the path are skipped."""

from typing import Any

import pytest

from lucius.core.model.statuses import AttemptOutcome, FailureClass, JobStatus
from lucius.core.protocol.definition import StepSpec
from tests.unit.core.builders import Story
from tests.unit.core.shapes import approval, call, decision, notify, parallel, protocol, task, wait_for

F = FailureClass


def by_pages(**fields: Any) -> Story:
    """Return a job with OCR, then a short or a long path, which merge again."""
    shape = protocol(
        task("ocr"),
        decision("size", {"steps.ocr.result.pages > 100": "long", "steps.ocr.result.pages > 0": "short"}, **fields),
        task("long", on_success="end"),
        task("short"),
        task("end"),
    )
    return Story(shape).dispatched()


@pytest.mark.parametrize(("pages", "taken", "left_out"), [(500, "long", "short"), (5, "short", "long")])
def test_first_matching_choice_is_taken_and_the_rest_is_skipped(pages: int, taken: str, left_out: str) -> None:
    story = by_pages().do("ocr", result={"pages": pages})
    assert story.job.active == (taken,)
    story.do(taken, "end")
    assert story.status is JobStatus.SUCCEEDED
    assert story.statuses("size", taken, left_out, "end") == ["SUCCEEDED", "SUCCEEDED", "SKIPPED", "SUCCEEDED"]


def test_decision_records_its_choice() -> None:
    story = by_pages().do("ocr", result={"pages": 5})
    assert story.steps["size"].result == {"then": "short", "choice": 1}
    assert story.steps["size"].attempt.outcome is AttemptOutcome.SUCCEEDED
    assert story.records.events[-2].data == {"then": "short"}


def test_decision_without_a_matching_choice_takes_otherwise() -> None:
    story = by_pages(otherwise="end").do("ocr", result={"pages": 0})
    assert story.job.active == ("end",)
    assert story.steps["size"].result == {"then": "end", "choice": None}


def test_decision_that_chooses_fail_fails_the_job_with_decided_to_fail() -> None:
    story = by_pages().do("ocr", result={"pages": 0})
    assert story.status is JobStatus.FAILED_FINAL
    assert story.job.error is not None
    assert story.job.error.code == "DECIDED_TO_FAIL"
    assert "size" in story.job.error.message
    assert story.statuses("long", "short", "end") == ["SKIPPED"] * 3


def test_a_decision_can_end_the_job_at_once() -> None:
    shape = protocol(task("ocr"), decision("enough", {"True": "SUCCEED"}), task("more"))
    story = Story(shape).dispatched().do("ocr", result={"pages": 1})
    assert story.status is JobStatus.SUCCEEDED
    assert story.job.output_step_id == "ocr"
    assert story.statuses("more") == ["SKIPPED"]


def test_job_with_only_a_decision_ends_at_its_start() -> None:
    story = Story(protocol(decision("only", {"input.go": "SUCCEED"})), payload={"go": True}).dispatched()
    assert story.status is JobStatus.SUCCEEDED


@pytest.mark.parametrize(
    "expression", ["steps.ocr.result.words > 1", "input.nothing", "1 / 0 == 1", "steps.ocr.result.pages", "(("]
)
def test_expression_that_fails_at_run_time_fails_its_step(expression: str) -> None:
    shape = protocol(task("ocr"), decision("size", {expression: "end"}), task("end"))
    story = Story(shape).dispatched().do("ocr", result={"pages": 1})
    assert story.status is JobStatus.FAILED_FINAL
    assert story.job.error is not None
    assert story.job.error.code == "EXPRESSION_FAILED"
    assert story.steps["size"].attempt.failure_class is F.NON_RETRYABLE
    assert story.steps["size"].tries == 1


def test_failed_expression_takes_the_failure_path() -> None:
    shape = protocol(decision("size", {"input.nothing": "end"}, on_failure="clean"), task("end"), task("clean"))
    story = Story(shape).dispatched()
    assert story.job.active == ("clean",)
    assert story.do("clean").status is JobStatus.SUCCEEDED


def test_expressions_see_input_job_and_steps_that_have_not_run() -> None:
    sees = (
        "input.n == 3 and job.tenant_id == 'acme' and job.run_no == 1"
        " and steps.later.status == 'PENDING' and steps.later.result == None"
    )
    story = Story(protocol(decision("look", {sees: "later"}), task("later")), payload={"n": 3}).dispatched()
    assert story.job.active == ("later",)


def test_expressions_see_the_error_of_a_failed_step() -> None:
    shape = protocol(
        task("ocr", on_failure="why"),
        decision("why", {"steps.ocr.error.code == 'OUT_OF_PAPER'": "paper"}),
        task("paper"),
    )
    assert Story(shape).dispatched().botch("ocr").job.active == ("paper",)


class TestPaths:
    def test_failure_takes_the_failure_path(self) -> None:
        shape = protocol(task("a", on_failure="c"), task("b"), task("c"))
        story = Story(shape).dispatched().botch("a")
        assert story.job.active == ("c",)
        assert story.do("c").status is JobStatus.SUCCEEDED
        assert story.statuses("a", "b", "c") == ["FAILED_FINAL", "SKIPPED", "SUCCEEDED"]
        assert story.job.error is None
        assert story.open_reviews() == []

    @pytest.mark.parametrize("code", ["ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"])
    def test_last_timeout_takes_the_timeout_path(self, code: str) -> None:
        fields = {"timeout_ms": 60_000} if code == "STEP_TIMEOUT" else {}
        shape = protocol(task("a", on_failure="b", on_timeout="c", **fields), task("b"), task("c"))
        story = Story(shape).dispatched()
        for _ in range(3):
            story.hand_over(story.lease_of("a"))
            if code != "ACK_TIMEOUT":
                story.ack(story.lease_of("a"))
            story.tick_when_due()
            if story.status_of("a") == "FAILED_RETRY":
                story.tick_when_due()
        assert story.history("a") == [code] * 3
        assert story.job.active == ("c",)

    def test_timeout_without_a_timeout_path_takes_the_failure_path(self) -> None:
        shape = protocol(wait_for("w", "go", timeout_ms=1000, on_failure="b"), task("a"), task("b"))
        story = Story(shape).dispatched()
        story.tick_when_due()
        assert story.job.active == ("b",)

    def test_failed_hand_over_does_not_take_the_timeout_path(self) -> None:
        policy = task("a").retry_policy
        shape = protocol(task("a", on_failure="b", on_timeout="c", retry_policy=policy), task("b"), task("c"))
        story = Story(shape).dispatched()
        for _ in range(3):
            story.refuse_hand_over()
            if story.status_of("a") == "FAILED_RETRY":
                story.tick_when_due()
        assert story.job.active == ("b",)

    def test_step_path_can_end_the_job_as_succeeded_or_failed(self) -> None:
        shape = protocol(task("a", on_success="SUCCEED"), task("b"))
        assert Story(shape).dispatched().do("a").status is JobStatus.SUCCEEDED
        shape = protocol(task("a", on_failure="c"), task("b"), task("c", on_success="FAIL"))
        story = Story(shape).dispatched().botch("a").do("c")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "OUT_OF_PAPER"
        assert "step a" in story.job.error.message

    def test_output_step_is_the_last_step_with_a_result(self) -> None:
        shape = protocol(task("a"), notify("tell"), decision("d", {"True": "SUCCEED"}))
        story = Story(shape).dispatched().do("a", "tell")
        assert story.job.output_step_id == "a"


SCHEMA = {"type": "object", "required": ["total"]}


class TestOutputSchema:
    def test_output_that_fits_the_schema_ends_the_job_as_succeeded(self) -> None:
        story = Story(protocol(task("a"), output_schema=SCHEMA)).dispatched().do("a", result={"total": 1})
        assert story.status is JobStatus.SUCCEEDED

    def test_output_that_does_not_fit_the_schema_fails_the_job_and_opens_a_review_item(self) -> None:
        story = Story(protocol(task("a"), output_schema=SCHEMA)).dispatched().do("a", result={"sum": 1})
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "OUTPUT_INVALID"
        assert "total is missing" in story.job.error.message
        assert story.open_reviews() == [("JOB_FAILED", "a")]

    def test_retry_repeats_the_step_whose_output_did_not_fit(self) -> None:
        story = Story(protocol(task("a"), output_schema=SCHEMA)).dispatched().do("a", result={"sum": 1})
        key = story.steps["a"].idempotency_key
        story.retry()
        assert story.job.active == ("a",)
        assert story.steps["a"].idempotency_key != key
        assert story.do("a", result={"total": 1}).status is JobStatus.SUCCEEDED

    def test_skip_can_supply_an_output_that_fits(self) -> None:
        story = Story(protocol(task("a"), output_schema=SCHEMA)).dispatched().do("a", result={"sum": 1})
        story.skip({"total": 2})
        assert story.status is JobStatus.SUCCEEDED
        assert story.steps["a"].result == {"total": 2}


class TestTemplates:
    def test_a_call_is_rendered_from_input_and_results(self) -> None:
        body = {"pages": "${steps.ocr.result.pages}", "doc": "doc ${input.doc}", "key": "${secrets.ERP}"}
        story = Story(protocol(task("ocr"), call("post", body)), payload={"doc": 7}).dispatched()
        story.do("ocr", result={"pages": 3})
        request = story.steps["post"].request
        assert request is not None
        assert request.body == {"pages": 3, "doc": "doc 7", "key": "${secrets.ERP}"}
        assert story.steps["post"].service == "lucius.http"

    def test_retry_attempt_sends_the_same_request(self) -> None:
        story = Story(protocol(call("post", {"run": "${job.run_no}"}))).dispatched()
        request = story.steps["post"].request
        story.botch("post", F.TRANSIENT).tick_when_due()
        assert story.steps["post"].request == request

    @pytest.mark.parametrize(
        "step",
        [call("a", {"n": "${input.nothing}"}), notify("a", "${steps.b.result.n}"), approval("a", prompt="${input.x}")],
        ids=["call", "notify", "approval"],
    )
    def test_template_with_a_missing_value_fails_the_step_finally(self, step: StepSpec) -> None:
        story = Story(protocol(step, task("b")), payload={}).dispatched()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "TEMPLATE_FAILED"
        assert story.pending_rows() == []
        assert story.steps["a"].attempt.outbox_id == ""

    @pytest.mark.parametrize(
        "step",
        [
            call("a", ["${input.text}"] * 20),
            notify("a", ["${input.text}"] * 20),
            approval("a", prompt="${input.text}" * 20),
        ],
        ids=["call", "notify", "approval"],
    )
    def test_oversized_rendered_request_fails_with_its_size(self, step: StepSpec) -> None:
        story = Story(protocol(step), payload={"text": "x" * 20_000}).dispatched()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "TEMPLATE_FAILED"
        assert "bytes" in story.job.error.message


def test_steps_of_different_kinds_run_one_after_the_other() -> None:
    shape = protocol(
        decision("d", {"True": "w"}), wait_for("w", "go"), parallel("p", task("x")), approval("ok"), task("z")
    )
    story = Story(shape).dispatched()
    assert story.job.active == ("w",)
    story.signal("go")
    assert story.job.active == ("x",)
    story.do("x")
    assert story.job.active == ("ok",)
    story.approve("ok")
    assert story.job.active == ("z",)
    assert story.do("z").status is JobStatus.SUCCEEDED
