"""Rules about states: ends, implied transitions, order, failure classes, waits and idempotency keys.

Dispositions are in `test_callbacks.py`, deadlines in `test_clocks.py`, hand-over in `test_handover.py`, cancel in
`test_cancel.py`, and every input in every state in `test_every_pair.py`.
"""

import hashlib

import pytest

from lucius.core.decide.decide import decide, decide_all
from lucius.core.model.decision import Applied, Ignored, Refused
from lucius.core.model.inputs import Cap, DeadlinePassed, Start
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, Disposition, FailureClass, JobStatus, OutboxStatus
from lucius.core.protocol.definition import RetryPolicy
from lucius.core.steps.new_step import step_idempotency_key
from tests.unit.core.builders import JOB_ID, MINUTE, SECOND, Story, lost_lease, three_steps

APPLIED, DUPLICATE, LATE, STALE = Disposition.APPLIED, Disposition.DUPLICATE, Disposition.LATE, Disposition.STALE


class TestTerminalStates:
    def test_steps_that_never_started_end_skipped_when_the_job_fails(self) -> None:
        story = Story().processing()
        story.fail_for_good()
        assert story.statuses() == ["FAILED_FINAL", "SKIPPED", "SKIPPED"]

    def test_steps_that_never_started_end_cancelled_when_the_job_is_cancelled(self) -> None:
        story = Story().dispatched().finish_step()
        story.cancel()
        assert story.statuses() == ["SUCCEEDED", "CANCELLED", "CANCELLED"]

    def test_failed_job_names_the_failed_step_and_its_error(self) -> None:
        story = Story().processing()
        story.fail_for_good()
        assert story.job.error is not None
        assert story.job.error.code == "UNREADABLE"
        assert "ocr" in story.job.error.message

    def test_finished_job_has_no_deadline_no_blocked_reason_and_no_row(self) -> None:
        story = Story().finished()
        assert story.job.due_at is None
        assert story.job.blocked is None
        assert story.pending_rows() == []
        assert story.job.completed_at == story.now


class TestImpliedTransitions:
    @pytest.mark.parametrize("claimed", [False, True], ids=["waiting", "being published"])
    @pytest.mark.parametrize("word", ["ack", "heartbeat", "succeed", "fail"])
    def test_each_callback_is_applied_before_the_hand_over_was_reported(self, word: str, claimed: bool) -> None:
        story = Story().claimed() if claimed else Story().dispatched()
        row_id = story.row.outbox_id
        assert getattr(story, word)() is APPLIED
        assert story.records.rows[row_id].status is OutboxStatus.SENT
        assert story.status is JobStatus.IN_PROGRESS
        assert story.steps["ocr"].attempt.handed_over_at == story.now
        assert story.steps["ocr"].attempt.picked_up_at == story.now

    @pytest.mark.parametrize("word", ["heartbeat", "succeed", "fail"])
    def test_heartbeat_and_result_imply_pick_up(self, word: str) -> None:
        story = Story().initiated()
        assert getattr(story, word)() is APPLIED
        assert story.steps["ocr"].attempt.picked_up_at == story.now

    def test_hand_over_report_after_a_callback_is_ignored(self) -> None:
        story = Story().claimed()
        lease = story.lease
        story.ack()
        assert isinstance(story.hand_over(lease), Ignored)
        assert isinstance(story.refuse_hand_over(lease), Ignored)
        assert isinstance(story.release(lease), Ignored)

    def test_an_ack_after_a_heartbeat_still_counts_once(self) -> None:
        story = Story().initiated()
        story.heartbeat()
        assert story.ack() is APPLIED
        assert story.attempt.acked_at == story.now
        assert story.ack() is DUPLICATE

    @pytest.mark.parametrize("outcome", ["ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"])
    def test_a_late_success_rescues_a_timed_out_attempt(self, outcome: str) -> None:
        story = timed_out(outcome)
        lease = story.lease
        assert story.succeed(lease) is APPLIED
        assert story.statuses() == ["SUCCEEDED", "DISPATCHING", "PENDING"]
        rescued = story.steps["ocr"].attempt
        assert (rescued.outcome, rescued.error, rescued.failure_class) == (AttemptOutcome.SUCCEEDED, None, None)
        assert story.history() == ["SUCCEEDED"]
        assert story.succeed(lease) is DUPLICATE

    @pytest.mark.parametrize("outcome", ["ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"])
    def test_late_callback_other_than_success_does_not_stop_the_retry_of_a_timeout(self, outcome: str) -> None:
        story = timed_out(outcome)
        acked = story.attempt.acked_at is not None
        assert story.ack() is (DUPLICATE if acked else LATE)
        assert story.heartbeat() is LATE
        assert story.fail() is LATE
        assert story.step.retry_at is not None

    def test_a_second_result_that_contradicts_a_reported_failure_is_late(self) -> None:
        story = Story().processing()
        story.fail()
        assert story.succeed() is LATE
        assert story.fail(code="OUT_OF_INK") is LATE

    def test_success_after_its_retry_started_is_stale(self) -> None:
        story = timed_out("ACK_TIMEOUT")
        fenced = story.lease
        story.next_attempt()
        assert story.succeed(fenced) is STALE


def timed_out(outcome: str) -> Story:
    story = Story(three_steps(first={"timeout_ms": MINUTE})) if outcome == "STEP_TIMEOUT" else Story()
    story = story.initiated() if outcome == "ACK_TIMEOUT" else story.processing()
    story.tick_when_due()
    assert story.attempt.outcome == outcome
    return story


class TestOneStepAtATime:
    def test_the_next_step_starts_with_the_success_of_the_one_before(self) -> None:
        story = Story().processing()
        assert story.statuses() == ["PROCESSING", "PENDING", "PENDING"]
        story.succeed()
        assert story.statuses() == ["SUCCEEDED", "DISPATCHING", "PENDING"]
        assert story.job.active == ("embedding",)
        assert story.job.current_step_id == "embedding"

    def test_a_retry_does_not_start_the_next_step(self) -> None:
        story = Story().processing()
        story.fail()
        assert story.statuses() == ["FAILED_RETRY", "PENDING", "PENDING"]


class TestFailureClasses:
    @pytest.mark.parametrize("cause", FailureClass)
    def test_all_but_two_classes_are_retried(self, cause: FailureClass) -> None:
        story = Story().processing()
        story.fail(failure_class=cause)
        final = cause in (FailureClass.NON_RETRYABLE, FailureClass.COMPENSATION_REQUIRED)
        assert story.statuses()[0] == ("FAILED_FINAL" if final else "FAILED_RETRY")
        assert story.attempt.failure_class is cause


class TestBlocked:
    def test_blocked_names_reason_step_start_and_end_of_the_wait(self) -> None:
        story = Story()
        seen = []
        story.submit()
        seen.append(story.job.blocked)
        for happens in (story.start, story.hand_over, story.ack, story.fail, story.tick_when_due):
            story.wait(SECOND)
            happens()
            seen.append(story.job.blocked)
        facts = [(b.reason, b.step_id, b.until is not None) for b in seen if b is not None]
        assert facts == [
            (BlockedReason.ENGINE, None, False),
            (BlockedReason.HANDOVER, "ocr", False),
            (BlockedReason.ACK, "ocr", True),
            (BlockedReason.RESULT, "ocr", True),
            (BlockedReason.RETRY, "ocr", True),
            (BlockedReason.HANDOVER, "ocr", False),
        ]
        since = [b.since for b in seen if b is not None]
        assert since == sorted(set(since))


class TestIdempotencyKey:
    def test_key_is_the_hash_of_tenant_job_and_step(self) -> None:
        story = Story().dispatched()
        expected = hashlib.sha256(f"acme\x1f{JOB_ID}\x1focr".encode()).hexdigest()
        assert story.step.idempotency_key == expected == step_idempotency_key("acme", JOB_ID, "ocr")

    def test_key_is_equal_for_all_attempts_and_differs_per_step_and_tenant(self) -> None:
        story, _ = lost_lease()
        key = story.step.idempotency_key
        assert key == Story().dispatched().step.idempotency_key
        story.finish_step()
        assert story.step.idempotency_key != key
        assert Story(tenant_id="globex").dispatched().step.idempotency_key != key


class TestAttempts:
    def test_the_history_is_append_only_and_complete(self) -> None:
        story = Story(three_steps(retry=RetryPolicy(max_attempts=9)))
        story.dispatched()
        story.refuse_hand_over()
        story.next_attempt().hand_over()
        story.tick_when_due()
        story.next_attempt().hand_over()
        story.ack()
        story.tick_when_due()
        story.next_attempt().hand_over()
        story.fail()
        story.next_attempt().repair("ocr")
        story.finish_step()
        ends = ["HANDOVER_FAILED", "ACK_TIMEOUT", "LEASE_EXPIRED", "FAILED", "REPAIRED", "SUCCEEDED"]
        assert story.history() == ends
        assert [a.attempt_no for a in story.records.history.values()] == [1, 2, 3, 4, 5, 6]
        assert len({a.lease_id for a in story.records.history.values()}) == 6
        assert story.job.attempts_total == 7

    def test_attempt_keeps_the_routing_decided_at_submission(self) -> None:
        story, _ = lost_lease()
        assert story.attempt.routing == story.job.routing
        assert story.row.lane == story.job.routing.lane
        assert story.row.topic == f"global-bus-p{story.job.routing.lane}"


class TestDecisions:
    def test_submit_and_start_are_one_decision(self) -> None:
        cap = Cap("jobs/tenant/acme", 10)
        story = Story(caps=(cap,)).dispatched()
        assert story.job.version == 1
        assert story.decision.creates
        assert story.decision.caps == (cap,)
        assert story.decision.counters["jobs/tenant/acme"] == 1
        assert story.event_types() == ["JOB_ACCEPTED", "STEP_DISPATCHED"]

    def test_a_job_is_created_once(self) -> None:
        story = Story().processing()
        assert isinstance(story.submit(), Ignored)
        assert not story.decision.changes

    def test_input_without_a_job_raises_value_error(self) -> None:
        story = Story()
        with pytest.raises(ValueError, match="does not exist"):
            decide(None, Start(), story.now, story.env)

    def test_input_before_the_submission_is_refused_without_affecting_the_submission(self) -> None:
        story = Story()
        decision = decide_all(None, (Start(), story.submission()), story.now, story.env)
        refused, accepted = decision.replies
        assert isinstance(refused, Refused)
        assert refused.code == "JOB_NOT_FOUND"
        assert accepted == Applied()

    def test_deadline_check_starts_a_queued_job(self) -> None:
        story = Story()
        story.submit()
        assert story.job.due_at == story.now
        assert story.feed(DeadlinePassed()) == Applied()
        assert story.status is JobStatus.DISPATCHING
        assert isinstance(story.start(), Ignored)
