"""Waits for a duration, an instant, or a signal that arrives in time, early, late or never."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lucius.core.model.decision import Applied, Ignored
from lucius.core.model.records import NEVER
from lucius.core.model.statuses import BlockedReason, JobStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, SECOND, T0, Story
from tests.unit.core.shapes import parallel, pause_for, protocol, task, wait_for, wait_until


def blocked_reason_and_end(story: Story) -> tuple[BlockedReason, int | None]:
    assert story.job.blocked is not None
    return story.job.blocked.reason, story.job.blocked.until


class TestTimer:
    def test_wait_for_a_duration_ends_when_it_has_passed(self) -> None:
        story = Story(protocol(pause_for("w", 5 * MINUTE), task("a"))).dispatched()
        assert (story.status, story.status_of("w")) == (JobStatus.IN_PROGRESS, "WAITING")
        assert blocked_reason_and_end(story) == (BlockedReason.TIMER, T0 + 5 * MINUTE)
        assert story.job.due_at == T0 + 5 * MINUTE
        assert isinstance(story.wait(5 * MINUTE - 1).tick(), Ignored)
        assert story.wait(1).tick() == Applied()
        assert story.statuses("w", "a") == ["SUCCEEDED", "DISPATCHING"]

    @pytest.mark.parametrize("until", ["2023-11-14T23:13:20Z", "2023-11-15T00:13:20+01:00", "input.at", "input.ms"])
    def test_wait_until_an_instant_ends_at_the_instant(self, until: str) -> None:
        payload = {"at": "2023-11-14T23:13:20+00:00", "ms": T0 + 60 * MINUTE}
        story = Story(protocol(wait_until("w", until)), payload=payload).dispatched()
        assert story.job.due_at == T0 + 60 * MINUTE == datetime(2023, 11, 14, 23, 13, 20, tzinfo=UTC).timestamp() * 1000
        story.tick_when_due()
        assert story.status is JobStatus.SUCCEEDED

    @pytest.mark.parametrize("at", ["2023-11-14T23:13:20", "2023-11-14", "20231114", "1969-12-31T23:59:59Z"])
    def test_malformed_instant_in_the_input_fails_the_step(self, at: str) -> None:
        story = Story(protocol(wait_until("w", "input.at")), payload={"at": at}).dispatched()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "EXPRESSION_FAILED"

    def test_wait_until_a_past_instant_ends_at_once(self) -> None:
        story = Story(protocol(wait_until("w", "2001-01-01T00:00:00Z"), task("a"))).dispatched().settle()
        assert story.job.active == ("a",)

    @pytest.mark.parametrize("value", ["soon", True, None, 1.5, -1, 2**60, [], {"at": 1}, "99999-01-01T00:00:00Z"])
    def test_value_that_is_no_instant_fails_the_step(self, value: Any) -> None:
        story = Story(protocol(wait_until("w", "input.at")), payload={"at": value}).dispatched()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "EXPRESSION_FAILED"

    def test_missing_instant_fails_the_step_and_takes_its_failure_path(self) -> None:
        story = Story(
            protocol(wait_until("w", "input.at", on_failure="b"), task("a"), task("b")), payload={}
        ).dispatched()
        assert story.job.active == ("b",)


class TestSignal:
    def test_signal_without_a_timeout_is_awaited_without_a_deadline(self) -> None:
        story = Story(protocol(wait_for("w", "go"), task("a"))).dispatched()
        assert blocked_reason_and_end(story) == (BlockedReason.SIGNAL, None)
        assert story.job.due_at == NEVER
        assert isinstance(story.wait(10**9).tick(), Ignored)
        assert story.signal("go", {"n": 1}) == Applied()
        assert story.steps["w"].result == {"signal": "go", "by": "erp", "payload": {"n": 1}}
        assert story.job.active == ("a",)

    def test_signal_with_a_timeout_takes_the_timeout_path(self) -> None:
        shape = protocol(wait_for("w", "go", timeout_ms=MINUTE, on_timeout="late"), task("a"), task("late"))
        story = Story(shape).dispatched()
        assert blocked_reason_and_end(story) == (BlockedReason.SIGNAL, T0 + MINUTE)
        story.tick_when_due()
        assert story.job.active == ("late",)
        assert story.steps["w"].last_error is not None
        assert story.steps["w"].last_error.code == "SIGNAL_TIMEOUT"

    def test_signal_before_the_sweep_of_its_timeout_counts(self) -> None:
        story = Story(protocol(wait_for("w", "go", timeout_ms=MINUTE), task("a"))).dispatched().wait(2 * MINUTE)
        story.signal("go")
        assert story.job.active == ("a",)

    def test_early_signal_is_kept_for_a_later_step(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"), task("b"))).dispatched()
        assert story.signal("go", 1) == Applied()
        assert [signal.name for signal in story.job.signals] == ["go"]
        story.do("a")
        assert story.job.active == ("b",)
        assert story.steps["w"].result["payload"] == 1
        assert not story.job.signals

    def test_signal_to_a_queued_job_is_kept(self) -> None:
        story = Story(protocol(wait_for("w", "go"), task("a")))
        story.submit()
        story.signal("go")
        story.start()
        assert story.job.active == ("a",)

    def test_kept_signals_are_consumed_once_and_in_order(self) -> None:
        story = Story(protocol(task("a"), wait_for("v", "go"), wait_for("w", "go"), task("b"))).dispatched()
        story.signal("go", 1)
        story.signal("go", 2)
        story.do("a")
        assert [story.steps[s].result["payload"] for s in ("v", "w")] == [1, 2]

    def test_signal_ends_one_of_two_waiting_steps(self) -> None:
        story = Story(protocol(parallel("p", wait_for("v", "go"), wait_for("w", "go")))).dispatched()
        story.signal("go")
        assert story.job.active == ("w",)
        story.signal("go")
        assert story.status is JobStatus.SUCCEEDED

    def test_unknown_signal_is_refused(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"))).dispatched()
        assert code_of(story.signal("come")) == "UNKNOWN_SIGNAL"
        assert code_of(Story().dispatched().signal("go")) == "UNKNOWN_SIGNAL"

    def test_signal_after_the_end_of_the_job_is_refused(self) -> None:
        story = Story(protocol(wait_for("w", "go"))).dispatched()
        story.signal("go")
        assert code_of(story.signal("go")) == "JOB_TERMINAL"

    def test_number_of_kept_signals_is_bounded(self) -> None:
        story = Story(protocol(task("a"), wait_for("w", "go"))).dispatched()
        for _ in range(32):
            assert story.signal("go") == Applied()
        assert code_of(story.signal("go")) == "TOO_MANY_SIGNALS"

    def test_awaited_signal_is_accepted_although_the_limit_of_kept_ones_is_reached(self) -> None:
        story = Story(protocol(wait_for("v", "now"), wait_for("w", "go"))).dispatched()
        for _ in range(32):
            story.signal("go")
        assert story.signal("now") == Applied()
        assert story.status is JobStatus.SUCCEEDED

    def test_signal_is_audited(self) -> None:
        story = Story(protocol(wait_for("w", "go"))).dispatched()
        story.signal("go")
        [event] = [event for event in story.records.events if event.type == "SIGNAL_RECEIVED"]
        assert event.data == {"name": "go", "by": "erp", "reason": "because"}

    def test_unconsumed_signal_is_kept_for_the_next_run(self) -> None:
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
