"""A quarantined success is adopted instead of paying for the step again: now, or as a new run."""

from typing import Any

import pytest

from lucius.core.decision import Applied
from lucius.core.model import AttemptOutcome, Disposition, JobStatus, ReviewStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import Story
from tests.unit.core.shapes import parallel, protocol, task


def stale_success(story: Story, step_id: str, result: Any = None) -> None:
    """The step's attempt loses its lease, is tried again, and then its success comes after all."""
    story.hand_over(story.lease_of(step_id))
    story.ack(story.lease_of(step_id))
    fenced = story.lease_of(step_id)
    story.wait_until(story.steps[step_id].attempt.lease_expires_at).tick()
    story.wait_until(story.steps[step_id].retry_at).tick()
    assert story.succeed(fenced, result or {"late": True}) is Disposition.STALE


class TestAdopt:
    @pytest.mark.parametrize("state", ["DISPATCHING", "claimed", "INITIATED", "PROCESSING", "FAILED_RETRY", "refused"])
    def test_while_the_step_runs_its_attempt_is_fenced_and_the_job_goes_on(self, state: str) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        running = story.lease_of("ocr")
        match state:
            case "claimed":
                story.claim()
            case "INITIATED":
                story.hand_over()
            case "PROCESSING":
                story.ack()
            case "FAILED_RETRY":
                story.fail()
            case "refused":
                story.refuse_hand_over()
            case _:
                pass
        assert story.adopt() == Applied()
        step = story.steps["ocr"]
        assert (step.status, step.result, step.attempt.attempt_no) == ("SUCCEEDED", {"late": True}, 3)
        assert step.attempt.adopted_from == 1
        assert story.job.active == ("embedding",)
        assert story.succeed(running) is Disposition.STALE

    def test_the_fenced_attempt_is_in_the_history(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.ack()
        story.adopt()
        assert story.history("ocr") == ["LEASE_EXPIRED", "FENCED", "SUCCEEDED"]
        item = story.books.reviews[f"job-1~ocr~1~{story.books.history['ocr', 1].lease_id}"]
        assert (item.status, item.act) == (ReviewStatus.RESOLVED, "adopt")

    def test_after_the_end_it_is_a_new_run_with_that_step_done(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.botch("ocr")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.adopt() == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("embedding",))
        assert story.steps["ocr"].result == {"late": True}
        assert story.open_reviews() == []

    def test_a_paused_job_takes_it_and_waits(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.pause()
        story.adopt()
        assert (story.status, story.job.active) == (JobStatus.PAUSED, ())
        story.resume()
        assert story.job.active == ("embedding",)

    def test_a_job_that_is_being_cancelled_takes_it_and_ends(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.ack()
        story.cancel()
        story.adopt()
        assert (story.status, story.statuses()[0]) == (JobStatus.CANCELLED, "SUCCEEDED")

    def test_a_step_that_has_a_result_needs_none(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.do("ocr")
        assert code_of(story.adopt()) == "STEP_SUCCEEDED"

    def test_a_job_that_went_another_way_meanwhile_is_left_alone(self) -> None:
        story = Story(protocol(task("a", on_failure="b"), task("b"))).dispatched()
        stale_success(story, "a")
        story.botch("a")
        assert code_of(story.adopt()) == "JOB_LIVE"

    def test_inside_a_container_that_failed_the_rest_stands(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")), task("c"))).dispatched().do("a")
        stale_success(story, "b")
        story.botch("b")
        story.adopt()
        assert story.job.active == ("c",)
        assert story.steps["p"].result["branches"]["b1"]["result"] == {"late": True}
        assert story.history("a") == ["SUCCEEDED"]

    def test_inside_a_container_that_collected_the_failure_its_result_is_made_anew(self) -> None:
        inner = parallel("q", task("a"), task("b"), join="collect")
        story = Story(protocol(parallel("p", inner), task("c"))).dispatched().do("a")
        stale_success(story, "b")
        story.botch("b").botch("c")
        assert story.steps["p"].result["branches"]["b0"]["result"]["failed"] == 1
        story.adopt()
        assert story.steps["p"].result["branches"]["b0"]["result"]["failed"] == 0
        assert story.job.active == ("c",)
        assert story.history("a") == ["SUCCEEDED"]

    def test_one_that_never_ran_has_nothing_to_adopt_for(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        [kept] = story.books.quarantined
        fresh = Story().dispatched()
        fresh.books.quarantined = [kept]
        assert fresh.steps["ocr"].attempt.outcome is None
        assert fresh.adopt() == Applied()
        assert fresh.steps["ocr"].attempt.outcome is AttemptOutcome.SUCCEEDED
