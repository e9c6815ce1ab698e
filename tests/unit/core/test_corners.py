"""Corners where two things meet: rare in one story, found by many random ones."""

from lucius.core.decision import Applied
from lucius.core.model import FailureClass, JobStatus, ReviewStatus, StepStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import parallel, protocol, risky, task, undone_by

HALF_DONE = FailureClass.COMPENSATION_REQUIRED


def started(*steps: object, **policies: object) -> Story:
    story = Story(protocol(*steps, **policies))  # type: ignore[arg-type]
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


def test_a_held_job_that_is_discarded_ends_with_all_that_ran_in_it() -> None:
    story = held_beside_work()
    story.discard()
    assert story.status is JobStatus.FAILED_FINAL
    assert story.statuses("both", "pay", "scan") == ["CANCELLED", "FAILED_FINAL", "CANCELLED"]


def test_a_held_job_with_more_running_than_a_decision_can_end_is_acted_on_later() -> None:
    names = [f"more{n}" for n in range(8)]
    story = held_beside_work(*names)
    assert code_of(story.retry()) == "JOB_LIVE"
    assert code_of(story.discard()) == "JOB_LIVE"
    for name in names:
        story.succeed(story.lease_of(name))
    assert story.discard() == Applied()


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
