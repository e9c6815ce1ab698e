"""What the commits count, so that nobody has to count rows. That it agrees with the rows is checked after every
decision of every test here (`standing`)."""

import pytest

from lucius.core.counters import pending_by_lane, pending_counter, unacked_by_service
from lucius.core.inputs import Cancel, Pause, Resume
from lucius.core.model import StepStatus
from tests.unit.core.builders import Story
from tests.unit.core.shapes import call, protocol

LANE_OF_ACME = 14
PENDING = pending_counter("ocr-svc", LANE_OF_ACME)


def waiting(story: Story) -> int:
    return story.books.counters.get(PENDING, 0)


class TestWhatWaitsForAService:
    def test_it_counts_from_its_turn_until_somebody_takes_it(self) -> None:
        story = Story()
        story.submit()
        counts = [waiting(story)]
        for what in (story.start, story.hand_over, story.ack):
            what()
            counts.append(waiting(story))
        assert counts == [0, 1, 0, 0]

    def test_a_claim_takes_it_and_a_bus_that_is_down_gives_it_back(self) -> None:
        story = Story().claimed()
        assert waiting(story) == 0
        story.release()
        assert waiting(story) == 1

    def test_a_backoff_is_no_backlog(self) -> None:
        story = Story().claimed()
        story.refuse_hand_over()
        assert (story.step.status, waiting(story)) == (StepStatus.FAILED_RETRY, 0)
        story.next_attempt()
        assert waiting(story) == 1

    def test_neither_is_what_a_pause_keeps_back(self) -> None:
        story = Story().dispatched()
        story.feed(Pause("ada"))
        assert waiting(story) == 0
        story.feed(Resume("ada"))
        assert waiting(story) == 1

    def test_what_is_withdrawn_no_longer_waits(self) -> None:
        story = Story().dispatched()
        story.feed(Cancel("ada"))
        assert waiting(story) == 0

    def test_a_row_that_is_written_anew_is_counted_once(self) -> None:
        story = Story().dispatched()
        story.repair("ocr")
        assert waiting(story) == 1

    def test_the_engines_own_calls_wait_for_no_service(self) -> None:
        story = Story(protocol(call("c"))).dispatched()
        assert story.step.status is StepStatus.DISPATCHING
        assert pending_by_lane(story.books.counters) == {}


@pytest.mark.parametrize("service", ["ocr", "own/ocr"])
def test_the_names_can_be_read_back(service: str) -> None:
    counters = {pending_counter(service, 3): 2, pending_counter(service, 14): 1, f"unacked/{service}": 4, "jobs": 9}
    assert pending_by_lane(counters) == {service: {3: 2, 14: 1}}
    assert unacked_by_service(counters) == {service: 4}
