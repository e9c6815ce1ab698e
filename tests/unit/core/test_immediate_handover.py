"""A waiting service gets its directive from the decision that requests it: one commit, with the same outcome.

For every such decision `Story` checks that handing over by a separate input would give the same result.
"""

from collections import Counter
from collections.abc import Mapping

from lucius.core.model.decision import Applied
from lucius.core.model.inputs import Cap, Capacity
from lucius.core.model.statuses import Disposition, JobStatus, OutboxStatus, StepStatus
from tests.unit.core.builders import Story
from tests.unit.core.shapes import each, protocol, task

CAP = Cap("unacked/ocr-svc", 1_000)


def waiting(*services: str, room: int = 10) -> Mapping[str, Capacity]:
    return {service: Capacity(room, (CAP,)) for service in services}


def story_with_waiting_pulls(*services: str, room: int = 10) -> Story:
    story = Story()
    story.capacity = lambda: waiting(*services, room=room)
    return story


def test_job_whose_services_all_wait_takes_one_decision_per_step_and_one_to_begin() -> None:
    story = story_with_waiting_pulls("ocr-svc", "embedding-svc", "sis-svc").dispatched()
    for _ in range(3):
        assert story.step.status is StepStatus.INITIATED
        assert story.succeed() is Disposition.APPLIED
    assert (story.status, story.job.version) == (JobStatus.SUCCEEDED, 4)


def test_immediate_hand_over_records_the_same_events_as_separate_inputs() -> None:
    at_once, one_by_one = story_with_waiting_pulls("ocr-svc").dispatched(), Story().initiated()
    assert at_once.event_types() == one_by_one.event_types()
    assert at_once.status is one_by_one.status is JobStatus.IN_PROGRESS
    assert at_once.step == one_by_one.step
    assert at_once.row == one_by_one.row
    assert Counter(at_once.records.counters) == Counter(one_by_one.records.counters)


def test_decision_names_the_handed_over_row_and_its_cap() -> None:
    story = story_with_waiting_pulls("ocr-svc").dispatched()
    (row,) = story.decision.handed_over
    assert (row.step_id, row.attempt_no, row.lease_id) == story.lease
    assert story.decision.caps == (CAP,)
    assert story.row.status is OutboxStatus.SENT
    assert story.decision.counters["unacked/ocr-svc"] == 1


def test_immediate_hand_over_adds_no_replies() -> None:
    assert story_with_waiting_pulls("ocr-svc").dispatched().decision.replies == (Applied(), Applied())


def test_row_of_a_service_that_does_not_wait_stays_in_the_outbox() -> None:
    story = story_with_waiting_pulls("embedding-svc").dispatched()
    assert story.decision.handed_over == ()
    assert story.row.status is OutboxStatus.PENDING
    assert story.decision.caps == ()


def test_immediate_hand_over_is_limited_by_the_free_capacity() -> None:
    story = Story(protocol(each("all", "input.pages", task("ocr"))), payload={"pages": [1, 2, 3, 4, 5]})
    story.capacity = lambda: waiting("ocr-svc", room=2)
    story.dispatched()
    assert [row.step_id for row in story.decision.handed_over] == ["ocr.0", "ocr.1"]
    assert [row.status for row in story.decision.outbox].count(OutboxStatus.PENDING) == 3


def test_row_that_was_already_in_the_outbox_is_not_handed_over_immediately() -> None:
    """A resumed job's row was in the outbox before."""
    story = Story().dispatched()
    story.pause()
    story.capacity = lambda: waiting("ocr-svc")
    story.resume()
    assert story.row.status is OutboxStatus.PENDING
    assert story.row.next_attempt_at is None
    assert story.decision.handed_over == ()


def test_retry_attempt_is_handed_over_immediately() -> None:
    story = story_with_waiting_pulls("ocr-svc").dispatched()
    story.ack()
    story.fail()
    assert story.next_attempt().decision.handed_over == (story.decision.handed_over[0],)
    assert (story.attempt.attempt_no, story.step.status) == (2, StepStatus.INITIATED)


def test_paused_job_hands_nothing_over() -> None:
    story = story_with_waiting_pulls("ocr-svc", "embedding-svc").dispatched()
    story.pause()
    story.succeed()
    assert story.decision.handed_over == ()
    assert story.status is JobStatus.PAUSED
