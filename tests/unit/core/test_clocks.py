"""What time does: rules 5 and 7 of DESIGN §3, and JOB_TIMEOUT of rule 12."""

import pytest

from lucius.core.decision import Applied, Defaults, Ignored
from lucius.core.model import AttemptOutcome, FailureClass, JobStatus, OutboxStatus
from lucius.core.protocol import RetryPolicy
from tests.unit.core.builders import MINUTE, SECOND, Story, three_steps

LEASE = 15 * MINUTE
ACK = 30 * SECOND


class TestRule5Deadlines:
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

    def test_a_heartbeat_that_comes_before_the_lease_was_looked_at_saves_it(self) -> None:
        story = Story().processing().wait(LEASE + 1)
        story.heartbeat()
        assert isinstance(story.tick(), Ignored)

    def test_a_repeated_ack_extends_nothing(self) -> None:
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

    def test_a_steps_timeout_is_not_a_job_of_the_ack_clock(self) -> None:
        story = Story(three_steps(first={"timeout_ms": SECOND})).initiated()
        assert story.job.due_at == story.now + ACK

    def test_a_protocols_step_sets_its_own_clocks(self) -> None:
        story = Story(three_steps(first={"ack_timeout_ms": 7 * SECOND, "lease_ms": 9 * SECOND})).initiated()
        assert story.job.due_at == story.now + 7 * SECOND
        story.ack()
        assert story.job.due_at == story.now + 9 * SECOND
        story.wait(SECOND).heartbeat()
        assert story.job.due_at == story.now + 9 * SECOND

    def test_the_deployment_sets_the_defaults(self) -> None:
        defaults = Defaults(ack_timeout_ms=3 * SECOND, lease_ms=4 * SECOND, max_attempts=1)
        story = Story(defaults=defaults).initiated()
        assert story.job.due_at == story.now + 3 * SECOND
        story.ack()
        assert story.job.due_at == story.now + 4 * SECOND
        story.tick_when_due()
        assert story.status is JobStatus.FAILED_FINAL


class TestRule5Budget:
    def test_three_attempts_over_all_tracks(self) -> None:
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
    def test_a_protocols_step_sets_its_budget(self, allowed: int) -> None:
        story = Story(three_steps(retry=RetryPolicy(max_attempts=allowed))).dispatched()
        for _ in range(allowed - 1):
            story.refuse_hand_over()
            story.next_attempt()
        story.refuse_hand_over()
        assert story.status is JobStatus.FAILED_FINAL
        assert len(story.history()) == allowed
        assert story.books.rows[story.attempt.outbox_id].status is OutboxStatus.FAILED_FINAL

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

    def test_a_retry_after_is_waited_for(self) -> None:
        story = Story().processing()
        story.fail(failure_class=FailureClass.RATE_LIMITED, retry_after_ms=7 * MINUTE)
        assert story.step.retry_at == story.now + 7 * MINUTE

    def test_a_retry_is_recorded_before_it_can_be_published(self) -> None:
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


class TestRule7Downtime:
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

    def test_a_deadline_that_passes_soon_after_we_are_back_gets_the_rest_of_it(self) -> None:
        story = Story().initiated().wait(20 * SECOND)
        back = story.now
        assert isinstance(story.tick(resumed_at=back), Ignored)
        story.tick_when_due(resumed_at=back)
        assert story.attempt.ack_deadline == back + ACK

    def test_an_attempt_handed_over_after_we_were_back_gets_none(self) -> None:
        story = Story().initiated()
        story.tick_when_due(resumed_at=story.attempt.handed_over_at or 0)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    def test_a_service_that_spoke_since_then_gets_none(self) -> None:
        story = Story().processing().wait(MINUTE)
        back = story.now
        story.wait(MINUTE).heartbeat()
        story.tick_when_due(resumed_at=back)
        assert story.attempt.outcome is AttemptOutcome.LEASE_EXPIRED

    def test_a_fresh_period_that_is_over_already_is_not_given(self) -> None:
        story = Story().initiated().wait(SECOND)
        back = story.now
        story.wait(60 * MINUTE).tick(resumed_at=back)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    def test_the_next_absence_gives_the_next_one(self) -> None:
        story = Story().initiated().wait(60 * MINUTE)
        story.tick(resumed_at=story.now)
        story.wait(60 * MINUTE).tick(resumed_at=story.now)
        assert story.statuses()[0] == "INITIATED"

    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_what_ran_out_while_the_engine_stood_still_is_for_its_next_look(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        looked = story.now + SECOND
        story.wait(60 * MINUTE)
        assert isinstance(story.tick(as_of=looked), Ignored)
        assert story.tick(resumed_at=story.now, as_of=story.now) == Applied()
        assert story.job.live
        assert story.attempt.outcome is None

    def test_what_had_run_out_before_it_stood_still_has_run_out(self) -> None:
        story = Story().initiated()
        looked = story.now + ACK
        story.wait(60 * MINUTE).tick(as_of=looked)
        assert story.attempt.outcome is AttemptOutcome.ACK_TIMEOUT

    @pytest.mark.parametrize("state", ["initiated", "processing"])
    def test_standing_still_does_not_eat_a_fresh_period(self, state: str) -> None:
        story: Story = getattr(Story(), state)()
        back = story.wait(60 * MINUTE).now
        looked = back + SECOND
        story.wait(60 * MINUTE).tick(resumed_at=back, as_of=looked)
        assert story.attempt.outcome is None
        story.tick(resumed_at=story.now, as_of=story.now)
        assert story.attempt.outcome is None
        assert story.job.due_at == story.now + (ACK if state == "initiated" else LEASE)

    def test_a_steps_own_timeout_gets_none(self) -> None:
        story = Story(three_steps(first={"timeout_ms": MINUTE})).processing().wait(60 * MINUTE)
        story.tick(resumed_at=story.now)
        assert story.attempt.outcome is AttemptOutcome.STEP_TIMEOUT

    def test_it_is_given_to_a_job_that_is_being_cancelled_too(self) -> None:
        story = Story().processing()
        story.cancel()
        story.wait(60 * MINUTE).tick(resumed_at=story.now)
        assert story.status is JobStatus.CANCELLING


class TestRule12JobTimeout:
    def short(self) -> Story:
        return Story(three_steps(job_timeout_ms=10 * MINUTE))

    @pytest.mark.parametrize("state", ["dispatched", "claimed", "initiated", "processing"])
    def test_it_ends_the_job_and_fences_what_runs(self, state: str) -> None:
        story: Story = getattr(self.short(), state)()
        lease = story.lease
        story.wait(10 * MINUTE).tick()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.statuses() == ["FAILED_FINAL", "SKIPPED", "SKIPPED"]
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert story.attempt.outcome is AttemptOutcome.JOB_TIMEOUT
        assert story.pending_rows() == []
        assert not any(story.books.counters.values())
        assert story.succeed(lease) == "LATE"

    def test_it_counts_from_acceptance(self) -> None:
        story = self.short()
        story.submit()
        assert story.job.deadline == story.now + 10 * MINUTE
        story.start()
        assert story.job.due_at == story.job.deadline

    def test_the_nearer_clock_rings_first(self) -> None:
        story = self.short().initiated()
        assert story.job.due_at == story.now + ACK
        story.ack()
        assert story.job.due_at == story.job.deadline

    def test_downtime_does_not_move_it(self) -> None:
        story = self.short().processing().wait(10 * MINUTE)
        story.tick(resumed_at=story.now)
        assert story.status is JobStatus.FAILED_FINAL

    def test_an_attempt_that_had_ended_keeps_how_it_ended(self) -> None:
        story = self.short().processing().wait(10 * MINUTE - SECOND)
        story.fail()
        ended = story.attempt
        story.wait(SECOND).tick()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.attempt == ended
        assert story.step.last_error is not None
        assert story.step.last_error.code == "JOB_TIMEOUT"

    def test_a_job_that_is_being_cancelled_ends_cancelled(self) -> None:
        story = self.short().processing()
        story.cancel()
        story.wait(10 * MINUTE).tick()
        assert story.status is JobStatus.CANCELLED
        assert story.statuses() == ["CANCELLED"] * 3
