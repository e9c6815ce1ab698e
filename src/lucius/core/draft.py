"""The working copy of one decision: collects changes, refuses illegal transitions, derives what can be derived."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from lucius.core.chain import hash_of, link, seal
from lucius.core.counters import job_counters, step_counter
from lucius.core.decision import Decision, EndedAttempt, Env, JobView, MissingSteps, Reply
from lucius.core.derived import blocked, counts, current_step_id, due_at, live_status
from lucius.core.inputs import Cap
from lucius.core.model import (
    NEVER,
    TERMINAL_STEP,
    Event,
    Instant,
    Job,
    JobStatus,
    OutboxRow,
    OutboxStatus,
    Quarantined,
    ReviewItem,
    Scope,
    Step,
    StepStatus,
    Token,
)
from lucius.core.protocol import CONTAINERS, Protocol, StepSpec, spec_id
from lucius.core.routing import topic
from lucius.core.transitions import JOB_ARROWS, STEP_ARROWS


class IllegalTransition(AssertionError):
    """A rule of the core is wrong. Never the caller's fault."""


MAX_ROWS = 40
"""What one decision may touch. What does not fit goes on in the next one, at once."""
_ROWS_OF_A_TURN = 9
_ROWS_OF_AN_END = 6


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
        self.given: list[OutboxRow] = []
        self.ready: list[Token] = []
        self.scopes: dict[str, Scope] = {}
        self._asked: frozenset[str] | None = None
        self._seq = 0
        self._hash = ""
        self._changed: dict[str, Step] = {}
        self._ended: list[EndedAttempt] = []
        self._rows: dict[str, OutboxRow] = {}
        self._events: list[Event] = []
        self._quarantined: list[Quarantined] = []
        self._reviews: dict[str, ReviewItem] = {}
        self._moved = False
        if view is not None:
            self.job, self.protocol = view.job, view.protocol
            self.steps = dict(view.steps)
            self._asked = view.asked
            self._seq, self._hash = view.job.event_seq, view.job.event_hash
            self.ready.extend(view.job.ready)
            self.scopes = {scope.container: scope for scope in view.job.scopes}

    # What is known

    @property
    def cancelling(self) -> bool:
        """Being cancelled, and not (any more) undoing what was done."""
        return self.job.status is JobStatus.CANCELLING and self.job.compensation is None

    def stands_still(self) -> bool:
        """Nothing of it is begun: it is paused, or all that no service has is about to be stopped."""
        undoing = self.job.compensation
        if self.job.paused is not None or self.job.stopping is not None or self.cancelling:
            return True
        return undoing is not None and not undoing.cleared

    def may_go_on(self) -> bool:
        """Whether what is ready may start in this decision."""
        job = self.job
        if not job.live or job.paused is not None or job.stopping is not None:
            return False
        if job.status is JobStatus.QUEUED or self.cancelling:
            return False
        return self.has_room(_ROWS_OF_A_TURN)

    def has_room(self, rows: int = _ROWS_OF_AN_END) -> bool:
        """Whether this decision may touch so many rows more."""
        touched = len(self._changed) + len(self._ended) + len(self._rows) + len(self._events) + len(self._reviews)
        return touched + rows < MAX_ROWS

    def active_steps(self) -> list[Step]:
        return [self.steps[step_id] for step_id in self.job.active]

    def has(self, step_id: str) -> bool:
        """Whether it is known what became of a step; that it never started counts too."""
        return self._asked is None or step_id in self.steps or step_id in self._asked

    def require(self, step_ids: Iterable[str]) -> None:
        """Have all of these at hand, so that what is missing is loaded at once and not one by one."""
        if self._asked is None:
            return
        missing = frozenset(step_id for step_id in step_ids if not self.has(step_id))
        if missing:
            raise MissingSteps(missing)

    def find(self, step_id: str) -> Step | None:
        """The step's record, of whichever run; None if it never started."""
        self.require((step_id,))
        return self.steps.get(step_id)

    def current(self, step_id: str) -> Step | None:
        """The step as it stands in this run: what an earlier run did to be redone by this one does not count."""
        step = self.find(step_id)
        return step if step is not None and counts(self.job, step) else None

    def spec(self, step: Step) -> StepSpec:
        return self.protocol.plan.places[spec_id(step.step_id)].spec

    # What changes

    def create(self, job: Job, protocol: Protocol) -> None:
        self.job, self.protocol = job, protocol
        self.exists = self._moved = True

    def change_job(self, **fields: Any) -> None:
        status = fields.get("status")
        if status is not None and (self.job.status, status) not in JOB_ARROWS:
            raise IllegalTransition(f"job {self.job.status} -> {status}")
        self.job, self._moved = replace(self.job, **fields), True

    def refresh_status(self) -> None:
        """The state of a live job follows from its steps."""
        status = live_status(self.job, self.steps, bool(self.ready))
        if status is JobStatus.WAITING_APPROVAL and self.job.status is not status:
            self._pass_to(JobStatus.IN_PROGRESS)  # asking somebody is the first thing that it does
        self._pass_to(status)

    def _pass_to(self, status: JobStatus) -> None:
        if status is not self.job.status:
            self.change_job(status=status)

    def start_step(self, step: Step) -> None:
        """A step's turn has come: for the first time, in another visit, or in another run."""
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
        """Close the book on the current attempt: a new one takes its place."""
        self._ended.append(EndedAttempt(step.step_id, step.attempt))
        self.job = replace(self.job, attempts_total=self.job.attempts_total + 1)

    def put_step(self, step: Step) -> None:
        self.steps[step.step_id] = self._changed[step.step_id] = step
        self._moved = True

    def new_rows(self) -> list[OutboxRow]:
        """What this decision asks services for, and nobody can have been given yet."""
        return [row for row in self._rows.values() if row.is_ready and not self._had(row)]

    def _had(self, row: OutboxRow) -> bool:
        before = self.before.steps.get(row.step_id) if self.before is not None else None
        return before is not None and before.attempt.outbox_id == row.outbox_id

    def put_row(self, step: Step, status: OutboxStatus, next_attempt_at: Instant | None = None) -> None:
        attempt, routing = step.attempt, step.attempt.routing
        if status is OutboxStatus.PENDING and attempt.held:
            next_attempt_at = NEVER  # nothing new goes out until resume
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
        said = (self.job.job_id, self._seq, type_, self.now, step_id, attempt_no, data)
        self._hash = link(self._hash, *said)
        self._events.append(Event(*said, hash=self._hash))

    def put_notice(self, row: OutboxRow) -> None:
        self._rows[row.outbox_id] = row
        self._moved = True

    def quarantine(self, item: Quarantined) -> None:
        self._quarantined.append(item)

    def put_review(self, item: ReviewItem) -> None:
        self._reviews[item.review_id] = item

    # The outcome

    @property
    def has_changes(self) -> bool:
        return self._moved or bool(self._events) or bool(self._quarantined) or bool(self._reviews)

    def finish(self, replies: tuple[Reply, ...]) -> Decision:
        self._keep_flow()
        self._seal_attempts()
        changes, job = self.has_changes, self.job
        if self._moved:
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
            steps=tuple(self._changed.values()),
            attempts=tuple(self._ended),
            outbox=tuple(self._rows.values()),
            events=tuple(self._events),
            quarantined=tuple(self._quarantined),
            reviews=tuple(self._reviews.values()),
            counters=self._counter_moves() if self._moved else {},
            caps=self.caps,
            given=tuple(self.given),
            changes=changes,
        )

    def _seal_attempts(self) -> None:
        """The last event vouches for the attempts that ended, so that the history covers them too."""
        if not self._ended:
            return
        if not self._events:
            self.emit("ATTEMPT_ENDED")
        earlier = self.before.job.event_hash if self.before is not None else ""
        before = self._events[-2].hash if len(self._events) > 1 else earlier
        last = replace(self._events[-1], attempts=dict(map(seal, self._ended)))
        self._hash = hash_of(before, last)
        self._events[-1] = replace(last, hash=self._hash)

    def _keep_flow(self) -> None:
        ready, scopes = tuple(self.ready), tuple(self.scopes.values())
        if (ready or self.job.ready or scopes or self.job.scopes) and (ready, scopes) != (
            self.job.ready,
            self.job.scopes,
        ):
            self.job, self._moved = replace(self.job, ready=ready, scopes=scopes), True

    def _counter_moves(self) -> dict[str, int]:
        """The difference that `counted` would show: whether the job is live, and the changed steps."""
        was = self.before
        by = self.job.live - (was is not None and was.job.live)
        moves = dict.fromkeys(job_counters(self.job), by)
        for step_id, step in self._changed.items():
            before = was.steps.get(step_id) if was else None
            left, joined = step_counter(before) if before is not None else None, step_counter(step)
            if left == joined:
                continue
            if left is not None:
                moves[left] = moves.get(left, 0) - 1
            if joined is not None:
                moves[joined] = moves.get(joined, 0) + 1
        return {counter: by for counter, by in moves.items() if by}
