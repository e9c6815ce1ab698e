"""Hand-over: rule 6 of DESIGN §3, waiting burns nothing, and the repair of a lost row."""

from typing import Any

import pytest

from lucius.core import calls
from lucius.core.decide import unacked_counter
from lucius.core.decision import Applied, Ignored
from lucius.core.inputs import Cap, HandedOver, Pause
from lucius.core.model import JobStatus, OutboxStatus, StepStatus
from lucius.core.protocol import Notify, StepSpec
from tests.unit.core.builders import MINUTE, Story


class TestRule6WaitingBurnsNothing:
    def test_a_row_that_waits_for_hand_over_has_no_clock(self) -> None:
        story = Story().dispatched()
        assert story.job.due_at is None
        assert isinstance(story.wait(24 * 60 * MINUTE).tick(), Ignored)
        assert story.step.tries == 1

    @pytest.mark.parametrize("hand_over", ["claim", "hand_over"])
    def test_the_cap_is_checked_in_the_commit_that_hands_over(self, hand_over: str) -> None:
        story = Story().dispatched()
        cap = Cap(unacked_counter("ocr-svc"), 1000)
        getattr(story, hand_over)(caps=(cap,))
        assert story.decision.caps == (cap,)
        assert story.decision.counters == {"pending/ocr-svc/14": -1, "unacked/ocr-svc": 1}

    def test_a_directive_counts_as_unacked_from_the_claim_until_it_is_picked_up(self) -> None:
        story = Story().dispatched()
        unacked = unacked_counter("ocr-svc")
        counts = [story.books.counters.get(unacked, 0)]
        for what in (story.claim, story.hand_over, story.ack):
            what()
            counts.append(story.books.counters.get(unacked, 0))
        assert counts == [0, 1, 1, 0]

    @pytest.mark.parametrize("end", ["tick_when_due", "heartbeat", "succeed", "fail"])
    def test_it_stops_counting_however_the_wait_for_an_ack_ends(self, end: str) -> None:
        story = Story().initiated()
        getattr(story, end)()
        assert story.books.counters["unacked/ocr-svc"] == 0

    def test_a_claim_is_taken_once(self) -> None:
        story = Story().dispatched()
        assert story.claim() == Applied()
        assert isinstance(story.claim(), Ignored)
        assert story.row.claimed_at == story.now
        assert story.row.status is OutboxStatus.PENDING

    def test_a_bus_that_is_down_gives_the_claim_back_and_burns_nothing(self) -> None:
        story = Story().claimed()
        assert story.release() == Applied()
        assert story.row.claimed_at is None
        assert (story.step.tries, story.attempt.attempt_no) == (1, 1)
        assert story.books.counters["unacked/ocr-svc"] == 0
        assert story.claim() == Applied()

    def test_only_what_is_claimed_can_be_given_back(self) -> None:
        assert isinstance(Story().dispatched().release(), Ignored)

    def test_a_refused_message_counts(self) -> None:
        story = Story().claimed()
        story.refuse_hand_over()
        assert story.row.claimed_at is None
        story.next_attempt()
        assert (story.step.tries, story.attempt.attempt_no, story.row.claimed_at) == (2, 2, None)

    def test_reports_about_a_fenced_attempt_are_ignored(self) -> None:
        story = Story().claimed()
        old = story.lease
        story.refuse_hand_over()
        story.next_attempt()
        for report in (story.claim, story.release, story.hand_over, story.refuse_hand_over):
            assert isinstance(report(old), Ignored)

    def test_a_retried_hand_over_uses_its_row_again(self) -> None:
        story = Story().dispatched()
        first = story.row
        story.refuse_hand_over()
        assert story.row.next_attempt_at == story.step.retry_at
        story.next_attempt()
        assert story.row.outbox_id == first.outbox_id
        assert (story.row.attempt_no, story.row.lease_id) == (2, "lease-2")
        assert len(story.books.rows) == 1

    def test_a_retry_of_what_was_handed_over_gets_a_row_of_its_own(self) -> None:
        story = Story().initiated()
        story.tick_when_due()
        story.next_attempt()
        assert [row.status for row in story.books.rows.values()] == [OutboxStatus.SENT, OutboxStatus.PENDING]

    def test_an_operator_can_have_a_failed_hand_over_tried_now(self) -> None:
        story = Story().dispatched()
        story.refuse_hand_over()
        assert story.retry_hand_over() == Applied()
        assert (story.attempt.attempt_no, story.step.tries) == (2, 2)
        assert story.books.events[-2].data["by"] == "ada"
        assert isinstance(story.retry_hand_over(), Ignored)

    def test_other_retries_cannot_be_hurried(self) -> None:
        story = Story().processing()
        story.fail()
        assert isinstance(story.retry_hand_over(), Ignored)


class TestRepair:
    def test_a_lost_row_is_written_anew_without_counting_against_the_budget(self) -> None:
        story = Story().dispatched()
        story.books.lose_row(story.row.outbox_id)
        assert story.repair("ocr") == Applied()
        assert (story.attempt.attempt_no, story.step.tries) == (2, 1)
        assert story.history() == ["REPAIRED"]
        assert [row.attempt_no for row in story.pending_rows()] == [2]

    def test_repairs_leave_the_whole_budget_to_the_service(self) -> None:
        story = Story().dispatched()
        for _ in range(4):
            story.repair("ocr")
        story.refuse_hand_over()
        story.next_attempt().refuse_hand_over()
        assert story.job.live
        story.next_attempt().refuse_hand_over()
        assert story.status is JobStatus.FAILED_FINAL

    def test_a_row_that_was_only_out_of_sight_is_withdrawn(self) -> None:
        story = Story().dispatched()
        seen_late = story.row.outbox_id
        story.repair("ocr")
        assert story.books.rows[seen_late].status is OutboxStatus.WITHDRAWN

    def test_a_lost_row_that_was_being_published_counts_as_handed_over(self) -> None:
        story = Story().claimed()
        story.books.lose_row(story.row.outbox_id)
        story.repair("ocr")
        assert story.statuses()[0] == "INITIATED"
        assert story.attempt.attempt_no == 1

    def test_a_lost_row_does_not_strand_a_job_that_is_being_cancelled(self) -> None:
        story = Story().claimed()
        story.cancel()
        story.books.lose_row(story.row.outbox_id)
        story.repair("ocr")
        story.tick_when_due()
        assert story.status is JobStatus.CANCELLED

    def test_only_a_step_that_waits_for_hand_over_can_miss_its_row(self) -> None:
        story = Story().processing()
        story.repair("ocr", "sis")
        assert story.statuses() == ["PROCESSING", "PENDING", "PENDING"]

    def test_a_queued_job_that_was_forgotten_is_started(self) -> None:
        story = Story()
        story.submit()
        assert story.repair() == Applied()
        assert story.status is JobStatus.DISPATCHING


class TestTakenByTheEngineItself:
    """The engine's own calls are handed over and picked up in one decision."""

    def test_the_lease_runs_and_nothing_waits_for_an_ack(self) -> None:
        story = Story().dispatched()
        assert story.feed(HandedOver(*story.lease, picked_up=True)) == Applied()
        assert story.step.status is StepStatus.PROCESSING
        assert story.row.status is OutboxStatus.SENT
        assert story.attempt.lease_expires_at == story.job.due_at == story.now + 15 * MINUTE
        assert story.decision.counters == {"pending/ocr-svc/14": -1}

    def test_a_paused_job_keeps_it_back(self) -> None:
        story = Story().dispatched()
        story.feed(Pause("ada"))
        assert isinstance(story.feed(HandedOver(*story.lease, picked_up=True)), Ignored)
        assert story.step.status is StepStatus.DISPATCHING

    @pytest.mark.parametrize(
        ("fields", "lease_ms"), [({}, 45_000), ({"timeout_ms": 5_000}, 20_000), ({"lease_ms": 1_000}, 1_000)]
    )
    def test_a_calls_lease_is_little_more_than_it_may_take(self, fields: dict[str, Any], lease_ms: int) -> None:
        spec = StepSpec(step_id="call", kind="notify", notify=Notify(url="https://a.example.com", type="t"), **fields)
        assert calls.lease_ms(spec) == lease_ms
