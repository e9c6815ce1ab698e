"""What must hold after every decision, whatever led to it. Computed from the records, not from the core's helpers."""

from itertools import chain

from msgspec.structs import replace

from lucius.core.decision import Applied, CallbackReply, Decision, Env, Ignored, JobView, Refused
from lucius.core.explain import explain
from lucius.core.model import (
    TERMINAL_STEP,
    Attempt,
    BlockedReason,
    Disposition,
    Event,
    Job,
    JobStatus,
    OutboxRow,
    OutboxStatus,
    Quarantined,
    Step,
    StepStatus,
)
from lucius.core.protocol import Protocol

MAX_ROWS = 40
KNOWN_REFUSALS = frozenset({"JOB_TERMINAL", "STEP_NOT_FOUND"})
WAITS_FOR = {
    StepStatus.DISPATCHING: BlockedReason.HANDOVER,
    StepStatus.INITIATED: BlockedReason.ACK,
    StepStatus.PROCESSING: BlockedReason.RESULT,
    StepStatus.FAILED_RETRY: BlockedReason.RETRY,
}


class Books:
    """Everything the decisions about one job have left behind, and the checks on each new one."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.protocol: Protocol | None = None
        self.steps: dict[str, Step] = {}
        self.rows: dict[str, OutboxRow] = {}
        self.history: dict[tuple[str, int], Attempt] = {}
        self.events: list[Event] = []
        self.quarantined: list[Quarantined] = []
        self.counters: dict[str, int] = {}
        self.leases: dict[str, tuple[str, int]] = {}

    def keep(self, decision: Decision, now: int, env: Env) -> None:
        self._check_replies(decision)
        self._check_size_and_version(decision, now)
        self._check_what_is_fixed(decision)
        self._check_cancel_starts_nothing(decision)
        self._check_attempts_grow(decision)
        self._check_rows_settle_once(decision)
        self._check_ignored_changes_nothing(decision)
        self._add(decision)
        self._check_state(env)

    def _add(self, decision: Decision) -> None:
        self.job, self.protocol = decision.job, decision.protocol
        self.steps.update((step.step_id, step) for step in decision.steps)
        self.rows.update((row.outbox_id, row) for row in decision.outbox)
        for ended in decision.attempts:
            key = ended.step_id, ended.attempt.attempt_no
            assert key not in self.history, f"{key} went into the history twice"
            self.history[key] = ended.attempt
        self.events.extend(decision.events)
        self.quarantined.extend(decision.quarantined)
        for counter, move in decision.counters.items():
            self.counters[counter] = self.counters.get(counter, 0) + move

    def lose_row(self, outbox_id: str) -> None:
        """A store forgets a row. Only `Repair` may be fed next."""
        del self.rows[outbox_id]

    # about the decision

    def _check_replies(self, decision: Decision) -> None:
        for reply in decision.replies:
            assert isinstance(reply, Applied | Ignored | Refused | CallbackReply)
            if isinstance(reply, Refused):
                assert reply.code in KNOWN_REFUSALS, reply
                assert reply.message
            if isinstance(reply, Ignored):
                assert reply.why

    def _check_size_and_version(self, decision: Decision, now: int) -> None:
        rows = chain(decision.steps, decision.attempts, decision.outbox, decision.events, decision.quarantined)
        assert 1 + len(list(rows)) + len(decision.counters) <= MAX_ROWS
        was = self.job.version if self.job else 0
        assert decision.expected_version == was or not decision.changes
        assert decision.job.version == was + (1 if decision.changes else 0)
        seen = self.job.event_seq if self.job else 0
        assert [event.seq for event in decision.events] == list(range(seen + 1, seen + 1 + len(decision.events)))
        assert decision.job.event_seq == seen + len(decision.events)
        assert all(event.at == now and event.job_id == decision.job.job_id for event in decision.events)
        assert decision.creates is (self.job is None)

    def _check_what_is_fixed(self, decision: Decision) -> None:
        for step in decision.steps:
            before = self.steps.get(step.step_id)
            if before is not None:
                assert before.status not in TERMINAL_STEP, f"{step.step_id} left {before.status}"
                assert step.idempotency_key == before.idempotency_key
                assert (step.index, step.service, step.created_at) == (before.index, before.service, before.created_at)
        if self.job is None:
            return
        assert decision.job.routing == self.job.routing
        assert decision.job.command == self.job.command
        assert decision.job.protocol_digest == self.job.protocol_digest
        if not self.job.live:
            assert _same_but_for_the_books(self.job, decision.job), "an ended job changed"
            assert not _moved(decision)

    def _check_cancel_starts_nothing(self, decision: Decision) -> None:
        if decision.job.status is not JobStatus.CANCELLING:
            return
        for step in {**self.steps, **{step.step_id: step for step in decision.steps}}.values():
            assert step.status is not StepStatus.FAILED_RETRY, "a job that is being cancelled retries nothing"
            if step.status is StepStatus.DISPATCHING:
                assert step.attempt.claimed_at is not None, "nobody may hand this over any more"
        if self.job is not None and self.job.status is JobStatus.CANCELLING:
            assert decision.job.attempts_total == self.job.attempts_total

    def _check_attempts_grow(self, decision: Decision) -> None:
        for step in decision.steps:
            before = self.steps.get(step.step_id)
            attempt = step.attempt
            assert attempt.routing == decision.job.routing, "an attempt must keep the routing decided at ingress"
            assert attempt.attempt_no >= (before.attempt.attempt_no if before else 1)
            if before is not None and attempt.attempt_no == before.attempt.attempt_no:
                assert attempt.lease_id == before.attempt.lease_id
                assert attempt.created_at == before.attempt.created_at
            else:
                assert attempt.lease_id not in self.leases, "a lease was given out twice"
                self.leases[attempt.lease_id] = (step.step_id, attempt.attempt_no)

    def _check_rows_settle_once(self, decision: Decision) -> None:
        for row in decision.outbox:
            before = self.rows.get(row.outbox_id)
            assert before is None or before.status is OutboxStatus.PENDING, f"{row.outbox_id} left {before}"
            assert (row.settled_at is None) is (row.status is OutboxStatus.PENDING)

    def _check_ignored_changes_nothing(self, decision: Decision) -> None:
        """DUPLICATE, LATE and STALE leave an event, Ignored and Refused not even that."""
        if self.job is None or not all(_changes_nothing(reply) for reply in decision.replies):
            return
        assert _same_but_for_the_books(self.job, decision.job)
        assert not _moved(decision)
        recorded = [reply for reply in decision.replies if isinstance(reply, CallbackReply)]
        assert len(decision.events) == len(recorded)
        assert decision.changes is bool(recorded)

    # about what is known now

    def _check_state(self, env: Env) -> None:
        job = self.job
        assert job is not None
        live_steps = tuple(step.step_id for step in self.steps.values() if step.status not in TERMINAL_STEP)
        assert job.active == live_steps
        assert len(live_steps) <= 1, "more than one step is active"
        assert job.attempts_total == sum(step.attempt.attempt_no for step in self.steps.values())
        assert job.live or not live_steps
        assert job.live is (job.completed_at is None)
        if job.live and job.status is not JobStatus.QUEUED:
            assert live_steps, "a started job must have a step to wait for"
        for step in self.steps.values():
            self._check_step(step, env)
        self._check_counters(job)
        self._check_clock(job)
        self._check_blocked(job, env)

    def _check_step(self, step: Step, env: Env) -> None:
        ended = step.status in TERMINAL_STEP
        assert (step.completed_at is not None) is ended
        assert (step.retry_at is not None) is (step.status is StepStatus.FAILED_RETRY)
        assert step.attempt.claimed_at is None or step.status is StepStatus.DISPATCHING
        numbers = [no for step_id, no in self.history if step_id == step.step_id]
        assert numbers == list(range(1, step.attempt.attempt_no + ended)), "the history has a gap"
        for attempt in (a for (step_id, _), a in self.history.items() if step_id == step.step_id):
            assert attempt.ended_at is not None
            assert attempt.outcome is not None
        if ended:
            assert self.history[step.step_id, step.attempt.attempt_no] == step.attempt
        assert self.protocol is not None
        allowed = self.protocol.plan.places[step.step_id.partition(".")[0]].spec.retry_policy.max_attempts or env.defaults.max_attempts
        assert 1 <= step.tries <= allowed, "the budget is overdrawn"
        self._check_row_of(step)

    def _check_row_of(self, step: Step) -> None:
        pending = [r for r in self.rows.values() if r.step_id == step.step_id and r.status is OutboxStatus.PENDING]
        after_failed_hand_over = step.status is StepStatus.FAILED_RETRY and step.attempt.handed_over_at is None
        if step.status is not StepStatus.DISPATCHING and not after_failed_hand_over:
            assert not pending, f"{step.step_id} is {step.status} and has a PENDING row"
            return
        assert len(pending) == 1
        row = pending[0]
        assert row.outbox_id == step.attempt.outbox_id
        assert (row.attempt_no, row.lease_id) == (step.attempt.attempt_no, step.attempt.lease_id)
        assert row.claimed_at == step.attempt.claimed_at
        assert row.next_attempt_at == step.retry_at

    def _check_counters(self, job: Job) -> None:
        truth: dict[str, int] = {}
        if job.live:
            truth = {"jobs": 1, f"jobs/tenant/{job.tenant_id}": 1, f"jobs/protocol/{job.protocol_id}": 1}
            truth[f"jobs/mode/{job.routing.resolved_mode}"] = 1
        for step in self.steps.values():
            being_published = step.status is StepStatus.DISPATCHING and step.attempt.claimed_at is not None
            if step.status is StepStatus.INITIATED or being_published:
                truth[f"unacked/{step.service}"] = 1
        assert {counter: n for counter, n in self.counters.items() if n} == truth

    def _check_clock(self, job: Job) -> None:
        clocks = [job.deadline] if job.live else []
        if job.status is JobStatus.QUEUED:
            clocks = [job.created_at]
        for step in self.steps.values():
            clocks += _clocks_of(step)
        assert job.due_at == min((clock for clock in clocks if clock is not None), default=None)
        if job.live:
            pending = any(row.status is OutboxStatus.PENDING for row in self.rows.values())
            assert job.due_at is not None or pending, "nothing will ever look at this job again"

    def _check_blocked(self, job: Job, env: Env) -> None:
        assert (job.blocked is not None) is job.live
        if job.blocked is None:
            return
        if not job.active:
            assert job.blocked.reason is BlockedReason.ENGINE
        else:
            step = self.steps[job.active[0]]
            assert job.blocked.reason is WAITS_FOR[step.status]
            assert job.blocked.step_id == step.step_id == job.current_step_id
            assert job.blocked.until == min((c for c in _clocks_of(step) if c is not None), default=None)
        assert self.protocol is not None
        assert explain(JobView(job, self.protocol, self.steps), job.blocked.reason, env)


def _clocks_of(step: Step) -> list[int | None]:
    match step.status:
        case StepStatus.INITIATED:
            assert step.attempt.ack_deadline is not None
            return [step.attempt.ack_deadline]
        case StepStatus.PROCESSING:
            assert step.attempt.lease_expires_at is not None
            return [step.attempt.lease_expires_at, step.attempt.hard_deadline]
        case StepStatus.FAILED_RETRY:
            return [step.retry_at]
        case _:
            return []


def _moved(decision: Decision) -> list[object]:
    return [*decision.steps, *decision.attempts, *decision.outbox, *decision.counters]


def _changes_nothing(reply: object) -> bool:
    if isinstance(reply, CallbackReply):
        return reply.disposition is not Disposition.APPLIED
    return isinstance(reply, Ignored | Refused)


def _same_but_for_the_books(before: Job, after: Job) -> bool:
    books = {"version": before.version, "event_seq": before.event_seq, "event_hash": before.event_hash}
    return replace(after, **books) == before
