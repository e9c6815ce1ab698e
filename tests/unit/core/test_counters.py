"""Counters in commits replace counting rows. Every decision of every test here also checks that they agree with the
rows (`standing`).
"""

import pytest

from lucius.core.model.counters import (
    counters_of,
    pending_by_lane,
    pending_counter,
    select_counters,
    unacked_by_service,
    unacked_counter,
    unacked_service,
)
from lucius.core.model.inputs import Cancel, Pause, Resume
from lucius.core.model.statuses import StepStatus
from tests.unit.core.builders import Story
from tests.unit.core.shapes import call, protocol

LANE_OF_ACME = 14
PENDING = pending_counter("ocr-svc", LANE_OF_ACME)


def waiting(story: Story) -> int:
    return story.records.counters.get(PENDING, 0)


class TestPendingCounter:
    def test_row_is_counted_from_dispatch_until_hand_over(self) -> None:
        story = Story()
        story.submit()
        counts = [waiting(story)]
        for what in (story.start, story.hand_over, story.ack):
            what()
            counts.append(waiting(story))
        assert counts == [0, 1, 0, 0]

    def test_claim_uncounts_a_row_and_release_counts_it_again(self) -> None:
        story = Story().claimed()
        assert waiting(story) == 0
        story.release()
        assert waiting(story) == 1

    def test_step_in_backoff_is_not_counted(self) -> None:
        story = Story().claimed()
        story.refuse_hand_over()
        assert (story.step.status, waiting(story)) == (StepStatus.FAILED_RETRY, 0)
        story.next_attempt()
        assert waiting(story) == 1

    def test_row_of_a_paused_job_is_not_counted(self) -> None:
        story = Story().dispatched()
        story.feed(Pause("ada"))
        assert waiting(story) == 0
        story.feed(Resume("ada"))
        assert waiting(story) == 1

    def test_row_of_a_cancelled_job_is_not_counted(self) -> None:
        story = Story().dispatched()
        story.feed(Cancel("ada"))
        assert waiting(story) == 0

    def test_repaired_row_is_counted_once(self) -> None:
        story = Story().dispatched()
        story.repair("ocr")
        assert waiting(story) == 1

    def test_calls_by_the_engine_are_not_counted(self) -> None:
        story = Story(protocol(call("c"))).dispatched()
        assert story.step.status is StepStatus.DISPATCHING
        assert pending_by_lane(story.records.counters) == {}


@pytest.mark.parametrize("service", ["ocr", "own-ocr_2"])
def test_counter_names_can_be_parsed(service: str) -> None:
    unacked = {unacked_counter(service): 4, unacked_counter(service, "acme.eu"): 3, unacked_counter(service, "b"): 1}
    counters = {pending_counter(service, 3): 2, pending_counter(service, 14): 1, **unacked, "jobs": 9}
    assert pending_by_lane(counters) == {service: {3: 2, 14: 1}}
    assert unacked_by_service(counters) == {service: 8}
    assert {unacked_service(counter) for counter in unacked} == {service}
    assert select_counters(counters, counters_of(service)) == {
        name: n for name, n in counters.items() if name != "jobs"
    }
