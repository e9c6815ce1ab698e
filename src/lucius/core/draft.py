"""The working copy of one decision: collects changes, refuses illegal transitions, derives what can be derived."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decision import Decision, EndedAttempt, Env, JobView, Reply
from lucius.core.inputs import Cap
from lucius.core.model import (
    TERMINAL_STEP,
    Blocked,
    BlockedReason,
    Event,
    Instant,
    Job,
    JobStatus,
    OutboxRow,
    OutboxStatus,
    Quarantined,
    Step,
    StepStatus,
)
from lucius.core.protocol import Protocol
from lucius.core.routing import topic
from lucius.core.transitions import JOB_ARROWS, STEP_ARROWS


class IllegalTransition(AssertionError):
    """A rule of the core is wrong. Never the caller's fault."""


class Draft:
    job: Job  # both are there once a job is: from the start, or after `create`
    protocol: Protocol

    def __init__(self, view: JobView | None, now: Instant, env: Env) -> None:
        self.now = now
        self.env = env
        self.before = view
        self.exists = view is not None
        self.steps: dict[str, Step] = {}
        self.caps: tuple[Cap, ...] = ()
        self._seq = 0
        self._changed: dict[str, Step] = {}
        self._ended: list[EndedAttempt] = []
        self._rows: dict[str, OutboxRow] = {}
        self._events: list[Event] = []
        self._quarantined: list[Quarantined] = []
        self._moved = False
        if view is not None:
            self.job, self.protocol = view.job, view.protocol
            self.steps = dict(view.steps)
            self._seq = view.job.event_seq

    @property
    def cancelling(self) -> bool:
        return self.job.status is JobStatus.CANCELLING

    def active_steps(self) -> list[Step]:
        return [self.steps[step_id] for step_id in self.job.active]

    def create(self, job: Job, protocol: Protocol) -> None:
        self.job, self.protocol = job, protocol
        self.exists = self._moved = True

    def change_job(self, **fields: Any) -> None:
        status = fields.get("status")
        if status is not None and (self.job.status, status) not in JOB_ARROWS:
            raise IllegalTransition(f"job {self.job.status} -> {status}")
        self.job, self._moved = replace(self.job, **fields), True

    def start_step(self, step: Step) -> None:
        """A step's first attempt. Until now it was PENDING and had no record."""
        if step.step_id in self.steps:
            raise IllegalTransition(f"step {step.step_id} has started already")
        self._put(step)
        self.job = replace(
            self.job,
            active=(*self.job.active, step.step_id),
            current_step_id=step.step_id,
            attempts_total=self.job.attempts_total + 1,
        )

    def change_step(self, step: Step, **fields: Any) -> Step:
        status = fields.get("status", step.status)
        if status is not step.status or status is StepStatus.DISPATCHING:
            self._check_arrow(step, status, fields)
        changed = replace(step, updated_at=self.now, **fields)
        self._put(changed)
        if changed.status in TERMINAL_STEP:
            self._ended.append(EndedAttempt(step.step_id, changed.attempt))
            self.job = replace(self.job, active=tuple(s for s in self.job.active if s != step.step_id))
        return changed

    def _check_arrow(self, step: Step, status: StepStatus, fields: dict[str, Any]) -> None:
        same_attempt = "attempt" not in fields or fields["attempt"].attempt_no == step.attempt.attempt_no
        if status is step.status and same_attempt:
            return
        if (step.status, status) not in STEP_ARROWS:
            raise IllegalTransition(f"step {step.step_id} {step.status} -> {status}")

    def supersede(self, step: Step) -> None:
        """Close the book on the current attempt: a new one takes its place."""
        self._ended.append(EndedAttempt(step.step_id, step.attempt))
        self.job = replace(self.job, attempts_total=self.job.attempts_total + 1)

    def _put(self, step: Step) -> None:
        self.steps[step.step_id] = self._changed[step.step_id] = step
        self._moved = True

    def put_row(self, step: Step, status: OutboxStatus, next_attempt_at: Instant | None = None) -> None:
        attempt, routing = step.attempt, step.attempt.routing
        self._rows[attempt.outbox_id] = OutboxRow(
            outbox_id=attempt.outbox_id,
            job_id=step.job_id,
            tenant_id=self.job.tenant_id,
            step_id=step.step_id,
            attempt_no=attempt.attempt_no,
            lease_id=attempt.lease_id,
            service=step.service,
            topic=topic(self.env.defaults.topic_layout, routing.resolved_mode, routing.lane),
            lane=routing.lane,
            status=status,
            created_at=attempt.created_at,
            next_attempt_at=next_attempt_at,
            claimed_at=attempt.claimed_at if status is OutboxStatus.PENDING else None,
            settled_at=None if status is OutboxStatus.PENDING else self.now,
        )

    def emit(self, type_: str, step: Step | None = None, attempt_no: int | None = None, **data: Any) -> None:
        self._seq += 1
        step_id = None
        if step is not None:
            step_id = step.step_id
            attempt_no = step.attempt.attempt_no if attempt_no is None else attempt_no
        self._events.append(Event(self.job.job_id, self._seq, type_, self.now, step_id, attempt_no, data))

    def quarantine(self, item: Quarantined) -> None:
        self._quarantined.append(item)

    def finish(self, replies: tuple[Reply, ...]) -> Decision:
        changes = self._moved or bool(self._events) or bool(self._quarantined)
        job = self.job
        if self._moved:
            job = replace(
                job,
                version=job.version + 1,
                event_seq=self._seq,
                updated_at=self.now,
                due_at=due_at(job, self.steps),
                blocked=blocked(job, self.steps),
            )
        elif changes:
            job = replace(job, version=job.version + 1, event_seq=self._seq)
        return Decision(
            job=job,
            replies=replies,
            protocol=self.protocol,
            creates=self.before is None,
            steps=tuple(self._changed.values()),
            attempts=tuple(self._ended),
            outbox=tuple(self._rows.values()),
            events=tuple(self._events),
            quarantined=tuple(self._quarantined),
            counters=self._counter_moves() if self._moved else {},
            caps=self.caps,
            changes=changes,
        )

    def _counter_moves(self) -> dict[str, int]:
        """The difference that `counted` would show: whether the job is live, and the changed steps."""
        was = self.before
        moves = {}
        if was is None or was.job.live != self.job.live:
            by = 1 if self.job.live else -1
            moves = dict.fromkeys(job_counters(self.job), by)
        for step_id, step in self._changed.items():
            before = was.steps.get(step_id) if was else None
            by = is_unacked(step) - (before is not None and is_unacked(before))
            if by:
                counter = unacked_counter(step.service)
                moves[counter] = moves.get(counter, 0) + by
        return {counter: by for counter, by in moves.items() if by}


def is_unacked(step: Step) -> bool:
    """Handed over, or about to be, and not picked up: what `LUCIUS_MAX_UNACKED` caps."""
    return step.status is StepStatus.INITIATED or (
        step.status is StepStatus.DISPATCHING and step.attempt.claimed_at is not None
    )


def counted(job: Job, active_steps: Any) -> dict[str, int]:
    """What a job adds to the in-flight counters as it stands."""
    if not job.live:
        return {}
    counts = dict.fromkeys(job_counters(job), 1)
    for step in active_steps:
        if is_unacked(step):
            counter = unacked_counter(step.service)
            counts[counter] = counts.get(counter, 0) + 1
    return counts


def job_counters(job: Job) -> tuple[str, ...]:
    return (
        "jobs",
        f"jobs/tenant/{job.tenant_id}",
        f"jobs/mode/{job.routing.resolved_mode}",
        f"jobs/protocol/{job.protocol_id}",
    )


def unacked_counter(service: str) -> str:
    return f"unacked/{service}"


def step_clock(step: Step) -> Instant | None:
    """The instant at which this step must be looked at, if nothing happens before."""
    attempt = step.attempt
    match step.status:
        case StepStatus.INITIATED:
            return attempt.ack_deadline
        case StepStatus.PROCESSING:
            return min(t for t in (attempt.lease_expires_at, attempt.hard_deadline) if t is not None)
        case StepStatus.FAILED_RETRY:
            return step.retry_at
        case _:
            return None


def due_at(job: Job, steps: dict[str, Step]) -> Instant | None:
    if not job.live:
        return None
    if job.status is JobStatus.QUEUED:
        return job.created_at
    clocks = [job.deadline, *(step_clock(steps[step_id]) for step_id in job.active)]
    return min((clock for clock in clocks if clock is not None), default=None)


def blocked(job: Job, steps: dict[str, Step]) -> Blocked | None:
    if not job.live:
        return None
    if not job.active:
        return Blocked(BlockedReason.ENGINE, job.created_at)
    step = steps[job.active[0]]
    attempt = step.attempt
    match step.status:
        case StepStatus.INITIATED:
            reason, since = BlockedReason.ACK, attempt.handed_over_at
        case StepStatus.PROCESSING:
            reason, since = BlockedReason.RESULT, attempt.picked_up_at
        case StepStatus.FAILED_RETRY:
            reason, since = BlockedReason.RETRY, attempt.ended_at
        case _:
            reason, since = BlockedReason.HANDOVER, attempt.created_at
    return Blocked(reason, since or step.updated_at, step_clock(step), step.step_id)
