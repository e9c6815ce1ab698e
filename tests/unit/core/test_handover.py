"""Hand-over: an attempt leaves once, waiting uses no attempts, and a lost row is repaired."""

from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from lucius.core.decide.decide import unacked_counter
from lucius.core.model.decision import Applied, Ignored
from lucius.core.model.inputs import Cap, HandedOver, Pause
from lucius.core.model.statuses import JobStatus, OutboxStatus, StepStatus
from lucius.core.protocol.definition import Notify, StepSpec
from lucius.core.steps import external_call
from tests.unit.core.builders import MINUTE, Story


class TestWaitingUsesNoAttempts:
    def test_row_waiting_for_hand_over_has_no_deadline(self) -> None:
        story = Story().dispatched()
        assert story.job.due_at is None
        assert isinstance(story.wait(24 * 60 * MINUTE).tick(), Ignored)
        assert story.step.tries == 1

    @pytest.mark.parametrize("hand_over", ["claim", "hand_over"])
    def test_cap_is_checked_in_the_commit_that_hands_over(self, hand_over: str) -> None:
        story = Story().dispatched()
        cap = Cap(unacked_counter("ocr-svc"), 1000)
        getattr(story, hand_over)(caps=(cap,))
        assert story.decision.caps == (cap,)
        assert story.decision.counters == {"pending/ocr-svc/14": -1, "unacked/ocr-svc": 1}

    def test_directive_counts_as_unacked_from_the_claim_until_its_ack(self) -> None:
        story = Story().dispatched()
        unacked = unacked_counter("ocr-svc")
        counts = [story.records.counters.get(unacked, 0)]
        for what in (story.claim, story.hand_over, story.ack):
            what()
            counts.append(story.records.counters.get(unacked, 0))
        assert counts == [0, 1, 1, 0]

    def test_directive_for_a_tenants_own_service_counts_towards_its_tenant_alone(self) -> None:
        story = Story().dispatched()
        cap = Cap(unacked_counter("ocr-svc", "acme"), 1000)
        story.hand_over(caps=(cap,), tenant_bound=True)
        assert story.decision.caps == (cap,)
        assert story.decision.counters == {"pending/ocr-svc/14": -1, "unacked/ocr-svc/acme": 1}

    @pytest.mark.parametrize(("bound", "counter"), [(UNSET, "unacked/ocr-svc"), (True, "unacked/ocr-svc/acme")])
    @pytest.mark.parametrize("end", ["tick_when_due", "heartbeat", "succeed", "fail"])
    def test_directive_stops_counting_as_unacked_however_the_wait_ends(
        self, end: str, bound: bool | UnsetType, counter: str
    ) -> None:
        story = Story().dispatched()
        story.hand_over(tenant_bound=bound)
        assert {name: n for name, n in story.records.counters.items() if n and "unacked" in name} == {counter: 1}
        getattr(story, end)()
        assert story.records.counters[counter] == 0

    def test_next_attempt_counts_by_the_pull_that_gets_it(self) -> None:
        story = Story().dispatched()
        story.hand_over(tenant_bound=True)
        story.tick_when_due()
        story.next_attempt()
        story.hand_over()
        assert story.decision.counters == {"pending/ocr-svc/14": -1, "unacked/ocr-svc": 1}

    def test_row_is_claimed_once(self) -> None:
        story = Story().dispatched()
        assert story.claim() == Applied()
        assert isinstance(story.claim(), Ignored)
        assert story.row.claimed_at == story.now
        assert story.row.status is OutboxStatus.PENDING

    def test_released_claim_uses_no_attempt_and_can_be_claimed_again(self) -> None:
        story = Story().claimed()
        assert story.release() == Applied()
        assert story.row.claimed_at is None
        assert (story.step.tries, story.attempt.attempt_no) == (1, 1)
        assert story.records.counters["unacked/ocr-svc"] == 0
        assert story.claim() == Applied()

    def test_release_of_an_unclaimed_row_is_ignored(self) -> None:
        assert isinstance(Story().dispatched().release(), Ignored)

    def test_refused_message_uses_an_attempt(self) -> None:
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

    def test_retry_of_a_refused_hand_over_reuses_its_row(self) -> None:
        story = Story().dispatched()
        first = story.row
        story.refuse_hand_over()
        assert story.row.next_attempt_at == story.step.retry_at
        story.next_attempt()
        assert story.row.outbox_id == first.outbox_id
        assert (story.row.attempt_no, story.row.lease_id) == (2, "lease-2")
        assert len(story.records.rows) == 1

    def test_retry_after_a_hand_over_gets_a_new_row(self) -> None:
        story = Story().initiated()
        story.tick_when_due()
        story.next_attempt()
        assert [row.status for row in story.records.rows.values()] == [OutboxStatus.SENT, OutboxStatus.PENDING]

    def test_operator_can_retry_a_failed_hand_over_now(self) -> None:
        story = Story().dispatched()
        story.refuse_hand_over()
        assert story.retry_hand_over() == Applied()
        assert (story.attempt.attempt_no, story.step.tries) == (2, 2)
        assert story.records.events[-2].data["by"] == "ada"
        assert isinstance(story.retry_hand_over(), Ignored)

    def test_other_retries_cannot_be_hurried(self) -> None:
        story = Story().processing()
        story.fail()
        assert isinstance(story.retry_hand_over(), Ignored)


class TestRepair:
    def test_lost_row_is_repaired_without_using_the_budget(self) -> None:
        story = Story().dispatched()
        story.records.lose_row(story.row.outbox_id)
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

    def test_repair_withdraws_the_old_row(self) -> None:
        story = Story().dispatched()
        seen_late = story.row.outbox_id
        story.repair("ocr")
        assert story.records.rows[seen_late].status is OutboxStatus.WITHDRAWN

    def test_a_lost_row_that_was_being_published_counts_as_handed_over(self) -> None:
        story = Story().claimed()
        story.records.lose_row(story.row.outbox_id)
        story.repair("ocr")
        assert story.statuses()[0] == "INITIATED"
        assert story.attempt.attempt_no == 1

    def test_lost_row_does_not_block_a_cancel(self) -> None:
        story = Story().claimed()
        story.cancel()
        story.records.lose_row(story.row.outbox_id)
        story.repair("ocr")
        story.tick_when_due()
        assert story.status is JobStatus.CANCELLED

    def test_repair_ignores_steps_that_do_not_wait_for_hand_over(self) -> None:
        story = Story().processing()
        story.repair("ocr", "sis")
        assert story.statuses() == ["PROCESSING", "PENDING", "PENDING"]

    def test_repair_starts_a_forgotten_queued_job(self) -> None:
        story = Story()
        story.submit()
        assert story.repair() == Applied()
        assert story.status is JobStatus.DISPATCHING


class TestCallsByTheEngine:
    """The engine's own calls are handed over and picked up in one decision."""

    def test_lease_of_a_call_runs_from_its_hand_over_without_an_ack(self) -> None:
        story = Story().dispatched()
        assert story.feed(HandedOver(*story.lease, picked_up=True)) == Applied()
        assert story.step.status is StepStatus.PROCESSING
        assert story.row.status is OutboxStatus.SENT
        assert story.attempt.lease_expires_at == story.job.due_at == story.now + 15 * MINUTE
        assert story.decision.counters == {"pending/ocr-svc/14": -1}

    def test_call_of_a_paused_job_is_not_handed_over(self) -> None:
        story = Story().dispatched()
        story.feed(Pause("ada"))
        assert isinstance(story.feed(HandedOver(*story.lease, picked_up=True)), Ignored)
        assert story.step.status is StepStatus.DISPATCHING

    @pytest.mark.parametrize(
        ("fields", "lease_ms"), [({}, 45_000), ({"timeout_ms": 5_000}, 20_000), ({"lease_ms": 1_000}, 1_000)]
    )
    def test_lease_of_a_call_is_slightly_longer_than_its_timeout(self, fields: dict[str, Any], lease_ms: int) -> None:
        spec = StepSpec(step_id="call", kind="notify", notify=Notify(url="https://a.example.com", type="t"), **fields)
        assert external_call.lease_ms(spec) == lease_ms
