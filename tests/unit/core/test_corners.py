"""Rare combinations of two features, found by random histories."""

from typing import Any

from lucius.core.model.decision import Applied
from lucius.core.model.statuses import FailureClass, JobStatus, ReviewStatus, StepStatus
from lucius.core.protocol.definition import StepSpec
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import approval, decision, each, parallel, protocol, risky, task, undone_by

HALF_DONE = FailureClass.COMPENSATION_REQUIRED


def started(*steps: StepSpec, payload: dict[str, Any] | None = None, **policies: Any) -> Story:
    story = Story(protocol(*steps, **policies), payload=payload)
    story.submit()
    story.start()
    return story


# Review items


def compensating_job() -> Story:
    """Return a job whose booking is being undone because paying failed."""
    story = started(undone_by("book"), risky("pay"), compensation="auto")
    story.succeed()
    story.fail()
    assert story.job.active == ("undo-book",)
    return story


def test_failed_handler_opens_a_new_item_after_the_first_was_discarded() -> None:
    story = compensating_job()
    story.discard()
    story.fail_for_good()
    assert story.job.paused is not None
    assert story.job.paused.on_review
    closed, opened = story.records.reviews.values()
    assert (closed.status, opened.status) == (ReviewStatus.DISCARDED, ReviewStatus.OPEN)
    assert story.own_review == opened


def test_job_that_fails_after_its_item_was_discarded_opens_a_new_item() -> None:
    story = compensating_job()
    story.discard()
    story.succeed()
    assert story.status is JobStatus.FAILED_FINAL
    assert len(story.records.reviews) == 2
    assert story.own_review.status is ReviewStatus.OPEN


# Jobs held for review while other branches still run


def held_beside_work(*more: str) -> Story:
    story = started(parallel("both", risky("pay"), *(task(name) for name in ("scan", *more))))
    story.hand_over(story.lease_of("scan"))
    story.fail(story.lease_of("pay"))
    assert story.status is JobStatus.PAUSED
    return story


def test_retry_of_a_held_job_fences_other_branches_and_opens_a_new_run() -> None:
    story = held_beside_work()
    assert story.retry() == Applied()
    assert story.history("scan") == ["FENCED"]
    assert (story.job.run_no, story.job.active) == (2, ("pay", "scan"))


def test_retry_of_a_held_job_ends_all_branches_or_is_refused() -> None:
    """Either all branches end or nothing changes, however many run."""
    for more in range(8):
        names = [f"more{n}" for n in range(more)]
        story = started(parallel("both", risky("pay"), risky("ship"), *(risky(name) for name in names)))
        for name in names:
            story.hand_over(story.lease_of(name))
        story.fail(story.lease_of("pay"))
        story.fail(story.lease_of("ship"))
        if story.retry() == Applied():
            while story.job.ready:
                story.tick()
            assert story.job.active == ("pay", "ship", *names)
            assert [story.history(name) for name in names] == [["FENCED"]] * more
        else:
            assert more > 3


def test_discarding_the_item_of_a_held_job_cancels_its_other_branches() -> None:
    story = held_beside_work()
    story.discard()
    assert story.status is JobStatus.FAILED_FINAL
    assert story.statuses("both", "pay", "scan") == ["CANCELLED", "FAILED_FINAL", "CANCELLED"]


def test_a_held_job_with_more_running_than_a_decision_can_end_is_discarded_in_several() -> None:
    names = [f"more{n}" for n in range(8)]
    story = held_beside_work(*names)
    assert code_of(story.retry()) == "JOB_LIVE"
    assert story.discard() == Applied()
    assert (story.status, story.job.due_at) == (JobStatus.IN_PROGRESS, story.now)
    assert code_of(story.pause()) == "JOB_CANCELLING"
    while story.job.live:
        story.tick()
    assert story.status is JobStatus.FAILED_FINAL
    assert set(story.statuses("both", "scan", *names)) == {"CANCELLED"}
    assert story.open_reviews() == []


def test_a_cancelled_job_that_is_half_undone_ends_cancelled_when_its_item_is_discarded() -> None:
    story = started(undone_by("book"), task("scan"), compensate_on_cancel=True)
    story.succeed()
    story.cancel()
    story.fail_for_good()
    assert (story.status, story.job.paused is not None) == (JobStatus.CANCELLING, True)
    story.discard()
    assert story.status is JobStatus.CANCELLED


# Pause


def test_a_resume_after_a_downtime_gives_an_overdue_attempt_a_fresh_period() -> None:
    story = started(task("scan", lease_ms=MINUTE))
    story.ack()
    story.pause()
    story.wait(5 * MINUTE).resume()
    assert story.status_of("scan") is StepStatus.PROCESSING
    assert story.attempt.lease_expires_at == story.now + MINUTE


# How branches end


def outcomes(story: Story) -> list[str]:
    return [branch["status"] for branch in story.steps["both"].result["branches"].values()]


def test_branch_whose_failure_path_is_succeed_counts_as_succeeded() -> None:
    story = started(parallel("both", approval("ask", on_failure="SUCCEED"), task("scan"), join="collect"))
    story.reject("ask")
    story.succeed(story.lease_of("scan"))
    assert outcomes(story) == ["SUCCEEDED", "SUCCEEDED"]
    assert story.steps["both"].result["succeeded"] == 2


def test_branch_that_decides_to_fail_reports_its_error() -> None:
    story = started(parallel("both", decision("judge", {"True": "FAIL"}), task("scan"), join="collect"))
    story.succeed(story.lease_of("scan"))
    assert outcomes(story) == ["FAILED_FINAL", "SUCCEEDED"]
    assert story.steps["both"].result["branches"]["b0"]["error"]["code"] == "DECIDED_TO_FAIL"


def test_item_whose_last_step_leads_to_fail_counts_as_failed() -> None:
    story = started(each("both", "[1]", task("scan", on_success="FAIL"), join="collect"))
    story.succeed(story.lease_of("scan.0"))
    (item,) = story.steps["both"].result["items"]
    assert (item["status"], item["error"]["code"]) == ("FAILED_FINAL", "FAILED")


def test_branch_ended_in_an_earlier_visit_of_its_container_runs_in_a_later_visit() -> None:
    again = decision("judge", {"steps.both.result.failed == 0": "both"}, otherwise="SUCCEED")
    body = [task("scan", on_failure="SUCCEED", max_visits=1), task("check")]
    story = started(parallel("both", body, join="collect", max_visits=2), again)
    story.succeed(result="scanned")
    story.succeed(result="checked")
    assert story.steps["both"].visit == 2
    assert outcomes(story) == ["FAILED_FINAL"]


def test_step_that_succeeded_during_a_cancel_cannot_be_skipped() -> None:
    story = started(task("scan"), task("print"))
    story.ack()
    story.cancel()
    story.succeed()
    assert story.status is JobStatus.CANCELLED
    assert code_of(story.skip()) == "STEP_SUCCEEDED"


# Visits


def looping() -> Story:
    """Return a job that repeats a scan until a check passes, twice at most."""
    again = decision("judge", {"steps.check.result == 'bad'": "scan"}, otherwise="SUCCEED")
    story = started(task("scan", max_visits=2), task("check"), again)
    for _ in range(2):
        story.succeed()
        story.succeed(result="bad")
    assert story.job.error is not None
    assert story.job.error.code == "VISIT_LIMIT"
    return story


def test_new_run_counts_visits_of_a_skipped_step_from_the_start() -> None:
    story = looping()
    story.skip(result="by hand")
    story.succeed(result="bad")
    assert (story.job.run_no, story.job.active) == (2, ("scan",))
    assert story.step.visit == 2


# Guards and steps that may have run before


def test_handler_retried_by_an_operator_counts_as_a_repeat_in_a_later_run() -> None:
    story = compensating_job()
    story.succeed()
    story.retry("book")
    story.succeed()
    story.fail()
    assert (story.job.run_no, story.job.active) == (2, ("undo-book",))
    assert not story.step.repeats  # undone before, under another key: this is a separate execution
    story.fail_for_good()
    story.compensate()
    assert story.step.repeats


def test_next_visit_is_no_repeat_and_a_new_run_repeats_the_failed_step() -> None:
    story = started(task("scan"), decision("judge", {"steps.scan.result == 'bad'": "scan"}, otherwise="SUCCEED"))
    story.succeed(result="bad")
    assert (story.step.visit, story.step.repeats) == (2, False)
    story.fail_for_good()
    story.retry()
    assert (story.job.run_no, story.step.repeats) == (2, True)
