"""Working copy of one decision: collects changes, refuses illegal transitions, derives statuses and deadlines."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from lucius.core.decide.derived_state import blocked, current_step_id, due_at, is_result_valid, live_status
from lucius.core.decide.transitions import JOB_ARROWS, STEP_ARROWS
from lucius.core.model.counters import job_counters, step_counter
from lucius.core.model.decision import Decision, EndedAttempt, Env, JobSnapshot, MissingSteps, Reply
from lucius.core.model.event_chain import hash_fields, hash_of, seal_attempt
from lucius.core.model.inputs import Cap
from lucius.core.model.records import NEVER, Event, Instant, Job, OutboxRow, Quarantined, ReviewItem, Scope, Step, Token
from lucius.core.model.routing import topic
from lucius.core.model.statuses import TERMINAL_STEP, JobStatus, OutboxStatus, StepStatus
from lucius.core.protocol.definition import CONTAINERS, ProtocolDefinition, StepSpec, spec_id


class IllegalTransition(AssertionError):
    """Raised for a transition that no table allows: a bug in the core, never the caller's fault."""


MAX_DECISION_ROWS = 40
"""Maximum number of rows that one decision may touch. Work that does not fit continues in the next decision."""
_ROWS_PER_TOKEN = 9
_ROWS_PER_JOB_END = 6


class Changeset:
    """Collects the changes of one decision, and gives access to the job as changed so far."""

    job: Job  # set from the start, or by `create`
    protocol: ProtocolDefinition

    def __init__(self, view: JobSnapshot | None, now: Instant, env: Env) -> None:
        self.now = now
        self.env = env
        self.before = view
        self.exists = view is not None
        self.steps: dict[str, Step] = {}
        self.caps: tuple[Cap, ...] = ()
        self.handed_over: list[OutboxRow] = []
        self.ready: list[Token] = []
        self.scopes: dict[str, Scope] = {}
        self._loaded: frozenset[str] | None = None
        self._seq = 0
        self._hash = ""
        self._changed: dict[str, Step] = {}
        self._ended: list[EndedAttempt] = []
        self._rows: dict[str, OutboxRow] = {}
        self._events: list[Event] = []
        self._quarantined: list[Quarantined] = []
        self._reviews: dict[str, ReviewItem] = {}
        self._records_changed = False
        if view is not None:
            self.job, self.protocol = view.job, view.protocol
            self.steps = dict(view.steps)
            self._loaded = view.asked
            self._seq, self._hash = view.job.event_seq, view.job.event_hash
            self.ready.extend(view.job.ready)
            self.scopes = {scope.container: scope for scope in view.job.scopes}

    # Queries

    @property
    def cancelling(self) -> bool:
        """True if the job is being cancelled and is not in the compensation that may follow."""
        return self.job.status is JobStatus.CANCELLING and self.job.compensation is None

    def is_halted(self) -> bool:
        """Return whether no step may start: the job is paused, or its steps are about to be stopped."""
        undoing = self.job.compensation
        if self.job.paused is not None or self.job.stopping is not None or self.cancelling:
            return True
        return undoing is not None and not undoing.cleared

    def can_start_tokens(self) -> bool:
        """Return whether ready tokens may start in this decision."""
        job = self.job
        if not job.live or job.paused is not None or job.stopping is not None:
            return False
        if job.status is JobStatus.QUEUED or self.cancelling:
            return False
        return self.has_room(_ROWS_PER_TOKEN)

    def has_room(self, rows: int = _ROWS_PER_JOB_END) -> bool:
        """Return whether this decision may touch that many more rows."""
        touched = len(self._changed) + len(self._ended) + len(self._rows) + len(self._events) + len(self._reviews)
        return touched + rows < MAX_DECISION_ROWS

    def active_steps(self) -> list[Step]:
        return [self.steps[step_id] for step_id in self.job.active]

    def has(self, step_id: str) -> bool:
        """Return whether the state of a step is known, including that it never started."""
        return self._loaded is None or step_id in self.steps or step_id in self._loaded

    def require(self, step_ids: Iterable[str]) -> None:
        """Require that all of these steps are loaded. Raises MissingSteps with all that are not."""
        if self._loaded is None:
            return
        missing = frozenset(step_id for step_id in step_ids if not self.has(step_id))
        if missing:
            raise MissingSteps(missing)

    def find(self, step_id: str) -> Step | None:
        """Return the step's record from any run; None if it never started. Raises MissingSteps."""
        self.require((step_id,))
        return self.steps.get(step_id)

    def current(self, step_id: str) -> Step | None:
        """Return the step if its record is valid in this run; None if this run has yet to repeat it."""
        step = self.find(step_id)
        return step if step is not None and is_result_valid(self.job, step) else None

    def spec(self, step: Step) -> StepSpec:
        return self.protocol.plan.places[spec_id(step.step_id)].spec

    # Changes

    def create(self, job: Job, protocol: ProtocolDefinition) -> None:
        self.job, self.protocol = job, protocol
        self.exists = self._records_changed = True

    def change_job(self, **fields: Any) -> None:
        status = fields.get("status")
        if status is not None and (self.job.status, status) not in JOB_ARROWS:
            raise IllegalTransition(f"job {self.job.status} -> {status}")
        self.job, self._records_changed = replace(self.job, **fields), True

    def refresh_status(self) -> None:
        """Derive the status of a live job from its steps."""
        status = live_status(self.job, self.steps, bool(self.ready))
        if status is JobStatus.WAITING_APPROVAL and self.job.status is not status:
            self._set_status(JobStatus.IN_PROGRESS)  # the approval may be the first step
        self._set_status(status)

    def _set_status(self, status: JobStatus) -> None:
        if status is not self.job.status:
            self.change_job(status=status)

    def start_step(self, step: Step) -> None:
        """Start a step: for the first time, in another visit, or in another run. Raises IllegalTransition."""
        old = self.steps.get(step.step_id)
        if old is not None and (old.run_no, old.visit, old.attempt.attempt_no) >= (
            step.run_no,
            step.visit,
            step.attempt.attempt_no,
        ):
            raise IllegalTransition(f"step {step.step_id} has started already")
        before = old.status if old is not None else StepStatus.PENDING
        if (before, step.status) not in STEP_ARROWS or (old is not None and before not in TERMINAL_STEP):
            raise IllegalTransition(f"step {step.step_id} {before} -> {step.status}")
        self.put_step(step)
        active = self.job.active
        if step.status in TERMINAL_STEP:
            self._ended.append(EndedAttempt(step.step_id, step.attempt))
        elif step.kind not in CONTAINERS:
            active = (*active, step.step_id)
        self.job = replace(
            self.job,
            active=active,
            current_step_id=step.step_id,
            attempts_total=self.job.attempts_total + 1,
            under_way=self.job.under_way or step.status is not StepStatus.DISPATCHING,
        )

    def change_step(self, step: Step, **fields: Any) -> Step:
        status = fields.get("status", step.status)
        if status is not step.status or status is StepStatus.DISPATCHING:
            self._check_arrow(step, status, fields)
        changed = replace(step, updated_at=self.now, **fields)
        self.put_step(changed)
        if changed.status in TERMINAL_STEP and step.status not in TERMINAL_STEP:
            self._ended.append(EndedAttempt(step.step_id, changed.attempt))
            self.job = replace(self.job, active=tuple(s for s in self.job.active if s != step.step_id))
        return changed

    def _check_arrow(self, step: Step, status: StepStatus, fields: dict[str, Any]) -> None:
        same_attempt = "attempt" not in fields or fields["attempt"].attempt_no == step.attempt.attempt_no
        if status is step.status and same_attempt:
            return
        if (step.status, status) not in STEP_ARROWS or step.status in TERMINAL_STEP:
            raise IllegalTransition(f"step {step.step_id} {step.status} -> {status}")

    def supersede(self, step: Step) -> None:
        """Record the current attempt as ended, since a new one replaces it."""
        self._ended.append(EndedAttempt(step.step_id, step.attempt))
        self.job = replace(self.job, attempts_total=self.job.attempts_total + 1)

    def put_step(self, step: Step) -> None:
        self.steps[step.step_id] = self._changed[step.step_id] = step
        self._records_changed = True

    def new_rows(self) -> list[OutboxRow]:
        """Return the rows that this decision creates and that can be handed over; no service can have them yet."""
        return [row for row in self._rows.values() if row.is_ready and not self._existed_before(row)]

    def _existed_before(self, row: OutboxRow) -> bool:
        before = self.before.steps.get(row.step_id) if self.before is not None else None
        return before is not None and before.attempt.outbox_id == row.outbox_id

    def put_row(self, step: Step, status: OutboxStatus, next_attempt_at: Instant | None = None) -> None:
        attempt, routing = step.attempt, step.attempt.routing
        if status is OutboxStatus.PENDING and attempt.held:
            next_attempt_at = NEVER  # nothing is handed over until resume
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
        fields = (self.job.job_id, self._seq, type_, self.now, step_id, attempt_no, data)
        self._hash = hash_fields(self._hash, *fields)
        self._events.append(Event(*fields, hash=self._hash))

    def put_webhook_row(self, row: OutboxRow) -> None:
        self._rows[row.outbox_id] = row
        self._records_changed = True

    def quarantine(self, item: Quarantined) -> None:
        self._quarantined.append(item)

    def put_review(self, item: ReviewItem) -> None:
        self._reviews[item.review_id] = item

    # Result

    @property
    def has_changes(self) -> bool:
        return self._records_changed or bool(self._events) or bool(self._quarantined) or bool(self._reviews)

    @property
    def changed_steps(self) -> tuple[Step, ...]:
        return tuple(self._changed.values())

    def finish(self, replies: tuple[Reply, ...]) -> Decision:
        self._store_tokens()
        self._seal_attempts()
        changes, job = self.has_changes, self.job
        if self._records_changed:
            self.refresh_status()
            job = replace(
                self.job,
                version=job.version + 1,
                event_seq=self._seq,
                event_hash=self._hash,
                updated_at=self.now,
                current_step_id=current_step_id(self.job, self.steps),
                due_at=due_at(self.job, self.steps, self.now),
                blocked=blocked(self.job, self.steps),
            )
        elif changes:
            job = replace(job, version=job.version + 1, event_seq=self._seq, event_hash=self._hash)
        return Decision(
            job=job,
            replies=replies,
            protocol=self.protocol,
            creates=self.before is None,
            steps=self.changed_steps,
            attempts=tuple(self._ended),
            outbox=tuple(self._rows.values()),
            events=tuple(self._events),
            quarantined=tuple(self._quarantined),
            reviews=tuple(self._reviews.values()),
            counters=self._counter_changes() if self._records_changed else {},
            caps=self.caps,
            handed_over=tuple(self.handed_over),
            changes=changes,
        )

    def _seal_attempts(self) -> None:
        """Add digests of the ended attempts to the last event, so that the hash chain covers them too."""
        if not self._ended:
            return
        if not self._events:
            self.emit("ATTEMPT_ENDED")
        earlier = self.before.job.event_hash if self.before is not None else ""
        before = self._events[-2].hash if len(self._events) > 1 else earlier
        last = replace(self._events[-1], attempts=dict(map(seal_attempt, self._ended)))
        self._hash = hash_of(before, last)
        self._events[-1] = replace(last, hash=self._hash)

    def _store_tokens(self) -> None:
        ready, scopes = tuple(self.ready), tuple(self.scopes.values())
        if (ready or self.job.ready or scopes or self.job.scopes) and (ready, scopes) != (
            self.job.ready,
            self.job.scopes,
        ):
            self.job, self._records_changed = replace(self.job, ready=ready, scopes=scopes), True

    def _counter_changes(self) -> dict[str, int]:
        """Return the differences of `counted` before and after the decision."""
        was = self.before
        by = self.job.live - (was is not None and was.job.live)
        differences = dict.fromkeys(job_counters(self.job), by)
        for step_id, step in self._changed.items():
            before = was.steps.get(step_id) if was else None
            left = step_counter(before, self.job.tenant_id) if before is not None else None
            joined = step_counter(step, self.job.tenant_id)
            if left == joined:
                continue
            if left is not None:
                differences[left] = differences.get(left, 0) - 1
            if joined is not None:
                differences[joined] = differences.get(joined, 0) + 1
        return {counter: by for counter, by in differences.items() if by}
