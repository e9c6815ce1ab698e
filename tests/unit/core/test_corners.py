"""Corners where two things meet: rare in one story, found by many random ones."""

from lucius.core.model import FailureClass, JobStatus, ReviewStatus
from tests.unit.core.builders import Story
from tests.unit.core.shapes import protocol, risky, undone_by

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
