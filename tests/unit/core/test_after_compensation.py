"""A compensated step is done again under a new key; a step that was not compensated still can be."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Applied, Decision, Env, JobSnapshot, Refused
from lucius.core.model.inputs import Compensate, DeadlinePassed, Discard, Input, Retry, Skip, Start, Submit
from lucius.core.model.records import Job, Step
from lucius.core.model.routing import route
from lucius.core.model.statuses import JobStatus, Mode, ReviewStatus, StepStatus
from lucius.core.protocol.definition import Parallel, Policies, ProtocolDefinition, StepSpec, digest
from tests.unit.core.builders import T0, command
from tests.unit.core.spoken import Lease, failure, success

NOT_SAFE = "NOT_SAFE_TO_RETRY"


def spec(step_id: str, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, step_type="X", service="svc", **fields)


class JobDriver:
    """A job with all its steps, fed one input at a time."""

    job: Job

    def __init__(self, policy: Any, *steps: StepSpec) -> None:
        self.protocol = ProtocolDefinition(
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
        view = JobSnapshot(self.job, self.protocol, dict(self.steps)) if self.steps else None
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
        """Fail the step until it is not retried any more."""
        assert self.job.active == (step_id,)
        while self.job.active == (step_id,):
            if self.steps[step_id].status is StepStatus.FAILED_RETRY:
                self.now = self.job.due_at or self.now
                self.feed(DeadlinePassed())
            self.feed(failure(self.lease, code="BROKEN"))


def undone_by_policy() -> JobDriver:
    """Return a job with a booking that was undone because the payment failed."""
    driver = JobDriver(
        "auto", spec("book", compensation=spec("unbook")), spec("pay", retry_safety=NOT_SAFE), spec("mail")
    )
    driver.succeed("book")
    driver.fail("pay")
    driver.succeed("unbook")
    assert driver.job.status is JobStatus.FAILED_FINAL
    return driver


def test_retry_repeats_an_undone_step_under_a_new_key() -> None:
    driver = undone_by_policy()
    key = driver.steps["book"].idempotency_key
    assert driver.steps["book"].undone
    assert driver.feed(Retry(by="ada")).reply == Applied()
    assert driver.job.active == ("book",)
    assert driver.steps["book"].idempotency_key != key
    assert not driver.steps["book"].undone


def test_retry_repeats_an_undone_step_inside_a_branch() -> None:
    left, right = (spec("book", compensation=spec("unbook")),), (spec("pay", retry_safety=NOT_SAFE),)
    driver = JobDriver(
        "auto", StepSpec(step_id="both", kind="parallel", parallel=Parallel(branches={"l": left, "r": right}))
    )
    driver.feed(success(driver.lease_of("book")))
    driver.fail("pay")
    driver.succeed("unbook")
    driver.feed(Retry(by="ada"))
    assert set(driver.job.active) == {"book", "pay"}


def test_failed_step_undone_by_its_own_handler_gets_a_new_key() -> None:
    driver = JobDriver("auto", spec("pay", retry_safety=NOT_SAFE, compensation=spec("refund")))
    driver.fail("pay")
    key = driver.steps["pay"].idempotency_key
    driver.succeed("refund")
    driver.feed(Retry(by="ada"))
    assert driver.steps["pay"].idempotency_key != key


def test_skip_after_compensation_is_refused() -> None:
    driver = undone_by_policy()
    reply = driver.feed(Skip(by="ada", result={"paid": True})).reply
    assert isinstance(reply, Refused)
    assert reply.code == "COMPENSATED"


def halted() -> JobDriver:
    """Return a job with two bookings to undo, where the handler of the later one fails."""
    steps = (spec("car", compensation=spec("uncar")), spec("hotel", compensation=spec("unhotel")))
    driver = JobDriver("auto", *steps, spec("pay", retry_safety=NOT_SAFE))
    driver.succeed("car")
    driver.succeed("hotel")
    driver.fail("pay")
    driver.fail("unhotel")
    assert driver.job.compensation is not None
    assert driver.job.compensation.failed == "hotel"
    return driver


def test_steps_left_by_a_discarded_halted_compensation_can_be_undone_later() -> None:
    driver = halted()
    assert driver.job.review is not None
    driver.feed(Discard(item=driver.job.review, by="ada"))
    assert driver.job.status is JobStatus.FAILED_FINAL
    assert driver.feed(Compensate(by="ada")).reply == Applied()
    assert driver.job.compensation is not None
    assert driver.job.compensation.todo == ("hotel", "car")


def test_new_run_after_a_halted_compensation_can_still_undo_the_remaining_steps() -> None:
    driver = halted()
    assert driver.feed(Retry(by="ada")).reply == Applied()
    assert driver.job.active == ("pay",)
    assert driver.job.compensable == ("car", "hotel")


def test_retry_closes_the_items_of_the_job_and_of_the_step() -> None:
    driver = undone_by_policy()
    assert driver.job.review is not None
    other = replace(driver.job.review, review_id="j~pay~1")
    closed = {item.review_id: item for item in driver.feed(Retry(by="ada", reason="again", item=other)).reviews}
    assert {review_id: item.status for review_id, item in closed.items()} == {
        "j~run1": ReviewStatus.REPROCESSED,
        "j~pay~1": ReviewStatus.REPROCESSED,
    }
    assert {item.reason for item in closed.values()} == {"again"}
