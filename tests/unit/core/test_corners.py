"""Corners where two things meet: rare in one story, found by many random ones."""

from typing import Any

from lucius.core.decision import Applied
from lucius.core.model import FailureClass, JobStatus, ReviewStatus, StepStatus
from lucius.core.protocol import StepSpec
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


def undoing() -> Story:
    """Booked, and what was booked is being undone because paying failed."""
    story = started(undone_by("book"), risky("pay"), compensation="auto")
    story.succeed()
    story.fail()
    assert story.job.active == ("undo-book",)
    return story


def test_an_item_that_is_discarded_while_handlers_run_makes_room_for_another() -> None:
    story = undoing()
    story.discard()
    story.fail_for_good()
    assert story.job.paused is not None
    assert story.job.paused.on_review
    closed, opened = story.books.reviews.values()
    assert (closed.status, opened.status) == (ReviewStatus.DISCARDED, ReviewStatus.OPEN)
    assert story.own_review == opened


def test_a_job_that_fails_after_its_item_was_discarded_is_looked_at_anew() -> None:
    story = undoing()
    story.discard()
    story.succeed()
    assert story.status is JobStatus.FAILED_FINAL
    assert len(story.books.reviews) == 2
    assert story.own_review.status is ReviewStatus.OPEN


# A job that is held on its review while other branches still run


def held_beside_work(*more: str) -> Story:
    story = started(parallel("both", risky("pay"), *(task(name) for name in ("scan", *more))))
    story.hand_over(story.lease_of("scan"))
    story.fail(story.lease_of("pay"))
    assert story.status is JobStatus.PAUSED
    return story


def test_a_retry_of_a_held_job_ends_what_else_runs_and_starts_anew() -> None:
    story = held_beside_work()
    assert story.retry() == Applied()
    assert story.history("scan") == ["FENCED"]
    assert (story.job.run_no, story.job.active) == (2, ("pay", "scan"))


def test_a_retry_of_a_held_job_ends_all_that_runs_or_is_refused() -> None:
    """However much runs: nothing in between."""
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


def test_a_held_job_that_is_discarded_ends_with_all_that_ran_in_it() -> None:
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


# How a branch ended


def outcomes(story: Story) -> list[str]:
    return [branch["status"] for branch in story.steps["both"].result["branches"].values()]


def test_a_branch_whose_failed_step_leads_to_success_has_succeeded() -> None:
    story = started(parallel("both", approval("ask", on_failure="SUCCEED"), task("scan"), join="collect"))
    story.reject("ask")
    story.succeed(story.lease_of("scan"))
    assert outcomes(story) == ["SUCCEEDED", "SUCCEEDED"]
    assert story.steps["both"].result["succeeded"] == 2


def test_a_branch_that_decides_to_fail_has_failed_and_says_so() -> None:
    story = started(parallel("both", decision("judge", {"True": "FAIL"}), task("scan"), join="collect"))
    story.succeed(story.lease_of("scan"))
    assert outcomes(story) == ["FAILED_FINAL", "SUCCEEDED"]
    assert story.steps["both"].result["branches"]["b0"]["error"]["code"] == "DECIDED_TO_FAIL"


def test_an_item_whose_last_step_leads_to_failure_has_failed_though_the_step_did_not() -> None:
    story = started(each("both", "[1]", task("scan", on_success="FAIL"), join="collect"))
    story.succeed(story.lease_of("scan.0"))
    (item,) = story.steps["both"].result["items"]
    assert (item["status"], item["error"]["code"]) == ("FAILED_FINAL", "FAILED")


def test_what_closed_a_branch_in_an_earlier_visit_of_its_container_closes_no_later_one() -> None:
    again = decision("judge", {"steps.both.result.failed == 0": "both"}, otherwise="SUCCEED")
    body = [task("scan", on_failure="SUCCEED", max_visits=1), task("check")]
    story = started(parallel("both", body, join="collect", max_visits=2), again)
    story.succeed(result="scanned")
    story.succeed(result="checked")
    assert story.steps["both"].visit == 2
    assert outcomes(story) == ["FAILED_FINAL"]


def test_what_succeeded_while_its_job_was_cancelled_is_not_skipped() -> None:
    story = started(task("scan"), task("print"))
    story.ack()
    story.cancel()
    story.succeed()
    assert story.status is JobStatus.CANCELLED
    assert code_of(story.skip()) == "STEP_SUCCEEDED"


# Visits


def looping() -> Story:
    """A scan that is repeated until a check is content, twice at most."""
    again = decision("judge", {"steps.check.result == 'bad'": "scan"}, otherwise="SUCCEED")
    story = started(task("scan", max_visits=2), task("check"), again)
    for _ in range(2):
        story.succeed()
        story.succeed(result="bad")
    assert story.job.error is not None
    assert story.job.error.code == "VISIT_LIMIT"
    return story


def test_a_new_run_counts_visits_from_the_start_also_of_what_a_person_skipped() -> None:
    story = looping()
    story.skip(result="by hand")
    story.succeed(result="bad")
    assert (story.job.run_no, story.job.active) == (2, ("scan",))
    assert story.step.visit == 2


# Whether a piece of work may have been done before: what a guard is asked about


def test_a_handler_that_a_person_tries_again_repeats_also_in_a_later_run() -> None:
    story = undoing()
    story.succeed()
    story.retry("book")
    story.succeed()
    story.fail()
    assert (story.job.run_no, story.job.active) == (2, ("undo-book",))
    assert not story.step.repeats  # undone before, under another key: this is work of its own
    story.fail_for_good()
    story.compensate()
    assert story.step.repeats


def test_another_visit_repeats_nothing_and_another_run_repeats_what_failed() -> None:
    story = started(task("scan"), decision("judge", {"steps.scan.result == 'bad'": "scan"}, otherwise="SUCCEED"))
    story.succeed(result="bad")
    assert (story.step.visit, story.step.repeats) == (2, False)
    story.fail_for_good()
    story.retry()
    assert (story.job.run_no, story.step.repeats) == (2, True)
