"""Random histories of three tasks: any input, in any order, at any time, duplicated or from a fenced attempt.

`test_random_protocols.py` does the same with other protocols; this one has more ways to hand a task over.

`Story` checks every invariant after every decision, so the rules below only generate inputs.
"""

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lucius.core.model.decision import Defaults
from lucius.core.model.inputs import Ack, Cancel, DeadlinePassed, HandedOver, Heartbeat, Start
from lucius.core.model.records import NEVER
from lucius.core.model.statuses import WITH_SERVICE, FailureClass, OutboxStatus, StepStatus
from lucius.core.protocol.definition import RetryPolicy
from tests.unit.core.builders import JOB_ID, MINUTE, NEVER_LEASED, SECOND, STEPS, T0, Story, three_steps
from tests.unit.core.spoken import Lease
from tests.unit.core.spoken import failure as failure_of
from tests.unit.core.spoken import success as success_of

LEAPS = (0, 1, SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 60 * MINUTE)
LONG_ENOUGH = 8  # steps after which an ended job counts as final
classes = st.sampled_from(FailureClass)


class JobMachine(RuleBasedStateMachine):
    """One job with random inputs. `which` picks a lease: mostly the current one, sometimes an old or a made-up one."""

    story: Story
    since_the_end = 0

    @initialize(
        job_timeout=st.sampled_from([None, None, 5 * MINUTE, 60 * MINUTE]),
        step_timeout=st.sampled_from([None, 2 * MINUTE, 20 * MINUTE]),
        max_attempts=st.sampled_from([None, 1, 2, 5]),
        jitter=st.floats(0, 1, exclude_max=True),
        scale=st.sampled_from([0.0, 0.01, 1.0]),
        started=st.sampled_from([False, True, True, True]),
    )
    def submit(
        self,
        job_timeout: int | None,
        step_timeout: int | None,
        max_attempts: int | None,
        jitter: float,
        scale: float,
        started: bool,
    ) -> None:
        retry = RetryPolicy(max_attempts=max_attempts)
        self.protocol = three_steps(job_timeout_ms=job_timeout, retry=retry, first={"timeout_ms": step_timeout})
        self.jitter, self.defaults = jitter, Defaults(backoff_scale=scale)
        self.submit_another()
        if started:
            self.story.start()

    def submit_another(self) -> None:
        self.story = Story(self.protocol, jitter=self.jitter, defaults=self.defaults)
        self.story.submit()
        self.since_the_end = 0

    def lease(self, which: int) -> Lease:
        """Return a lease. 0..5: the current one; 6, 7: an earlier one; 8: one never given out; 9: an unknown step."""
        known = [Lease(step_id, no, lease_id) for lease_id, (step_id, no) in self.story.records.leases.items()]
        if not known or which == 8:
            return Lease("ocr", 1, NEVER_LEASED)
        if which == 9:
            return Lease("shredding", 1, NEVER_LEASED)
        if which >= 6:
            return known[(which * 7 + self.story.job.version) % len(known)]
        return self.story.lease

    @rule()
    def go_on_as_hoped(self) -> None:
        """Feed the next input of a healthy run, so that histories make progress."""
        story = self.story
        if not story.job.active:
            story.start() if story.job.paused is None else story.discard()
            return
        match story.step.status:
            case StepStatus.DISPATCHING:
                story.hand_over()
            case StepStatus.INITIATED:
                story.ack()
            case StepStatus.PROCESSING:
                story.succeed()
            case _:
                story.tick_when_due()

    @rule(again=st.booleans())
    def begin_again(self, again: bool) -> None:
        self.story.feed(*((self.story.submission(),) if again else ()), Start())

    @rule(cancelled=st.booleans(), ends=st.sampled_from(["hand_over", "refuse_hand_over", "release", "ack", "lost"]))
    def publish(self, cancelled: bool, ends: str) -> None:
        """Let a relay claim and report, with an event in between or an earlier callback."""
        if self.story.job.active:
            self.story.claim()
            if cancelled:
                self.story.cancel()
            if ends == "lost":
                self.lose_the_row()
            else:
                getattr(self.story, ends)()

    @rule(which=st.integers(0, 9))
    def claim(self, which: int) -> None:
        self.story.claim(self.lease(which))

    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        self.story.release(self.lease(which))

    @rule(which=st.integers(0, 9))
    def hand_over(self, which: int) -> None:
        self.story.hand_over(self.lease(which))

    @rule(which=st.integers(0, 9))
    def refuse_hand_over(self, which: int) -> None:
        self.story.refuse_hand_over(self.lease(which))

    @rule(which=st.integers(0, 8))
    def ack(self, which: int) -> None:
        if self.story.steps:
            self.story.ack(self.lease(which), ACKED=True)

    @rule(which=st.integers(0, 8), progress=st.none() | st.floats(0, 1))
    def heartbeat(self, which: int, progress: float | None) -> None:
        if self.story.steps:
            self.story.heartbeat(self.lease(which), progress)

    @rule(which=st.integers(0, 9), pages=st.integers(0, 1))
    def succeed(self, which: int, pages: int) -> None:
        self.story.feed(success_of(self.lease(which), {"pages": pages}))

    @rule(which=st.integers(0, 9), cause=classes, retry_after=st.none() | st.sampled_from(LEAPS))
    def fail(self, which: int, cause: FailureClass, retry_after: int | None) -> None:
        self.story.feed(failure_of(self.lease(which), cause, retry_after_ms=retry_after))

    @rule(which=st.integers(0, 8), doubled=st.booleans())
    def several_at_once(self, which: int, doubled: bool) -> None:
        """Feed hand-over and callbacks of the same instant as one decision."""
        lease = self.lease(which)
        step_id, attempt_no, lease_id = lease
        ack = Ack(step_id=step_id, attempt_no=attempt_no, lease_id=lease_id)
        beat = Heartbeat(step_id=step_id, attempt_no=attempt_no, lease_id=lease_id, progress=0.5)
        batch = (HandedOver(*lease), ack, beat, success_of(lease))
        self.story.feed(*batch, *(batch[1:] if doubled else ()))

    @rule(leap=st.sampled_from(LEAPS))
    def wait(self, leap: int) -> None:
        self.story.wait(leap)

    @rule(early=st.sampled_from([0, 0, 0, 1]), away=st.sampled_from([None, None, 0, 1, MINUTE]))
    def clock_rings(self, early: int, away: int | None) -> None:
        """Tick when the job is due, or shortly before; the engine may have been away until just before."""
        due = self.story.job.due_at
        if due is not None and due != NEVER:
            self.story.now = max(self.story.now, due - early)
        self.story.tick(0 if away is None else self.story.now - away)

    @rule(resumed_at=st.integers(T0 - MINUTE, T0 + 3 * 60 * MINUTE), stood_still=st.none() | st.sampled_from(LEAPS))
    def tick(self, resumed_at: int, stood_still: int | None) -> None:
        """Tick; the engine may have stalled between reading the clock and this decision."""
        as_of = None if stood_still is None else self.story.now - stood_still
        self.story.tick(min(resumed_at, self.story.now if as_of is None else as_of), as_of)

    @rule(sure=st.integers(0, 12))
    def cancel(self, sure: int) -> None:
        """Cancel rarely, and mostly while a service may have the step: otherwise the history ends at once."""
        step = self.story.step if self.story.job.active else None
        is_out = step is not None and (step.status in WITH_SERVICE or step.attempt.claimed_at is not None)
        if sure == 12:
            self.story.feed(Start(), DeadlinePassed(), Cancel("ada"), Start())
        elif sure == 11 or (is_out and sure > 6):
            self.story.cancel()

    @rule()
    def retry_hand_over(self) -> None:
        self.story.retry_hand_over()

    @rule(missing=st.sets(st.sampled_from([*STEPS, "shredding"])))
    def repair_what_may_be_whole(self, missing: set[str]) -> None:
        self.story.repair(*sorted(missing))

    @rule()
    def lose_the_row(self) -> None:
        """Lose the row of a step that waits for hand-over; the sweeper repairs it."""
        story = self.story
        if not story.job.active or story.step.status is not StepStatus.DISPATCHING:
            return
        story.records.lose_row(story.attempt.outbox_id)
        story.repair(story.step.step_id)

    @invariant()
    def it_is_still_the_same_job(self) -> None:
        story = self.story
        note(f"{story.status} {story.statuses()} v{story.job.version} rows={len(story.records.rows)}")
        assert story.job.job_id == JOB_ID
        sent = [row for row in story.records.rows.values() if row.status is OutboxStatus.SENT]
        assert len(sent) <= story.job.attempts_total
        self.since_the_end += not story.job.live
        if self.since_the_end > LONG_ENOUGH:
            self.submit_another()


JobMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRandomHistories = pytest.mark.timeout(300)(JobMachine.TestCase)
