"""Effects of time: deadlines, the attempt budget and its delays, downtime, and the job's timeout."""

import pytest

from lucius.core.model.decision import Applied, Defaults, Ignored
from lucius.core.model.records import ProgressCounts
from lucius.core.model.statuses import AttemptOutcome, FailureClass, JobStatus, OutboxStatus
from lucius.core.protocol.definition import RetryPolicy
from tests.unit.core.builders import MINUTE, SECOND, Story, three_steps

LEASE = 15 * MINUTE
ACK = 30 * SECOND


class TestDeadlines:
    def test_the_ack_is_due_30_s_after_hand_over(self) -> None:
        story = Story().dispatched().wait(5 * MINUTE)
        story.hand_over()
        assert story.attempt.ack_deadline == story.job.due_at == story.now + ACK
        assert isinstance(story.wait(ACK - 1).tick(), Ignored)
        assert story.wait(1).tick() == Applied()
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    def test_the_lease_runs_15_min_from_the_ack(self) -> None:
        story = Story().initiated().wait(10 * SECOND)
        story.ack()
        assert story.answer.lease_expires_at == story.attempt.lease_expires_at == story.now + LEASE
        assert isinstance(story.wait(LEASE - 1).tick(), Ignored)
        assert story.wait(1).tick() == Applied()
        assert story.attempt.outcome is AttemptOutcome.LEASE_EXPIRED

    def test_a_heartbeat_extends_the_lease(self) -> None:
        story = Story().processing().wait(14 * MINUTE)
        story.heartbeat(progress=0.5)
        assert story.answer.lease_expires_at == story.job.due_at == story.now + LEASE
        assert story.attempt.progress == 0.5
        story.heartbeat()
        assert story.attempt.progress == 0.5

    def test_heartbeat_counts_stay_until_a_later_heartbeat_replaces_them(self) -> None:
        story = Story().processing()
        story.heartbeat(counts=ProgressCounts(7, 20, "page"))
        story.heartbeat()
        assert (story.attempt.progress, story.attempt.counts) == (0.35, ProgressCounts(7, 20, "page"))
        story.heartbeat(counts=ProgressCounts(30, 20))
        assert story.attempt.progress == 1.0
        story.heartbeat(counts=ProgressCounts(3))
        attempt = story.attempt
        assert (attempt.progress, attempt.counts) == (None, ProgressCounts(3))
        story.heartbeat(progress=0.5)
        assert (story.attempt.progress, story.attempt.counts) == (0.5, None)

    def test_heartbeat_before_the_sweep_saves_an_expired_lease(self) -> None:
        story = Story().processing().wait(LEASE + 1)
        story.heartbeat()
        assert isinstance(story.tick(), Ignored)

    def test_repeated_ack_does_not_extend_the_lease(self) -> None:
        story = Story().processing()
        due = story.job.due_at
        story.wait(MINUTE).ack()
        assert story.job.due_at == due

    def test_heartbeats_do_not_extend_the_steps_own_timeout(self) -> None:
        story = Story(three_steps(first={"timeout_ms": 20 * MINUTE})).processing()
        hard = story.now + 20 * MINUTE
        story.wait(10 * MINUTE).heartbeat()
        assert story.job.due_at == hard
        story.wait(10 * MINUTE - 1).heartbeat()
        assert isinstance(story.tick(), Ignored)
        story.wait(1).heartbeat()
        assert story.tick() == Applied()
        assert story.attempt.outcome is AttemptOutcome.STEP_TIMEOUT
        assert story.now == hard

    def test_step_timeout_does_not_run_before_the_ack(self) -> None:
        story = Story(three_steps(first={"timeout_ms": SECOND})).initiated()
        assert story.job.due_at == story.now + ACK

    def test_step_in_a_protocol_overrides_its_clocks(self) -> None:
        story = Story(three_steps(first={"ack_timeout_ms": 7 * SECOND, "lease_ms": 9 * SECOND})).initiated()
        assert story.job.due_at == story.now + 7 * SECOND
        story.ack()
        assert story.job.due_at == story.now + 9 * SECOND
        story.wait(SECOND).heartbeat()
        assert story.job.due_at == story.now + 9 * SECOND

    def test_deployment_settings_are_the_default_clocks(self) -> None:
        defaults = Defaults(ack_timeout_ms=3 * SECOND, lease_ms=4 * SECOND, max_attempts=1)
        story = Story(defaults=defaults).initiated()
        assert story.job.due_at == story.now + 3 * SECOND
        story.ack()
        assert story.job.due_at == story.now + 4 * SECOND
        story.tick_when_due()
        assert story.status is JobStatus.FAILED_FINAL


class TestAttemptBudget:
    def test_budget_is_three_attempts_over_all_kinds_of_failure(self) -> None:
        story = Story().dispatched()
        story.refuse_hand_over()
        story.next_attempt().hand_over()
        story.tick_when_due()
        story.next_attempt().hand_over()
        story.ack()
        assert story.job.live
        story.tick_when_due()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.history() == ["HANDOVER_FAILED", "ACK_TIMEOUT", "LEASE_EXPIRED"]
        assert story.job.error is not None
        assert story.job.error.code == "LEASE_EXPIRED"

    @pytest.mark.parametrize("allowed", [1, 2, 5])
    def test_step_in_a_protocol_overrides_its_budget(self, allowed: int) -> None:
        story = Story(three_steps(retry=RetryPolicy(max_attempts=allowed))).dispatched()
        for _ in range(allowed - 1):
            story.refuse_hand_over()
            story.next_attempt()
        story.refuse_hand_over()
        assert story.status is JobStatus.FAILED_FINAL
        assert len(story.history()) == allowed
        assert story.records.rows[story.attempt.outbox_id].status is OutboxStatus.FAILED_FINAL

    def test_each_step_has_a_budget_of_its_own(self) -> None:
        story = Story().dispatched()
        story.refuse_hand_over()
        story.next_attempt().finish_step()
        assert (story.step.step_id, story.step.tries) == ("embedding", 1)

    def test_hand_over_failures_wait_30_s_then_2_min(self) -> None:
        story = Story().dispatched()
        waits = []
        for _ in range(2):
            story.refuse_hand_over()
            waits.append((story.step.retry_at or 0) - story.now)
            story.next_attempt()
        assert waits == [30 * SECOND, 2 * MINUTE]

    def test_missing_acks_wait_1_min_then_5_min(self) -> None:
        story = Story().dispatched()
        waits = []
        for _ in range(2):
            story.hand_over()
            story.tick_when_due()
            waits.append((story.step.retry_at or 0) - story.now)
            story.next_attempt()
        assert waits == [MINUTE, 5 * MINUTE]

    def test_a_lost_lease_waits_by_the_steps_policy(self) -> None:
        story = Story().processing()
        story.tick_when_due()
        assert story.step.retry_at == story.now + 5 * SECOND

    def test_retry_waits_for_the_reported_retry_after(self) -> None:
        story = Story().processing()
        story.fail(failure_class=FailureClass.RATE_LIMITED, retry_after_ms=7 * MINUTE)
        assert story.step.retry_at == story.now + 7 * MINUTE

    def test_retry_has_a_new_attempt_and_row_before_it_can_be_published(self) -> None:
        story = Story().processing()
        story.fail()
        assert isinstance(story.wait(5 * SECOND - 1).tick(), Ignored)
        old = story.lease
        story.wait(1).tick()
        assert story.statuses()[0] == "DISPATCHING"
        assert story.lease.attempt_no == old.attempt_no + 1
        assert story.lease.lease_id != old.lease_id
        assert story.row.lease_id == story.lease.lease_id
        assert story.attempt.ack_deadline is None
        assert story.attempt.lease_expires_at is None


class TestDowntime:
    def test_an_overdue_ack_gets_one_fresh_period(self) -> None:
        story = Story().initiated().wait(60 * MINUTE)
        back = story.now
        assert story.tick(resumed_at=back) == Applied()
        assert story.attempt.ack_deadline == story.job.due_at == back + ACK
        assert story.statuses()[0] == "INITIATED"
        story.tick_when_due(resumed_at=back)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    def test_an_overdue_lease_gets_one_fresh_period(self) -> None:
        story = Story().processing().wait(60 * MINUTE)
        back = story.now
        story.tick(resumed_at=back)
        assert story.attempt.lease_expires_at == back + LEASE
        story.tick_when_due(resumed_at=back)
        assert story.attempt.outcome is AttemptOutcome.LEASE_EXPIRED

    def test_deadline_shortly_after_a_downtime_gets_the_rest_of_a_fresh_period(self) -> None:
        story = Story().initiated().wait(20 * SECOND)
        back = story.now
        assert isinstance(story.tick(resumed_at=back), Ignored)
        story.tick_when_due(resumed_at=back)
        assert story.attempt.ack_deadline == back + ACK

    def test_attempt_handed_over_after_the_downtime_gets_no_fresh_period(self) -> None:
        story = Story().initiated()
        story.tick_when_due(resumed_at=story.attempt.handed_over_at or 0)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    def test_attempt_with_a_heartbeat_after_the_downtime_gets_no_fresh_period(self) -> None:
        story = Story().processing().wait(MINUTE)
        back = story.now
        story.wait(MINUTE).heartbeat()
        story.tick_when_due(resumed_at=back)
        assert story.attempt.outcome is AttemptOutcome.LEASE_EXPIRED

    def test_fresh_period_that_is_already_over_is_not_granted(self) -> None:
        story = Story().initiated().wait(SECOND)
        back = story.now
        story.wait(60 * MINUTE).tick(resumed_at=back)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    def test_each_downtime_grants_a_fresh_period(self) -> None:
        story = Story().initiated().wait(60 * MINUTE)
        story.tick(resumed_at=story.now)
        story.wait(60 * MINUTE).tick(resumed_at=story.now)
        assert story.statuses()[0] == "INITIATED"

    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_deadline_that_passed_during_an_engine_stall_is_left_to_the_next_sweep(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        looked = story.now + SECOND
        story.wait(60 * MINUTE)
        assert isinstance(story.tick(as_of=looked), Ignored)
        assert story.tick(resumed_at=story.now, as_of=story.now) == Applied()
        assert story.job.live
        assert story.attempt.outcome is None

    def test_deadline_that_passed_before_an_engine_stall_times_out(self) -> None:
        story = Story().initiated()
        looked = story.now + ACK
        story.wait(60 * MINUTE).tick(as_of=looked)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_engine_stall_does_not_use_up_a_fresh_period(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        back = story.wait(60 * MINUTE).now
        looked = back + SECOND
        story.wait(60 * MINUTE).tick(resumed_at=back, as_of=looked)
        assert story.attempt.outcome is None
        story.tick(resumed_at=story.now, as_of=story.now)
        assert story.attempt.outcome is None
        assert story.job.due_at == story.now + (ACK if state == "initiated" else LEASE)

    def test_step_timeout_gets_no_fresh_period(self) -> None:
        story = Story(three_steps(first={"timeout_ms": MINUTE})).processing().wait(60 * MINUTE)
        story.tick(resumed_at=story.now)
        assert story.attempt.outcome is AttemptOutcome.STEP_TIMEOUT

    def test_job_being_cancelled_gets_a_fresh_period_after_a_downtime(self) -> None:
        story = Story().processing()
        story.cancel()
        story.wait(60 * MINUTE).tick(resumed_at=story.now)
        assert story.status is JobStatus.CANCELLING


class TestJobTimeout:
    def short(self) -> Story:
        return Story(three_steps(job_timeout_ms=10 * MINUTE))

    @pytest.mark.parametrize("state", ["dispatched", "claimed", "initiated", "processing"])
    def test_job_timeout_fails_the_job_and_fences_its_attempt(self, state: str) -> None:
        story: Story = getattr(self.short(), state)()
        lease = story.lease
        story.wait(10 * MINUTE).tick()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.statuses() == ["FAILED_FINAL", "SKIPPED", "SKIPPED"]
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert story.attempt.outcome is AttemptOutcome.JOB_TIMEOUT
        assert story.pending_rows() == []
        assert not any(story.records.counters.values())
        assert story.succeed(lease) == "LATE"

    def test_job_timeout_counts_from_acceptance(self) -> None:
        story = self.short()
        story.submit()
        assert story.job.deadline == story.now + 10 * MINUTE
        story.start()
        assert story.job.due_at == story.job.deadline

    def test_nearest_deadline_is_due_first(self) -> None:
        story = self.short().initiated()
        assert story.job.due_at == story.now + ACK
        story.ack()
        assert story.job.due_at == story.job.deadline

    def test_downtime_does_not_extend_the_job_timeout(self) -> None:
        story = self.short().processing().wait(10 * MINUTE)
        story.tick(resumed_at=story.now)
        assert story.status is JobStatus.FAILED_FINAL

    def test_ended_attempt_keeps_its_outcome_at_the_job_timeout(self) -> None:
        story = self.short().processing().wait(10 * MINUTE - SECOND)
        story.fail()
        ended = story.attempt
        story.wait(SECOND).tick()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.attempt == ended
        assert story.step.last_error is not None
        assert story.step.last_error.code == "JOB_TIMEOUT"

    def test_job_being_cancelled_ends_cancelled_at_its_timeout(self) -> None:
        story = self.short().processing()
        story.cancel()
        story.wait(10 * MINUTE).tick()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["CANCELLED"] * 3
