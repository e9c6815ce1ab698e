"""Builders for the story of one job: submit it, hand over its steps, send callbacks, and let time pass.

Every decision of every story is checked against the invariants of `invariants.py`. It is made twice: on the part of the
job that a ledger would load for it, and on the whole job. Both must be equal: the core has no state and no randomness.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from lucius.core.decide.decide import answer_all, decide_all
from lucius.core.decide.transitions import NOT_STARTED
from lucius.core.model.decision import Applied, CallbackReply, Decision, Defaults, Env, JobSnapshot, MissingSteps, Reply
from lucius.core.model.inputs import (
    Ack,
    Callback,
    Cap,
    Capacity,
    DeadlinePassed,
    Failed,
    HandedOver,
    HandOverFailed,
    HandOverReleased,
    HandOverStarted,
    Heartbeat,
    Input,
    Poisoned,
    Start,
    Submit,
    Succeeded,
)
from lucius.core.model.records import Attempt, Command, ErrorInfo, Job, OutboxRow, ProgressCounts, Step
from lucius.core.model.routing import route
from lucius.core.model.statuses import Disposition, FailureClass, JobStatus, Mode, OutboxStatus, StepStatus
from lucius.core.protocol.definition import Policies, ProtocolDefinition, RetryPolicy, StepSpec, digest
from tests.unit.core.acts import Acts
from tests.unit.core.expressions import PythonTools
from tests.unit.core.invariants import CheckedRecords
from tests.unit.core.spoken import Lease, failure, success

SECOND = 1_000
MINUTE = 60 * SECOND
T0 = 1_700_000_000_000
JOB_ID = "job-1"
STEPS = ("ocr", "embedding", "sis")
NEVER_LEASED = "lease-never-given-out"
MAX_LOADS = 30
MAX_DECISIONS = 200


def three_steps(
    *, job_timeout_ms: int | None = None, retry: RetryPolicy | None = None, first: dict[str, Any] | None = None
) -> ProtocolDefinition:
    """Return a protocol of OCR, EMBEDDING and SIS. `first` sets fields of the first step only."""
    policy = retry or RetryPolicy(backoff_strategy="exponential")
    specs = tuple(StepSpec(step_id=s, step_type=s.upper(), service=f"{s}-svc", retry_policy=policy) for s in STEPS)
    return ProtocolDefinition(
        protocol_id="OCR_EMBEDDING_SIS",
        version=1,
        request_type="OCR_EMBEDDING_SIS",
        steps=(replace(specs[0], **(first or {})), *specs[1:]),
        policies=Policies(timeout_ms=job_timeout_ms),
    )


def command(tenant_id: str = "acme", payload: dict[str, Any] | None = None) -> Command:
    return Command(
        tenant_id=tenant_id,
        request_type="OCR_EMBEDDING_SIS",
        input_ref="blob://in/a.pdf",
        output_ref="blob://out/a.json",
        payload={"sis": {"prompt_set": ["what is it?"]}} if payload is None else payload,
        schema_version="v1",
        workspace_ref=f"file:///w/lucius/{tenant_id}/{JOB_ID}",
        correlation_id="corr-1",
        submitted_by="key:tests",
    )


FENCED = (Callback, HandOverStarted, HandOverReleased, HandedOver, HandOverFailed, Poisoned)


class CountedIds:
    """Generates numbered ids. Resetting `made` takes ids back, so that a decision can be repeated."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"lease-{self.made}"


class Story(Acts):
    """A job and all its records, in a minimal ledger."""

    def __init__(
        self,
        protocol: ProtocolDefinition | None = None,
        *,
        jitter: float = 0.5,
        defaults: Defaults | None = None,
        tenant_id: str = "acme",
        caps: tuple[Cap, ...] = (),
        payload: dict[str, Any] | None = None,
    ) -> None:
        self.protocol = protocol or three_steps()
        self.now = T0
        self.ids = CountedIds()
        self.env = Env(self.ids, lambda: jitter, defaults or Defaults(), PythonTools())
        self.tenant_id = tenant_id
        self.payload = payload
        self.caps = caps
        self.capacity: Callable[[], Mapping[str, Capacity]] = dict
        """Returns the reserved capacity of services that wait for directives."""
        self.records = CheckedRecords()
        self.last: Decision | None = None

    # State

    @property
    def job(self) -> Job:
        assert self.records.job is not None, "nothing was submitted yet"
        return self.records.job

    @property
    def steps(self) -> dict[str, Step]:
        return self.records.steps

    @property
    def step(self) -> Step:
        """The step that was started last."""
        assert self.job.current_step_id is not None
        return self.steps[self.job.current_step_id]

    @property
    def attempt(self) -> Attempt:
        return self.step.attempt

    @property
    def lease(self) -> Lease:
        return self.lease_of(self.step.step_id)

    def lease_of(self, step_id: str) -> Lease:
        attempt = self.steps[step_id].attempt
        return Lease(step_id, attempt.attempt_no, attempt.lease_id)

    @property
    def row(self) -> OutboxRow:
        """The outbox row of the current attempt."""
        return self.records.rows[self.attempt.outbox_id]

    @property
    def decision(self) -> Decision:
        assert self.last is not None
        return self.last

    @property
    def status(self) -> JobStatus:
        return self.job.status

    @property
    def view(self) -> JobSnapshot:
        return JobSnapshot(self.job, self.protocol, dict(self.steps))

    def status_of(self, step_id: str) -> StepStatus:
        if step_id in self.steps:
            return self.steps[step_id].status
        return NOT_STARTED.get(self.job.status, StepStatus.PENDING)

    def statuses(self, *step_ids: str) -> list[str]:
        return [str(self.status_of(step_id)) for step_id in step_ids or STEPS]

    def history(self, step_id: str = "ocr") -> list[str]:
        """Return the outcomes of the step's ended attempts, oldest first."""
        return [str(a.outcome) for (step, _), a in self.records.history.items() if step == step_id]

    def pending_rows(self) -> list[OutboxRow]:
        return [row for row in self.records.rows.values() if row.status is OutboxStatus.PENDING]

    def event_types(self) -> list[str]:
        return [event.type for event in self.records.events]

    # Inputs

    def feed(self, *inputs: Input) -> Reply:
        """Decide on these inputs now and keep the outcome, as the service layer would; return the reply."""
        self.last = decision = self._decide(inputs)
        self._check_fencing(inputs, decision)
        self.records.keep(decision, self.now, self.env, len(inputs))
        return decision.reply

    def _decide(self, inputs: Sequence[Input]) -> Decision:
        if self.records.job is None:
            return decide_all(None, inputs, self.now, self.env, self.capacity())
        before_it = self.ids.made
        first = self._decide_on_what_it_asks_for(inputs)
        after_it, self.ids.made = self.ids.made, before_it
        whole = self.view
        before = msgspec.json.encode(whole)
        again = decide_all(whole, inputs, self.now, self.env, self.capacity())
        assert again == first, "a decision on a part of the job differs from one on the whole of it"
        assert self.ids.made == after_it
        if first.handed_over:
            self.ids.made = before_it
            self._check_given(whole, inputs, first)
        self.ids.made = before_it
        answered = answer_all(whole, inputs, self.now, self.env)
        assert answered.replies == first.replies, "an answer depends on what follows from it"
        assert first.changes or not answered.changes
        assert {step.step_id for step in answered.steps} <= {step.step_id for step in first.steps}
        self.ids.made = after_it
        assert msgspec.json.encode(whole) == before, "decide changed what it was given"
        return first

    def _check_given(self, view: JobSnapshot, inputs: Sequence[Input], decision: Decision) -> None:
        """Check that an immediate hand-over equals a separate one."""
        capacity = self.capacity()
        given = [
            HandedOver(row.step_id, row.attempt_no, row.lease_id, capacity[row.service].caps)
            for row in decision.handed_over
        ]
        separate = decide_all(view, (*inputs, *given), self.now, self.env)
        assert replace(separate, replies=decision.replies, handed_over=decision.handed_over) == decision

    def _decide_on_what_it_asks_for(self, inputs: Sequence[Input]) -> Decision:
        """Decide on the active and named steps, and load missing ones until the decision succeeds, as a ledger does."""
        made = self.ids.made
        asked = {*self.job.active, *(named for i in inputs if (named := getattr(i, "step_id", None)) is not None)}
        for _ in range(MAX_LOADS):
            self.ids.made = made
            steps = {step_id: self.steps[step_id] for step_id in asked if step_id in self.steps}
            try:
                view = JobSnapshot(self.job, self.protocol, steps, frozenset(asked))
                decision = decide_all(view, inputs, self.now, self.env, self.capacity())
            except MissingSteps as missing:
                asked |= missing.step_ids
            else:
                return decision
        raise AssertionError(f"after {MAX_LOADS} loads it still misses steps")

    def _check_fencing(self, inputs: Sequence[Input], decision: Decision) -> None:
        """Check that applied callbacks carry the lease that is current when the decision begins: a batch has one."""
        for happened, reply in zip(inputs, decision.replies, strict=True):
            applied = reply == Applied() or getattr(reply, "disposition", None) is Disposition.APPLIED
            if not applied or not isinstance(happened, FENCED):
                continue
            named = Lease(happened.step_id, happened.attempt_no, happened.lease_id)
            assert named == self.lease_of(happened.step_id), "a callback of a fenced attempt was applied"

    def submission(self, job_id: str = JOB_ID) -> Submit:
        routing = route(self.tenant_id, None, Mode.DEFAULT, "GLOBAL_CONFIG", "default mode")
        return Submit(
            job_id=job_id,
            command=command(self.tenant_id, self.payload),
            protocol=self.protocol,
            protocol_digest=digest(self.protocol),
            routing=routing,
            caps=self.caps,
        )

    def submit(self) -> Reply:
        return self.feed(self.submission())

    def start(self) -> Reply:
        return self.feed(Start())

    def claim(self, lease: Lease | None = None, caps: tuple[Cap, ...] = ()) -> Reply:
        return self.feed(HandOverStarted(*(lease or self.lease), caps=caps))

    def release(self, lease: Lease | None = None) -> Reply:
        return self.feed(HandOverReleased(*(lease or self.lease)))

    def hand_over(
        self, lease: Lease | None = None, caps: tuple[Cap, ...] = (), tenant_bound: bool | UnsetType = UNSET
    ) -> Reply:
        return self.feed(HandedOver(*(lease or self.lease), caps=caps, tenant_bound=tenant_bound))

    def refuse_hand_over(self, lease: Lease | None = None) -> Reply:
        error = ErrorInfo("HANDOVER_FAILED", "the bus refused the message")
        return self.feed(HandOverFailed(*(lease or self.lease), error))

    def poison(self, lease: Lease | None = None) -> Reply:
        return self.feed(Poisoned(*(lease or self.lease), ErrorInfo("POISON_MESSAGE", "given out 5 times")))

    def ack(self, lease: Lease | None = None, **extra: Any) -> Disposition:
        step_id, attempt_no, lease_id = lease or self.lease
        return self._said(Ack(step_id=step_id, attempt_no=attempt_no, lease_id=lease_id, extra=extra))

    def heartbeat(
        self,
        lease: Lease | None = None,
        progress: float | None = None,
        counts: ProgressCounts | None = None,
        **extra: Any,
    ) -> Disposition:
        step_id, attempt_no, lease_id = lease or self.lease
        beat = Heartbeat(
            step_id=step_id, attempt_no=attempt_no, lease_id=lease_id, extra=extra, progress=progress, counts=counts
        )
        return self._said(beat)

    def succeed(self, lease: Lease | None = None, result: Any = None, **extra: Any) -> Disposition:
        return self._said(success(lease or self.lease, result, **extra))

    def fail(
        self,
        lease: Lease | None = None,
        failure_class: FailureClass = FailureClass.RETRYABLE,
        code: str = "OUT_OF_PAPER",
        retry_after_ms: int | None = None,
        **extra: Any,
    ) -> Disposition:
        return self._said(failure(lease or self.lease, failure_class, code, retry_after_ms, **extra))

    def fail_for_good(self, lease: Lease | None = None) -> Disposition:
        return self.fail(lease, FailureClass.NON_RETRYABLE, "UNREADABLE")

    def _said(self, callback: Ack | Heartbeat | Succeeded | Failed) -> Disposition:
        reply = self.feed(callback)
        assert isinstance(reply, CallbackReply), reply
        return reply.disposition

    @property
    def answer(self) -> CallbackReply:
        """Return the reply to the last callback."""
        assert isinstance(self.decision.reply, CallbackReply)
        return self.decision.reply

    def wait(self, millis: int) -> "Story":
        self.now += millis
        return self

    def wait_until(self, instant: int | None) -> "Story":
        assert instant is not None
        assert instant >= self.now
        self.now = instant
        return self

    def tick(self, resumed_at: int = 0, as_of: int | None = None) -> Reply:
        return self.feed(DeadlinePassed(resumed_at, as_of))

    def tick_when_due(self, resumed_at: int = 0) -> Reply:
        """Advance the clock to the job's next deadline and tick."""
        assert self.job.due_at is not None, "this job has no clock"
        self.now = max(self.now, self.job.due_at)
        return self.tick(resumed_at)

    # Shortcuts to a state

    def dispatched(self) -> "Story":
        """Accept and start the job: the first attempt waits in the outbox."""
        self.feed(self.submission(), Start())
        return self

    def claimed(self) -> "Story":
        self.dispatched().claim()
        return self

    def initiated(self) -> "Story":
        self.dispatched().hand_over()
        return self

    def processing(self) -> "Story":
        self.initiated().ack()
        return self

    def next_attempt(self) -> "Story":
        """Let the backoff pass, which starts the next attempt."""
        assert self.step.status is StepStatus.FAILED_RETRY
        self.tick_when_due()
        return self

    def finish_step(self, result: Any = None) -> "Story":
        self.hand_over()
        self.ack()
        assert self.succeed(result=result) is Disposition.APPLIED
        return self

    def finished(self) -> "Story":
        self.dispatched()
        for _ in self.protocol.steps:
            self.finish_step()
        return self

    def do(self, *step_ids: str, result: Any = None) -> "Story":
        """Complete these steps, one after the other."""
        for step_id in step_ids:
            self.hand_over(self.lease_of(step_id))
            assert self.succeed(self.lease_of(step_id), result) is Disposition.APPLIED
        return self

    def botch(self, step_id: str, failure_class: FailureClass = FailureClass.NON_RETRYABLE) -> "Story":
        """Fail this step; by default permanently."""
        self.hand_over(self.lease_of(step_id))
        assert self.fail(self.lease_of(step_id), failure_class) is Disposition.APPLIED
        return self

    def settle(self) -> "Story":
        """Tick as an engine would, until nothing is due now: a decision may leave work for the next one."""
        for _ in range(MAX_DECISIONS):
            if self.job.due_at is None or self.job.due_at > self.now:
                return self
            assert self.tick() == Applied(), "due, and nothing to do"
        raise AssertionError("it never settles")


def lost_lease() -> tuple[Story, Lease]:
    """Return a story with its step in the second attempt, and the lease of the first."""
    story = Story().processing()
    fenced = story.lease
    story.tick_when_due()
    story.next_attempt()
    return story, fenced
