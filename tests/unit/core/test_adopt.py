"""A quarantined success is adopted instead of repeating the step: in the same run or in a new one."""

from typing import Any

import pytest

from lucius.core.model.decision import Applied
from lucius.core.model.statuses import AttemptOutcome, Disposition, JobStatus, ReviewStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import Story
from tests.unit.core.shapes import parallel, protocol, task


def stale_success(story: Story, step_id: str, result: Any = None) -> None:
    """Let the step's attempt lose its lease, start the next one, and then send the first one's success."""
    story.hand_over(story.lease_of(step_id))
    story.ack(story.lease_of(step_id))
    fenced = story.lease_of(step_id)
    story.wait_until(story.steps[step_id].attempt.lease_expires_at).tick()
    story.wait_until(story.steps[step_id].retry_at).tick()
    assert story.succeed(fenced, result or {"late": True}) is Disposition.STALE


class TestAdopt:
    @pytest.mark.parametrize("state", ["DISPATCHING", "claimed", "INITIATED", "PROCESSING", "FAILED_RETRY", "refused"])
    def test_adopt_during_a_newer_attempt_fences_it_and_the_job_continues(self, state: str) -> None:
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

    def test_attempt_fenced_by_adopt_is_in_the_history(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.ack()
        story.adopt()
        assert story.history("ocr") == ["LEASE_EXPIRED", "FENCED", "SUCCEEDED"]
        item = story.records.reviews[f"job-1~ocr~1~{story.records.history['ocr', 1].lease_id}"]
        assert (item.status, item.act) == (ReviewStatus.RESOLVED, "adopt")

    def test_adopt_after_the_end_opens_a_new_run_with_the_step_done(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.botch("ocr")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.adopt() == Applied()
        assert (story.job.run_no, story.job.active) == (2, ("embedding",))
        assert story.steps["ocr"].result == {"late": True}
        assert story.open_reviews() == []

    def test_adopt_in_a_paused_job_starts_no_step_until_resumed(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.pause()
        story.adopt()
        assert (story.status, story.job.active) == (JobStatus.PAUSED, ())
        story.resume()
        assert story.job.active == ("embedding",)

    def test_adopt_in_a_job_being_cancelled_ends_the_job(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.ack()
        story.cancel()
        story.adopt()
        assert (story.status, story.statuses()[0]) == (JobStatus.CANCELLED, "SUCCEEDED")

    def test_adopt_for_a_succeeded_step_is_refused(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        story.do("ocr")
        assert code_of(story.adopt()) == "STEP_SUCCEEDED"

    def test_adopt_is_refused_once_the_job_took_the_failure_path(self) -> None:
        story = Story(protocol(task("a", on_failure="b"), task("b"))).dispatched()
        stale_success(story, "a")
        story.botch("a")
        assert code_of(story.adopt()) == "JOB_LIVE"

    def test_adopt_inside_a_failed_container_keeps_other_results(self) -> None:
        story = Story(protocol(parallel("p", task("a"), task("b")), task("c"))).dispatched().do("a")
        stale_success(story, "b")
        story.botch("b")
        story.adopt()
        assert story.job.active == ("c",)
        assert story.steps["p"].result["branches"]["b1"]["result"] == {"late": True}
        assert story.history("a") == ["SUCCEEDED"]

    def test_adopt_inside_a_collecting_container_updates_its_result(self) -> None:
        inner = parallel("q", task("a"), task("b"), join="collect")
        story = Story(protocol(parallel("p", inner), task("c"))).dispatched().do("a")
        stale_success(story, "b")
        story.botch("b").botch("c")
        assert story.steps["p"].result["branches"]["b0"]["result"]["failed"] == 1
        story.adopt()
        assert story.steps["p"].result["branches"]["b0"]["result"]["failed"] == 0
        assert story.job.active == ("c",)
        assert story.history("a") == ["SUCCEEDED"]

    def test_adopt_for_a_step_without_an_ended_attempt_is_applied(self) -> None:
        story = Story().dispatched()
        stale_success(story, "ocr")
        [kept] = story.records.quarantined
        fresh = Story().dispatched()
        fresh.records.quarantined = [kept]
        assert fresh.steps["ocr"].attempt.outcome is None
        assert fresh.adopt() == Applied()
        assert fresh.steps["ocr"].attempt.outcome is AttemptOutcome.SUCCEEDED
