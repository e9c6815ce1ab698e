"""Dispositions of callbacks: APPLIED, DUPLICATE, LATE or STALE."""

import pytest

from lucius.core.model.decision import Refused
from lucius.core.model.statuses import Disposition, JobStatus
from tests.unit.core.builders import NEVER_LEASED, SECOND, Story, lost_lease
from tests.unit.core.spoken import Lease, success

DUPLICATE, LATE, STALE = Disposition.DUPLICATE, Disposition.LATE, Disposition.STALE


class TestDispositions:
    def test_repeated_ack_is_a_duplicate_and_repeats_the_lease_expiry(self) -> None:
        story = Story().processing()
        first = story.answer
        story.wait(SECOND)
        assert story.ack() is DUPLICATE
        assert story.answer.lease_expires_at == first.lease_expires_at

    def test_a_repeated_success_is_a_duplicate(self) -> None:
        story = Story().processing()
        lease = story.lease
        story.succeed(lease, {"pages": 3, "words": 9})
        assert story.succeed(lease, {"words": 9, "pages": 3}) is DUPLICATE

    def test_a_repeated_failure_is_a_duplicate_while_its_retry_waits(self) -> None:
        story = Story().processing()
        story.fail()
        assert story.fail() is DUPLICATE

    def test_a_repeated_failure_is_a_duplicate_after_the_job_ended(self) -> None:
        story = Story().processing()
        story.fail_for_good()
        assert story.fail_for_good() is DUPLICATE

    def test_another_result_after_success_is_late(self) -> None:
        story = Story().processing()
        lease = story.lease
        story.succeed(lease, {"pages": 3})
        assert story.succeed(lease, {"pages": 4}) is LATE
        assert story.fail(lease) is LATE
        assert story.steps["ocr"].result == {"pages": 3}

    def test_an_ack_or_heartbeat_after_the_end_is_late(self) -> None:
        story = Story().dispatched()
        lease = story.lease
        story.succeed(lease)
        assert story.ack(lease) is LATE
        assert story.heartbeat(lease) is LATE

    def test_every_callback_of_a_fenced_attempt_is_stale(self) -> None:
        story, fenced = lost_lease()
        assert story.ack(fenced) is STALE
        assert story.heartbeat(fenced) is STALE
        assert story.fail(fenced) is STALE
        assert story.succeed(fenced) is STALE

    @pytest.mark.parametrize(
        "lease",
        [Lease("ocr", 2, NEVER_LEASED), Lease("ocr", 1, "lease-2"), Lease("ocr", 3, "lease-2")],
        ids=["another lease", "another attempt", "an attempt to come"],
    )
    def test_attempt_and_lease_must_both_be_the_current_ones(self, lease: Lease) -> None:
        story, _ = lost_lease()
        assert story.lease == Lease("ocr", 2, "lease-2")
        assert story.succeed(lease) is STALE

    def test_a_stale_success_is_kept_in_quarantine(self) -> None:
        story, fenced = lost_lease()
        story.succeed(fenced, {"pages": 7})
        [kept] = story.records.quarantined
        assert (kept.step_id, kept.attempt_no, kept.lease_id) == fenced
        assert kept.result == {"pages": 7}
        assert kept.artifact_refs == ["file:///w/pages.json"]
        assert kept.received_at == story.now
        assert story.records.events[-1].data["quarantined"] is True

    def test_stale_success_after_the_end_of_the_job_is_quarantined(self) -> None:
        story, fenced = lost_lease()
        story.cancel()
        assert story.status is JobStatus.CANCELLED
        assert story.succeed(fenced) is STALE
        assert len(story.records.quarantined) == 1

    def test_only_a_stale_success_is_quarantined(self) -> None:
        story, fenced = lost_lease()
        story.fail(fenced)
        story.heartbeat(fenced)
        assert story.records.quarantined == []

    def test_each_disposition_except_applied_heartbeats_is_recorded_as_an_event(self) -> None:
        story, fenced = lost_lease()
        story.hand_over()
        story.ack()
        seen = len(story.records.events)
        story.heartbeat()
        assert len(story.records.events) == seen
        story.ack()
        story.succeed(fenced)
        lease = story.lease
        story.succeed()
        story.fail(lease)
        recorded = [event.data["disposition"] for event in story.records.events if event.type.startswith("CALLBACK")]
        assert recorded[-4:] == ["DUPLICATE", "STALE", "APPLIED", "LATE"]

    def test_callback_event_names_the_lease_of_the_callback(self) -> None:
        story, fenced = lost_lease()
        story.ack(fenced)
        event = story.records.events[-1]
        assert (event.step_id, event.attempt_no, event.data["lease_id"]) == fenced

    def test_callback_for_a_step_that_has_not_started_is_refused(self) -> None:
        story = Story().processing()
        reply = story.feed(success(Lease("sis", 1, NEVER_LEASED)))
        assert isinstance(reply, Refused)
        assert reply.code == "STEP_NOT_FOUND"

    def test_extra_fields_are_kept(self) -> None:
        story = Story().initiated()
        story.ack(ACKED=True)
        assert story.records.events[-1].data["extra"] == {"ACKED": True}
        story.heartbeat(gpu="a100")
        assert story.attempt.extra == {"gpu": "a100"}
        story.fail(logs_ref="blob://logs/1")
        assert story.attempt.extra == {"logs_ref": "blob://logs/1"}
        story.next_attempt().hand_over()
        story.heartbeat(gpu="h100")
        story.succeed()
        assert story.steps["ocr"].attempt.extra == {"gpu": "h100"}
        kept = [event.data["extra"] for event in story.records.events if "extra" in event.data]
        assert kept == [{"ACKED": True}, {"logs_ref": "blob://logs/1"}]
