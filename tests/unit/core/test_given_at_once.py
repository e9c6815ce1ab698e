"""A service that waits is given its directive by the decision that asks for it: one commit, and the same outcome.

`Story` checks of every such decision that handing over by an input of its own would have come to the same.
"""

from collections import Counter

from lucius.core.decide import Takers
from lucius.core.decision import Applied
from lucius.core.inputs import Cap, Taker
from lucius.core.model import Disposition, JobStatus, OutboxStatus, StepStatus
from tests.unit.core.builders import Story
from tests.unit.core.shapes import each, protocol, task

CAP = Cap("unacked/ocr-svc", 1_000)


def waiting(*services: str, room: int = 10) -> Takers:
    return lambda service, tenant_id: Taker(room, (CAP,)) if service in services else None


def story(*services: str, room: int = 10) -> Story:
    told = Story()
    told.takers = waiting(*services, room=room)
    return told


def test_a_job_whose_services_all_wait_needs_a_decision_a_step_and_one_to_begin() -> None:
    told = story("ocr-svc", "embedding-svc", "sis-svc").dispatched()
    for _ in range(3):
        assert told.step.status is StepStatus.INITIATED
        assert told.succeed() is Disposition.APPLIED
    assert (told.status, told.job.version) == (JobStatus.SUCCEEDED, 4)


def test_all_that_happened_is_told_as_if_it_had_been_decided_one_by_one() -> None:
    at_once, one_by_one = story("ocr-svc").dispatched(), Story().initiated()
    assert at_once.event_types() == one_by_one.event_types()
    assert at_once.status is one_by_one.status is JobStatus.IN_PROGRESS
    assert at_once.step == one_by_one.step
    assert at_once.row == one_by_one.row
    assert Counter(at_once.books.counters) == Counter(one_by_one.books.counters)


def test_what_is_given_is_named_with_the_cap_that_it_keeps_to() -> None:
    told = story("ocr-svc").dispatched()
    (row,) = told.decision.given
    assert (row.step_id, row.attempt_no, row.lease_id) == told.lease
    assert told.decision.caps == (CAP,)
    assert told.row.status is OutboxStatus.SENT
    assert told.decision.counters["unacked/ocr-svc"] == 1


def test_replies_are_those_of_the_inputs_alone() -> None:
    assert story("ocr-svc").dispatched().decision.replies == (Applied(), Applied())


def test_a_service_that_does_not_wait_finds_its_row_in_the_outbox() -> None:
    told = story("embedding-svc").dispatched()
    assert told.decision.given == ()
    assert told.row.status is OutboxStatus.PENDING
    assert told.decision.caps == ()


def test_no_more_is_given_than_there_is_room_for() -> None:
    told = Story(protocol(each("all", "input.pages", task("ocr"))), payload={"pages": [1, 2, 3, 4, 5]})
    told.takers = waiting("ocr-svc", room=2)
    told.dispatched()
    assert [row.step_id for row in told.decision.given] == ["ocr.0", "ocr.1"]
    assert [row.status for row in told.decision.outbox].count(OutboxStatus.PENDING) == 3


def test_a_row_that_another_may_have_taken_is_not_given() -> None:
    """A resumed job's row was in the outbox before."""
    told = Story().dispatched()
    told.pause()
    told.takers = waiting("ocr-svc")
    told.resume()
    assert told.row.status is OutboxStatus.PENDING
    assert told.row.next_attempt_at is None
    assert told.decision.given == ()


def test_a_retry_is_given_at_once_too() -> None:
    told = story("ocr-svc").dispatched()
    told.ack()
    told.fail()
    assert told.next_attempt().decision.given == (told.decision.given[0],)
    assert (told.attempt.attempt_no, told.step.status) == (2, StepStatus.INITIATED)


def test_a_paused_job_gives_nothing() -> None:
    told = story("ocr-svc", "embedding-svc").dispatched()
    told.pause()
    told.succeed()
    assert told.decision.given == ()
    assert told.status is JobStatus.PAUSED
