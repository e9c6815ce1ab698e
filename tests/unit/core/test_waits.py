"""Waits: a time to pass, an instant to come, a signal that comes in time, early, late or never."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lucius.core.decision import Applied, Ignored
from lucius.core.model import NEVER, BlockedReason, JobStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, SECOND, T0, Story
from tests.unit.core.shapes import parallel, pause_for, protocol, task, wait_for, wait_until


def told(story: Story) -> tuple[BlockedReason, int | None]:
    assert story.job.blocked is not None
    return story.job.blocked.reason, story.job.blocked.until


class TestTime:
    def test_a_duration_passes(self) -> None:
        story = Story(protocol(pause_for("w", 5 * MINUTE), task("a"))).dispatched()
        assert (story.status, story.status_of("w")) == (JobStatus.IN_PROGRESS, "WAITING")
        assert told(story) == (BlockedReason.TIMER, T0 + 5 * MINUTE)
        assert story.job.due_at == T0 + 5 * MINUTE
        assert isinstance(story.wait(5 * MINUTE - 1).tick(), Ignored)
        assert story.wait(1).tick() == Applied()
        assert story.statuses("w", "a") == ["SUCCEEDED", "DISPATCHING"]

    @pytest.mark.parametrize("until", ["2023-11-14T23:13:20Z", "2023-11-15T00:13:20+01:00", "input.at", "input.ms"])
    def test_an_instant_comes(self, until: str) -> None:
        payload = {"at": "2023-11-14T23:13:20+00:00", "ms": T0 + 60 * MINUTE}
        story = Story(protocol(wait_until("w", until)), payload=payload).dispatched()
        assert story.job.due_at == T0 + 60 * MINUTE == datetime(2023, 11, 14, 23, 13, 20, tzinfo=UTC).timestamp() * 1000
        story.tick_when_due()
        assert story.status is JobStatus.SUCCEEDED

    @pytest.mark.parametrize("at", ["2023-11-14T23:13:20", "2023-11-14", "20231114", "1969-12-31T23:59:59Z"])
    def test_a_text_that_no_author_could_write_is_no_instant(self, at: str) -> None:
        story = Story(protocol(wait_until("w", "input.at")), payload={"at": at}).dispatched()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "EXPRESSION_FAILED"

    def test_an_instant_that_has_passed_is_not_waited_for(self) -> None:
        story = Story(protocol(wait_until("w", "2001-01-01T00:00:00Z"), task("a"))).dispatched().settle()
        assert story.job.active == ("a",)

    @pytest.mark.parametrize("value", ["soon", True, None, 1.5, -1, 2**60, [], {"at": 1}, "99999-01-01T00:00:00Z"])
    def test_what_is_no_instant_fails_the_step(self, value: Any) -> None:
        story = Story(protocol(wait_until("w", "input.at")), payload={"at": value}).dispatched()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "EXPRESSION_FAILED"

    def test_a_missing_value_fails_the_step_and_can_have_a_path(self) -> None:
        story = Story(
            protocol(wait_until("w", "input.at", on_failure="b"), task("a"), task("b")), payload={}
        ).dispatched()
        assert story.job.active == ("b",)


class TestSignal:
    def test_it_is_waited_for_without_end(self) -> None:
        story = Story(protocol(wait_for("w", "go"), task("a"))).dispatched()
        assert told(story) == (BlockedReason.SIGNAL, None)
        assert story.job.due_at == NEVER
        assert isinstance(story.wait(10**9).tick(), Ignored)
        assert story.signal("go", {"n": 1}) == Applied()
        assert story.steps["w"].result == {"signal": "go", "by": "erp", "payload": {"n": 1}}
        assert story.job.active == ("a",)

    def test_it_is_waited_for_until_its_timeout(self) -> None:
        shape = protocol(wait_for("w", "go", timeout_ms=MINUTE, on_timeout="late"), task("a"), task("late"))
        story = Story(shape).dispatched()
        assert told(story) == (BlockedReason.SIGNAL, T0 + MINUTE)
        story.tick_when_due()
        assert story.job.active == ("late",)
        assert story.steps["w"].last_error is not None
        assert story.steps["w"].last_error.code == "SIGNAL_TIMEOUT"

    def test_one_that_comes_before_its_timeout_was_looked_at_counts(self) -> None:
        story = Story(protocol(wait_for("w", "go", timeout_ms=MINUTE), task("a"))).dispatched().wait(2 * MINUTE)
        story.signal("go")
        assert story.job.active == ("a",)

    def test_one_that_comes_early_is_kept(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"), task("b"))).dispatched()
        assert story.signal("go", 1) == Applied()
        assert [signal.name for signal in story.job.signals] == ["go"]
        story.do("a")
        assert story.job.active == ("b",)
        assert story.steps["w"].result["payload"] == 1
        assert not story.job.signals

    def test_one_that_comes_before_any_engine_is_kept(self) -> None:
        story = Story(protocol(wait_for("w", "go"), task("a")))
        story.submit()
        story.signal("go")
        story.start()
        assert story.job.active == ("a",)

    def test_each_is_taken_once_and_in_order(self) -> None:
        story = Story(protocol(task("a"), wait_for("v", "go"), wait_for("w", "go"), task("b"))).dispatched()
        story.signal("go", 1)
        story.signal("go", 2)
        story.do("a")
        assert [story.steps[s].result["payload"] for s in ("v", "w")] == [1, 2]

    def test_one_goes_to_one_of_those_that_wait(self) -> None:
        story = Story(protocol(parallel("p", wait_for("v", "go"), wait_for("w", "go")))).dispatched()
        story.signal("go")
        assert story.job.active == ("w",)
        story.signal("go")
        assert story.status is JobStatus.SUCCEEDED

    def test_nobody_ever_waits_for_an_unknown_one(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"))).dispatched()
        assert code_of(story.signal("come")) == "UNKNOWN_SIGNAL"
        assert code_of(Story().dispatched().signal("go")) == "UNKNOWN_SIGNAL"

    def test_after_the_end_it_is_refused(self) -> None:
        story = Story(protocol(wait_for("w", "go"))).dispatched()
        story.signal("go")
        assert code_of(story.signal("go")) == "JOB_TERMINAL"

    def test_no_more_are_kept_than_a_job_should_carry(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"))).dispatched()
        for _ in range(32):
            assert story.signal("go") == Applied()
        assert code_of(story.signal("go")) == "TOO_MANY_SIGNALS"

    def test_one_that_is_waited_for_is_taken_however_many_are_kept(self) -> None:
        story = Story(protocol(wait_for("v", "now"), wait_for("w", "go"))).dispatched()
        for _ in range(32):
            story.signal("go")
        assert story.signal("now") == Applied()
        assert story.status is JobStatus.SUCCEEDED

    def test_it_is_audited(self) -> None:
        story = Story(protocol(wait_for("w", "go"))).dispatched()
        story.signal("go")
        [event] = [event for event in story.books.events if event.type == "SIGNAL_RECEIVED"]
        assert event.data == {"name": "go", "by": "erp", "reason": "because"}

    def test_what_was_kept_and_not_taken_is_there_for_the_next_run(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"), task("b"))).dispatched()
        story.signal("go")
        story.botch("a")
        story.retry()
        story.do("a")
        assert story.job.active == ("b",)


class TestCancel:
    def test_a_job_that_waits_is_cancelled_at_once(self) -> None:
        for step in (pause_for("w", SECOND), wait_for("w", "go")):
            story = Story(protocol(step, task("a"))).dispatched()
            story.cancel()
            assert story.status is JobStatus.CANCELLED
            assert story.statuses("w", "a") == ["CANCELLED", "CANCELLED"]
