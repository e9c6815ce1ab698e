"""Random lives of jobs with random protocols: inputs of services, operators and time in any order.

`Story` checks every invariant after every decision, and makes each on a part and on the whole of the job; the rules
below only generate inputs. `CORE_EXAMPLES` sets the number of examples.
"""

import os

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lucius.core.model.decision import Applied, Defaults
from lucius.core.model.inputs import Cancel, Capacity, DeadlinePassed, HandedOver, Input, Pause
from lucius.core.model.records import NEVER, Step
from lucius.core.model.statuses import FailureClass, StepStatus
from lucius.core.protocol.definition import ProtocolDefinition
from tests.unit.core.builders import MINUTE, SECOND, Story
from tests.unit.core.random_protocols import CLASSES, PAYLOAD, SIGNALS, protocols
from tests.unit.core.spoken import Lease
from tests.unit.core.spoken import failure as failure_of
from tests.unit.core.spoken import success as success_of

EXAMPLES = int(os.environ.get("CORE_EXAMPLES", "120"))
LEAPS = (0, 1, SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 60 * MINUTE)
PEOPLE = ("ada", "bob", "cleo", "eve")
LONG_ENOUGH = 6  # steps after which an ended job counts as final
numbers = st.integers(0, 63)


class JobMachine(RuleBasedStateMachine):
    """Feeds one job. `n` picks one of what exists: an active step, a lease that was given out, a review item."""

    story: Story
    protocol: ProtocolDefinition
    since_the_end = 0

    @initialize(protocol=protocols(), scale=st.sampled_from([0.0, 0.01, 1.0]), room=st.sampled_from([0, 1, 50]))
    def submit(self, protocol: ProtocolDefinition, scale: float, room: int) -> None:
        note(str(protocol))
        self.protocol, self.scale, self.room = protocol, scale, room
        self.submit_another()

    def submit_another(self) -> None:
        self.story = Story(self.protocol, defaults=Defaults(backoff_scale=self.scale), payload=PAYLOAD)
        if self.room:
            self.story.capacity = self.some_capacity
        self.story.submit()
        self.story.start()
        self.since_the_end = 0

    def some_capacity(self) -> dict[str, Capacity]:
        """Return capacity for the services whose name's length plus the time is odd."""
        services = self.protocol.plan.services
        return {name: Capacity(self.room) for name in services if (len(name) + self.story.now) % 2}

    def active(self, n: int) -> Step | None:
        active = self.story.job.active
        return self.story.steps[active[n % len(active)]] if active else None

    def lease(self, n: int) -> Lease | None:
        """Return a lease: mostly of an active step, sometimes an earlier one."""
        step = self.active(n)
        known = list(self.story.records.leases.items())
        if step is not None and n < 50:
            return self.story.lease_of(step.step_id)
        if not known:
            return None
        lease_id, (step_id, number) = known[n % len(known)]
        return Lease(step_id, number, lease_id)

    # Inputs of a healthy run

    @rule(n=numbers)
    def go_on(self, n: int) -> None:
        self.go_on_as_hoped(n)

    @rule(n=numbers)
    def go_on_for_a_while(self, n: int) -> None:
        for turn in range(4):
            self.go_on_as_hoped(n + turn)

    def go_on_as_hoped(self, n: int) -> None:
        story, step = self.story, self.active(n)
        if not story.job.live:
            return
        if story.job.due_at is not None and story.job.due_at <= story.now:
            assert story.tick() == Applied(), "due, and nothing to do"
        elif story.job.paused is not None:
            story.compensate() if story.job.paused.on_review else story.resume()
        elif step is not None:
            self.do_one_thing(step)

    def do_one_thing(self, step: Step) -> None:
        story, lease = self.story, self.story.lease_of(step.step_id)
        match step.status:
            case StepStatus.DISPATCHING:
                story.hand_over(lease)
            case StepStatus.INITIATED:
                story.ack(lease)
            case StepStatus.PROCESSING:
                story.succeed(lease)
            case StepStatus.AWAITING_APPROVAL:
                voted = {vote.by for vote in step.votes}
                story.approve(step.step_id, next(person for person in PEOPLE if person not in voted))
            case StepStatus.WAITING if step.awaits is not None:
                story.signal(step.awaits)
            case _:
                story.tick_when_due()

    # Services and the bus

    @rule(n=numbers)
    def claim(self, n: int) -> None:
        if lease := self.lease(n):
            self.story.claim(lease)

    @rule(n=numbers, how=st.sampled_from(["hand_over", "refuse_hand_over", "release"]))
    def report(self, n: int, how: str) -> None:
        if lease := self.lease(n):
            getattr(self.story, how)(lease)

    @rule(n=numbers, beats=st.booleans())
    def ack(self, n: int, beats: bool) -> None:
        if (lease := self.lease(n)) and self.is_dispatched(lease):
            self.story.heartbeat(lease, 0.5) if beats else self.story.ack(lease)

    @rule(n=numbers)
    def succeed(self, n: int) -> None:
        if lease := self.lease(n):
            self.story.feed(success_of(lease))

    @rule(n=numbers, cause=st.sampled_from(CLASSES))
    def fail(self, n: int, cause: FailureClass) -> None:
        if lease := self.lease(n):
            self.story.feed(failure_of(lease, cause))

    @rule(n=numbers, ends=st.sampled_from([None, Pause("ada"), Cancel("ada"), DeadlinePassed()]))
    def several_at_once(self, n: int, ends: Input | None) -> None:
        """Feed hand-over, callbacks and perhaps an operator's request as one decision."""
        if lease := self.lease(n):
            said: tuple[Input, ...] = (HandedOver(*lease), success_of(lease), success_of(lease))
            self.story.feed(*said, *((ends,) if ends else ()))

    def is_dispatched(self, lease: Lease) -> bool:
        return self.story.steps[lease.step_id].kind in ("task", "external_call", "notify")

    @rule(n=numbers)
    def lose_a_row(self, n: int) -> None:
        step = self.active(n)
        if step is not None and step.status is StepStatus.DISPATCHING:
            self.story.records.lose_row(step.attempt.outbox_id)
            self.story.repair(step.step_id)

    # Time

    @rule(leap=st.sampled_from(LEAPS))
    def wait(self, leap: int) -> None:
        self.story.wait(leap)

    @rule(away=st.sampled_from([None, None, 0, MINUTE]))
    def clock_rings(self, away: int | None) -> None:
        due = self.story.job.due_at
        if due is not None and due != NEVER:
            self.story.now = max(self.story.now, due)
        self.story.tick(0 if away is None else self.story.now - away)

    # Operators

    @rule()
    def pause(self) -> None:
        self.story.pause()

    @rule()
    def resume(self) -> None:
        self.story.resume()

    @rule(sure=st.integers(0, 3))
    def cancel(self, sure: int) -> None:
        if not sure:
            self.story.cancel()

    @rule(name=st.sampled_from([*SIGNALS, "never"]))
    def signal(self, name: str) -> None:
        self.story.signal(name)

    @rule(n=numbers, by=st.sampled_from(PEOPLE), approves=st.booleans())
    def vote(self, n: int, by: str, approves: bool) -> None:
        if step := self.active(n):
            (self.story.approve if approves else self.story.reject)(step.step_id, by)

    @rule(n=st.none() | numbers)
    def retry(self, n: int | None) -> None:
        steps = self.protocol.steps
        self.story.retry(None if n is None else steps[n % len(steps)].step_id)

    @rule(result=st.sampled_from([None, {"then": "s1"}, {"then": "nowhere"}, {"pages": 1}]))
    def skip(self, result: object) -> None:
        self.story.skip(result)

    @rule()
    def compensate(self) -> None:
        self.story.compensate()

    @rule(n=numbers)
    def adopt(self, n: int) -> None:
        kept = self.story.records.quarantined
        if kept:
            self.story.adopt(kept[n % len(kept)])

    @rule(n=numbers)
    def discard(self, n: int) -> None:
        items = list(self.story.records.reviews.values())
        if items:
            self.story.discard(items[n % len(items)])

    @rule()
    def retry_hand_over(self) -> None:
        self.story.retry_hand_over()

    @invariant()
    def an_ended_job_is_looked_at_for_a_while(self) -> None:
        story = getattr(self, "story", None)
        if story is None:
            return
        note(f"{story.status} run {story.job.run_no} {[(s.step_id, str(s.status)) for s in story.steps.values()]}")
        self.since_the_end += not story.job.live
        if self.since_the_end > LONG_ENOUGH:
            self.submit_another()

    def teardown(self) -> None:
        """Check that an operator and a healthy environment can bring any job to an end."""
        story = getattr(self, "story", None)
        if story is not None:
            self.bring_to_an_end(story)

    def bring_to_an_end(self, story: Story) -> None:
        for turn in range(2_000):
            if not story.job.live:
                return
            self.go_on_as_hoped(turn)
            if story.job.paused is not None and story.job.paused.on_review and turn % 5 == 4:
                story.discard()
        raise AssertionError(f"it never ends: {story.job}")


JobMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestRandomProtocols = pytest.mark.timeout(3600 if EXAMPLES > 1000 else 300)(JobMachine.TestCase)
