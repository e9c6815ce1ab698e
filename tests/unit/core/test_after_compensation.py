"""What was undone is done anew, under a key of its own; what was not undone can still be."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decide import decide_all
from lucius.core.decision import Applied, Decision, Env, JobView, Refused
from lucius.core.inputs import Compensate, DeadlinePassed, Discard, Input, Retry, Skip, Start, Submit
from lucius.core.model import Job, JobStatus, Mode, ReviewStatus, Step, StepStatus
from lucius.core.protocol import Parallel, Policies, Protocol, StepSpec, digest
from lucius.core.routing import route
from tests.unit.core.builders import T0, command
from tests.unit.core.spoken import Lease, failure, success

NOT_SAFE = "NOT_SAFE_TO_RETRY"


def spec(step_id: str, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, step_type="X", service="svc", **fields)


class Told:
    """A job with every step at hand, from one input to the next."""

    job: Job

    def __init__(self, policy: Any, *steps: StepSpec) -> None:
        self.protocol = Protocol(
            protocol_id="p", version=1, request_type="P", steps=steps, policies=Policies(compensation=policy)
        )
        self.steps: dict[str, Step] = {}
        self.now = T0
        self._ids = iter(range(10**6))
        routing = route("acme", None, Mode.DEFAULT, "GLOBAL_CONFIG", "default")
        submit = Submit(
            job_id="j",
            command=command(),
            protocol=self.protocol,
            protocol_digest=digest(self.protocol),
            routing=routing,
        )
        self.feed(submit, Start())

    def feed(self, *inputs: Input) -> Decision:
        self.now += 1_000
        view = JobView(self.job, self.protocol, dict(self.steps)) if self.steps else None
        env = Env(lambda: f"lease-{next(self._ids)}", lambda: 0.5)
        decision = decide_all(view, inputs, self.now, env)
        self.steps |= {step.step_id: step for step in decision.steps}
        self.job = decision.job
        return decision

    @property
    def lease(self) -> Lease:
        (active,) = self.job.active
        return self.lease_of(active)

    def lease_of(self, step_id: str) -> Lease:
        attempt = self.steps[step_id].attempt
        return Lease(step_id, attempt.attempt_no, attempt.lease_id)

    def succeed(self, step_id: str) -> Decision:
        assert self.job.active == (step_id,)
        return self.feed(success(self.lease))

    def fail(self, step_id: str) -> None:
        """Until it is tried no more."""
        assert self.job.active == (step_id,)
        while self.job.active == (step_id,):
            if self.steps[step_id].status is StepStatus.FAILED_RETRY:
                self.now = self.job.due_at or self.now
                self.feed(DeadlinePassed())
            self.feed(failure(self.lease, code="BROKEN"))


def undone_by_policy() -> Told:
    """Booked, failed to pay, and the booking was undone."""
    told = Told("auto", spec("book", compensation=spec("unbook")), spec("pay", retry_safety=NOT_SAFE), spec("mail"))
    told.succeed("book")
    told.fail("pay")
    told.succeed("unbook")
    assert told.job.status is JobStatus.FAILED_FINAL
    return told


def test_a_retry_does_again_what_was_undone_under_a_new_key() -> None:
    told = undone_by_policy()
    key = told.steps["book"].idempotency_key
    assert told.steps["book"].undone
    assert told.feed(Retry(by="ada")).reply == Applied()
    assert told.job.active == ("book",)
    assert told.steps["book"].idempotency_key != key
    assert not told.steps["book"].undone


def test_what_was_undone_inside_a_branch_is_done_again_too() -> None:
    left, right = (spec("book", compensation=spec("unbook")),), (spec("pay", retry_safety=NOT_SAFE),)
    told = Told("auto", StepSpec(step_id="both", kind="parallel", parallel=Parallel(branches={"l": left, "r": right})))
    told.feed(success(told.lease_of("book")))
    told.fail("pay")
    told.succeed("unbook")
    told.feed(Retry(by="ada"))
    assert set(told.job.active) == {"book", "pay"}


def test_a_failed_step_that_its_own_handler_undid_gets_a_new_key_too() -> None:
    told = Told("auto", spec("pay", retry_safety=NOT_SAFE, compensation=spec("refund")))
    told.fail("pay")
    key = told.steps["pay"].idempotency_key
    told.succeed("refund")
    told.feed(Retry(by="ada"))
    assert told.steps["pay"].idempotency_key != key


def test_nothing_is_skipped_over_what_was_undone() -> None:
    told = undone_by_policy()
    reply = told.feed(Skip(by="ada", result={"paid": True})).reply
    assert isinstance(reply, Refused)
    assert reply.code == "COMPENSATED"


def halted() -> Told:
    """Two bookings to undo; the handler of the later one fails."""
    steps = (spec("car", compensation=spec("uncar")), spec("hotel", compensation=spec("unhotel")))
    told = Told("auto", *steps, spec("pay", retry_safety=NOT_SAFE))
    told.succeed("car")
    told.succeed("hotel")
    told.fail("pay")
    told.fail("unhotel")
    assert told.job.compensation is not None
    assert told.job.compensation.failed == "hotel"
    return told


def test_what_a_halted_compensation_did_not_get_to_can_be_undone_later() -> None:
    told = halted()
    assert told.job.review is not None
    told.feed(Discard(item=told.job.review, by="ada"))
    assert told.job.status is JobStatus.FAILED_FINAL
    assert told.feed(Compensate(by="ada")).reply == Applied()
    assert told.job.compensation is not None
    assert told.job.compensation.todo == ("hotel", "car")


def test_a_new_run_after_a_halted_compensation_can_still_undo_what_stands() -> None:
    told = halted()
    assert told.feed(Retry(by="ada")).reply == Applied()
    assert told.job.active == ("pay",)
    assert told.job.compensable == ("car", "hotel")


def test_an_item_beside_the_jobs_own_is_closed_by_the_act_on_it() -> None:
    told = undone_by_policy()
    assert told.job.review is not None
    other = replace(told.job.review, review_id="j~pay~1")
    closed = {item.review_id: item for item in told.feed(Retry(by="ada", reason="again", item=other)).reviews}
    assert {review_id: item.status for review_id, item in closed.items()} == {
        "j~run1": ReviewStatus.REPROCESSED,
        "j~pay~1": ReviewStatus.REPROCESSED,
    }
    assert {item.reason for item in closed.values()} == {"again"}
