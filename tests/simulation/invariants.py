"""Invariants checked after every commit, written independently of the code that keeps them. A rule yields violations.

These hold in every world. `line_rules` adds those of sequential steps without operators, `flow_rules` and `act_rules`
those of branching protocols and operator acts.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct, field

from lucius.adapters.ledger.memory.tables import JobEntry
from lucius.core.model.decision import Decision, Defaults
from lucius.core.model.records import Attempt, Failure, Instant, ReviewItem, Step
from lucius.core.model.statuses import (
    TERMINAL_JOB,
    TERMINAL_STEP,
    TIMED_OUT,
    WITH_SERVICE,
    AttemptOutcome,
    FailureClass,
    JobStatus,
    OutboxStatus,
    StepStatus,
)
from lucius.core.protocol.definition import CONTAINERS, ENGINE_SERVICES, Place, StepSpec, spec_id
from tests.simulation.disk import Before
from tests.simulation.scenery import LEASE_SLACK_MS

RETRY_AFTER_MS = 2_500  # requested by services that report RATE_LIMITED
DISPATCHED = frozenset({"task", "external_call", "notify"})
NEVER_AGAIN = frozenset({FailureClass.NON_RETRYABLE, FailureClass.COMPENSATION_REQUIRED})

ROW_ARROWS = {
    None: {OutboxStatus.PENDING},
    OutboxStatus.PENDING: set(OutboxStatus),
    OutboxStatus.SENT: {OutboxStatus.SENT},
    OutboxStatus.FAILED_FINAL: {OutboxStatus.FAILED_FINAL},
    OutboxStatus.WITHDRAWN: {OutboxStatus.WITHDRAWN},
}


class Absence(Struct, frozen=True):
    """Period in which no orchestrator was running."""

    since: Instant
    until: Instant


class Known(Struct):
    """State that the rules keep between commits, and what the world reports to them."""

    defaults: Defaults
    max_unacked: int
    tenant_inflight: int
    attempts: dict[tuple[str, str, int], str] = field(default_factory=dict)
    ended: dict[tuple[str, str, int], Attempt] = field(default_factory=dict)
    leases: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    repairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    share: dict[str, dict[str, int]] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    ledger_totals: dict[str, int] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    cancels_asked: set[str] = field(default_factory=set)
    drifted: set[str] = field(default_factory=set)
    claims: dict[str, tuple[str, Instant, int]] = field(default_factory=dict)
    started: dict[str, Instant] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)
    # Used by act_rules, flow_rules and Monitor
    reviews: dict[str, ReviewItem] = field(default_factory=dict)
    closed: dict[str, ReviewItem] = field(default_factory=dict)
    done: dict[str, list[str]] = field(default_factory=dict)
    resumed: Counter[str] = field(default_factory=Counter)
    once: dict[str, tuple[object, ...]] = field(default_factory=dict)
    out: dict[tuple[object, ...], set[str]] = field(default_factory=dict)
    executed: dict[tuple[object, ...], set[str]] = field(default_factory=dict)
    handed: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    guarded: set[str] = field(default_factory=set)
    undoing: dict[str, list[str]] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    redone: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    succeeded: dict[str, str] = field(default_factory=dict)
    signals: Counter[tuple[str, str]] = field(default_factory=Counter)


class Change(Struct, frozen=True):
    """One durable commit: the job before and after it."""

    before: Before | None
    record: JobEntry
    decision: Decision

    @property
    def job_id(self) -> str:
        return self.record.job.job_id

    def place(self, step_id: str) -> Place:
        return self.record.protocol.plan.places[spec_id(step_id)]

    def spec(self, step: Step) -> StepSpec:
        return self.place(step.step_id).spec

    def steps(self) -> Iterator[tuple[Step | None, Step]]:
        """Yield every changed step as a pair: before (None if it had not started) and after."""
        for step in self.decision.steps:
            yield (self.before.steps.get(step.step_id) if self.before else None), step

    def ended(self) -> Iterator[tuple[Attempt, Step]]:
        """Yield every current attempt that ended in this commit, as it was before, with its step after."""
        for was, step in self.steps():
            same = was is not None and was.attempt.lease_id == step.attempt.lease_id
            if was and same and was.attempt.outcome is None and step.attempt.outcome is not None:
                yield was.attempt, step

    def has(self, *types: str) -> bool:
        return any(event.type in types for event in self.decision.events)


Rule = Callable[[Change, Known], Iterator[str]]


def versions_move_by_one(change: Change, _: Known) -> Iterator[str]:
    job, before = change.record.job, change.before
    was = before.job.version if before else 0
    if job.version != was + 1:
        yield f"version {was} became {job.version}"
    count = len(change.record.events)
    new = [event.seq for event in change.decision.events]
    if new != list(range(count - len(new) + 1, count + 1)) or job.event_seq != count:
        yield f"events are numbered {new}, the job says {job.event_seq} and has {count}"


def attempts_only_grow_and_keep_their_lease(change: Change, known: Known) -> Iterator[str]:
    told = {(ended.step_id, ended.attempt.attempt_no) for ended in change.decision.attempts}
    for was, step in change.steps():
        before_no, attempt = (was.attempt.attempt_no if was else 0), step.attempt
        if attempt.attempt_no < before_no:
            yield f"step {step.step_id} went from attempt {before_no} to {attempt.attempt_no}"
        if any((step.step_id, no) not in told for no in range(before_no + 1, attempt.attempt_no)):
            yield f"step {step.step_id} went from attempt {before_no} to {attempt.attempt_no}, and nobody knows how"
        where = (change.job_id, step.step_id, attempt.attempt_no)
        if known.attempts.setdefault(where, attempt.lease_id) != attempt.lease_id:
            yield f"attempt {where} has the leases {known.attempts[where]} and {attempt.lease_id}"
        if known.leases.setdefault(attempt.lease_id, where) != where:
            yield f"lease {attempt.lease_id} belongs to {known.leases[attempt.lease_id]} and {where}"


def history_is_only_added_to(change: Change, known: Known) -> Iterator[str]:
    for ended in change.decision.attempts:
        where = (change.job_id, ended.step_id, ended.attempt.attempt_no)
        if ended.attempt.outcome is None or ended.attempt.ended_at is None:
            yield f"attempt {where} is in the history and has not ended"
        if known.ended.setdefault(where, ended.attempt) != ended.attempt:
            yield f"attempt {where} of the history was changed"


def results_belong_to_the_current_lease(change: Change, known: Known) -> Iterator[str]:
    for was, step in change.steps():
        if step.status is not StepStatus.SUCCEEDED or step.kind not in DISPATCHED:
            continue
        if step.attempt.adopted_from is not None or (was and was.status is step.status):
            continue  # checked by `act_rules`
        if was is None or was.attempt.lease_id != step.attempt.lease_id:
            yield f"step {step.step_id} succeeded on another lease than was current"
        said_by, lease = step.result.get("lease"), step.attempt.lease_id
        if step.kind == "task" and said_by != lease:
            yield f"step {step.step_id} holds a result of lease {said_by}, current is {lease}"
        if was and was.status is StepStatus.FAILED_RETRY and was.attempt.outcome is AttemptOutcome.FAILED:
            yield f"step {step.step_id} had failed as reported, and a later success was applied"


def failures_have_a_cause(change: Change, known: Known) -> Iterator[str]:
    for was, step in change.ended():
        outcome = step.attempt.outcome
        if outcome is AttemptOutcome.HANDOVER_FAILED and was.lease_id not in known.refused:
            yield f"step {step.step_id} attempt {was.attempt_no} was charged with a hand-over that nobody refused"
        if step.status is StepStatus.FAILED_FINAL and step.kind in DISPATCHED:
            yield from _failed_for_good(change, known, step)
    job = change.record.job
    if job.status is JobStatus.CANCELLED and job.job_id not in known.cancels_asked:
        yield "the job was cancelled and nobody had asked"
    if job.status is JobStatus.FAILED_FINAL and change.before and change.before.job.live:
        if job.error is None:
            yield "the job failed without a reason"
        elif job.compensation is not None and job.runs and job.runs[-1].error == job.error:
            pass  # compensated after its end, and keeps its error
        elif job.error.code == "JOB_TIMEOUT" and not _timed_out_before(change):
            yield from _timed_out_early(job.deadline, job.updated_at)
    if job.live and _is_job_timeout(job.failure) and change.before and not _timed_out_before(change):
        yield from _timed_out_early(change.before.job.deadline, job.updated_at)  # compensation clears the deadline


def _timed_out_early(deadline: Instant | None, at: Instant) -> Iterator[str]:
    if deadline is None or deadline > at:
        yield "the job timed out before its deadline"


def _timed_out_before(change: Change) -> bool:
    """Return True if the timeout was decided earlier, and the job ends only now because steps were undone first."""
    return change.before is not None and _is_job_timeout(change.before.job.failure)


def _is_job_timeout(failure: Failure | None) -> bool:
    return failure is not None and failure.error.code == "JOB_TIMEOUT"


def _failed_for_good(change: Change, known: Known, step: Step) -> Iterator[str]:
    spec, attempt = change.spec(step), step.attempt
    if attempt.outcome is AttemptOutcome.JOB_TIMEOUT:
        return
    limit = spec.retry_policy.max_attempts or known.defaults.max_attempts
    if _may_be_repeated(spec, attempt) and step.tries < limit:
        yield f"step {step.step_id} failed for good after try {step.tries} of {limit} with {attempt.failure_class}"


def _may_be_repeated(spec: StepSpec, attempt: Attempt) -> bool:
    wanted, cause = spec.retry_policy.retry_on_classes, attempt.failure_class
    unsafe = spec.retry_safety == "NOT_SAFE_TO_RETRY" and not surely_stayed(attempt)
    return not unsafe and cause not in NEVER_AGAIN and (wanted is None or cause in wanted)


def surely_stayed(attempt: Attempt) -> bool:
    """Return True if the attempt surely never left: refused by the bus, withdrawn, or its call was not sent."""
    unsent = attempt.extra is not None and attempt.extra.get("sent") is False
    withdrawn = attempt.outcome is AttemptOutcome.WITHDRAWN and attempt.handed_over_at is None
    return attempt.outcome is AttemptOutcome.HANDOVER_FAILED or withdrawn or unsent


def deadlines_are_kept(change: Change, known: Known) -> Iterator[str]:
    """Yield attempts timed out before their deadline, or within one period after an absence of all engines."""
    for was, step in change.ended():
        spec, at = change.spec(step), step.attempt.ended_at or 0
        match step.attempt.outcome:
            case AttemptOutcome.ACK_TIMEOUT:
                deadline, started = was.ack_deadline, was.handed_over_at
                period = spec.ack_timeout_ms or known.defaults.ack_timeout_ms
            case AttemptOutcome.LEASE_EXPIRED:
                deadline, started = was.lease_expires_at, was.picked_up_at
                period = spec.lease_ms or known.defaults.lease_ms
                if step.kind != "task":
                    period = (spec.timeout_ms or 0) + LEASE_SLACK_MS
            case _:
                continue
        if deadline is None or started is None or at < deadline:
            yield f"step {step.step_id} timed out ({step.attempt.outcome}) before its time"
            continue
        for away in known.absences:
            if started < away.until and deadline > away.since and away.until <= at < away.until + period:
                late = at - away.until
                yield f"step {step.step_id} {step.attempt.outcome} {late} ms after an absence, its period is {period}"


def a_cancel_lets_services_finish(change: Change, _: Known) -> Iterator[str]:
    """Yield steps that a cancel request ended while they were, or may have been, with a service."""
    ending = change.before is not None and change.before.job.stopping is not None
    if not change.has("CANCEL_REQUESTED") or ending:
        return
    for was, step in change.steps():
        out = was is not None and (was.status in WITH_SERVICE or was.attempt.claimed_at is not None)
        if out and step.kind in DISPATCHED and step.status in TERMINAL_STEP:
            yield f"step {step.step_id} was with its service and was ended by a cancel"


def a_success_after_a_timeout_counts(change: Change, _: Known) -> Iterator[str]:
    """Yield a success of the current, timed-out attempt that was not applied while its retry waited."""
    for event in change.decision.events:
        was = change.before.steps.get(event.step_id or "") if change.before else None
        success = event.type == "CALLBACK_RESULT" and "error_code" not in event.data
        if was is None or not success or event.data["disposition"] == "APPLIED":
            continue
        current = was.status is StepStatus.FAILED_RETRY and was.attempt.lease_id == event.data["lease_id"]
        if current and was.attempt.outcome in TIMED_OUT:
            yield f"the success of step {was.step_id} was {event.data['disposition']} while its retry waited"


def retries_wait_their_backoff(change: Change, _: Known) -> Iterator[str]:
    for _was, step in change.ended():
        if step.status is not StepStatus.FAILED_RETRY:
            continue
        attempt, wait = step.attempt, (step.retry_at or 0) - (step.attempt.ended_at or 0)
        if not _may_be_repeated(change.spec(step), attempt):
            yield f"step {step.step_id} is to be tried again after {attempt.outcome} with {attempt.failure_class}"
        if attempt.failure_class is FailureClass.RATE_LIMITED and step.kind == "task" and wait < RETRY_AFTER_MS:
            yield f"step {step.step_id} waits {wait} ms, and was asked to wait {RETRY_AFTER_MS}"
    asked = change.has("HANDOVER_RETRY_REQUESTED")
    for was, step in change.steps():
        if was is None or (was.run_no, was.visit, was.tries + 1) != (step.run_no, step.visit, step.tries):
            continue
        if was.status is StepStatus.FAILED_RETRY and step.status is StepStatus.DISPATCHING and not asked:
            due = was.retry_at
            if due is None or step.attempt.created_at < due:
                yield f"step {step.step_id} was tried again before {due}"


def the_outbox_follows_its_steps(change: Change, _: Known) -> Iterator[str]:
    record = change.record
    pending = [row for row in record.outbox.values() if row.status is OutboxStatus.PENDING]
    if pending and not record.job.live:
        yield f"the job has ended and {pending[0].outbox_id} is PENDING"
    if len({row.step_id for row in pending}) != len(pending):
        yield f"a step has two PENDING rows: {[row.outbox_id for row in pending]}"
    for row in pending:
        if record.steps[row.step_id].attempt.lease_id != row.lease_id:
            yield f"the PENDING row {row.outbox_id} is for another lease than its step's"
    for row in change.decision.outbox:
        was = change.before.rows.get(row.outbox_id) if change.before else None
        if row.status not in ROW_ARROWS[was.status if was else None] and was is not None:
            yield f"outbox row {row.outbox_id} went from {was.status} to {row.status}"


def live_jobs_have_a_clock(change: Change, known: Known) -> Iterator[str]:
    record, job = change.record, change.record.job
    if change.job_id in known.drifted:
        return  # the simulation took its clock or row, which the sweeper repairs
    waits = any(row.status is OutboxStatus.PENDING for row in record.outbox.values())
    for step_id in job.active if job.live else ():
        for what, clock in clocks(record.steps[step_id], paused=job.paused is not None):
            if job.due_at is None or job.due_at > max(clock, job.updated_at):
                yield f"{what} of step {step_id} is at {clock} and the job is due at {job.due_at}"
    if job.live and job.due_at is None and not waits:
        yield "nothing will ever look at this job again"
    if not job.live and job.due_at is not None:
        yield "the job has ended and is still due"


def clocks(step: Step, *, paused: bool) -> Iterator[tuple[str, Instant]]:
    """Return a step's deadlines and timers. A pause stops those of what comes next, not of what is with a service."""
    match step.status:
        case StepStatus.INITIATED:
            times = {"the ACK deadline": step.attempt.ack_deadline}
        case StepStatus.PROCESSING:
            times = {"the lease": step.attempt.lease_expires_at, "the hard deadline": step.attempt.hard_deadline}
        case StepStatus.FAILED_RETRY if not paused:
            times = {"the retry": step.retry_at}
        case StepStatus.WAITING | StepStatus.AWAITING_APPROVAL if not paused:
            times = {"the timer": step.wake_at}
        case _:
            times = {}
    return ((what, at) for what, at in times.items() if at is not None)


def counters_equal_the_truth(change: Change, known: Known) -> Iterator[str]:
    share = _share(change.record, drifted=change.job_id in known.drifted)
    known.totals.subtract(known.share.get(change.job_id, {}))
    known.totals.update(share)
    known.share[change.job_id] = share
    truth = {name: n for name, n in known.totals.items() if n}
    if truth != known.ledger_totals:
        yield f"the ledger counts {known.ledger_totals}, the jobs are {truth}"
    limits = {"unacked": known.max_unacked, "jobs/tenant": known.tenant_inflight}
    over = {name: n for name, n in truth.items() if n > limits.get(name.rpartition("/")[0], n)}
    if over:
        yield f"there are more than may be: {over}"


def _share(record: JobEntry, *, drifted: bool) -> dict[str, int]:
    """Return what one job adds to the counters, computed from all its steps and rows."""
    job = record.job
    if job.status in TERMINAL_JOB:
        return {}
    share = Counter(
        [
            "jobs",
            f"jobs/tenant/{job.command.tenant_id}",
            f"jobs/mode/{job.routing.resolved_mode.value}",
            f"jobs/protocol/{record.protocol.protocol_id}",
        ]
    )
    for step in record.steps.values():
        claimed = step.status is StepStatus.DISPATCHING and step.attempt.claimed_at is not None
        if claimed or step.status is StepStatus.INITIATED:
            share[f"unacked/{step.service}"] += 1
    free_to_go = _dispatching(record) if drifted else _in_the_outbox(record)
    share.update(f"pending/{service}/{lane}" for service, lane in free_to_go if service not in ENGINE_SERVICES)
    return dict(share)


def _in_the_outbox(record: JobEntry) -> Iterator[tuple[str, int]]:
    for row in record.outbox.values():
        if row.status is OutboxStatus.PENDING and row.claimed_at is None and row.next_attempt_at is None:
            yield row.service, row.lane


def _dispatching(record: JobEntry) -> Iterator[tuple[str, int]]:
    """Yield the same for jobs that lost a row: counters follow the steps, as the repair does."""
    for step in record.steps.values():
        if step.status is StepStatus.DISPATCHING and step.attempt.claimed_at is None and not step.attempt.held:
            yield step.service, step.attempt.routing.lane


def what_runs_is_active(change: Change, _: Known) -> Iterator[str]:
    record, job = change.record, change.record.job
    running = [step for step in record.steps.values() if step.status not in TERMINAL_STEP]
    names = {step.step_id for step in running if step.kind not in CONTAINERS}
    if set(job.active) != names or len(job.active) != len(names):
        yield f"active is {job.active}, running is {sorted(names)}"
    if job.status in TERMINAL_JOB and running:
        yield f"the job is {job.status} while {[step.step_id for step in running]} runs"


def a_key_makes_one_job(change: Change, known: Known) -> Iterator[str]:
    if change.before is None:
        command = change.record.job.command
        key = (command.tenant_id, command.idempotency_key or command.idempotency_hash)
        if known.keys.setdefault(key, change.job_id) != change.job_id:
            yield f"{key} made the jobs {known.keys[key]} and {change.job_id}"


def fenced_successes_are_kept(change: Change, known: Known) -> Iterator[str]:
    for event in change.decision.events:
        if event.type == "CALLBACK_RESULT" and event.data["disposition"] == "STALE":
            failed = "error_code" in event.data
            kept = any(q.lease_id == event.data["lease_id"] for q in change.record.quarantined.values())
            if not failed and not kept:
                yield f"the success of fenced lease {event.data['lease_id']} was not kept"


RULES: tuple[Rule, ...] = (
    versions_move_by_one,
    attempts_only_grow_and_keep_their_lease,
    history_is_only_added_to,
    what_runs_is_active,
    results_belong_to_the_current_lease,
    failures_have_a_cause,
    deadlines_are_kept,
    a_cancel_lets_services_finish,
    a_success_after_a_timeout_counts,
    retries_wait_their_backoff,
    the_outbox_follows_its_steps,
    live_jobs_have_a_clock,
    counters_equal_the_truth,
    a_key_makes_one_job,
    fenced_successes_are_kept,
)
