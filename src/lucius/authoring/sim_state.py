"""State of a simulation: a ledger for one job, a virtual clock, and an agenda of scheduled actions."""

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count

from lucius.authoring.timeline import TimelineWriter
from lucius.core.decide.decide import decide_all
from lucius.core.decide.explain import explain
from lucius.core.model.decision import Decision, Defaults, EndedAttempt, Env, JobSnapshot, Refused
from lucius.core.model.inputs import DeadlinePassed, Input
from lucius.core.model.records import NEVER, Instant, Job, Millis, OutboxRow, ReviewItem
from lucius.core.model.statuses import BlockedReason, OutboxStatus
from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition, StepSpec, spec_id

Watcher = Callable[[Decision], None]


class SimState:
    def __init__(self, protocol: ProtocolDefinition, tools: Tools, seed: int, start: Instant) -> None:
        ids = count(1)
        self.protocol = protocol
        self.env = Env(lambda: f"id-{next(ids)}", random.Random(seed).random, Defaults(), tools)
        self.start = self.now = start
        self.timeline = TimelineWriter(protocol, start)
        self.rows: dict[str, OutboxRow] = {}
        self.attempts: list[EndedAttempt] = []
        self.reviews: dict[str, ReviewItem] = {}
        self.watchers: list[Watcher] = []
        self.decisions = 0
        self._view: JobSnapshot | None = None
        self._agenda: list[tuple[Instant, int, partial[object]]] = []
        self._sequence = count()

    # The ledger

    @property
    def view(self) -> JobSnapshot:
        assert self._view is not None, "the job is submitted first"
        return self._view

    @property
    def job(self) -> Job:
        return self.view.job

    def spec(self, step_id: str) -> StepSpec:
        return self.protocol.plan.places[spec_id(step_id)].spec

    def decide(self, *inputs: Input) -> Decision:
        """Decide, store the decision, and call the watchers, which may schedule reactions."""
        decision = decide_all(self._view, inputs, self.now, self.env)
        self.decisions += 1
        if decision.changes:
            self._store(decision)
        self.timeline.add_decision(decision, self.view)
        for input_, reply in zip(inputs, decision.replies, strict=True):
            if isinstance(reply, Refused):
                self.timeline.add_refusal(self.now, input_, reply)
        for watcher in self.watchers:
            watcher(decision)
        return decision

    def _store(self, decision: Decision) -> None:
        steps = self._view.steps if self._view is not None else {}
        steps.update((step.step_id, step) for step in decision.steps)
        self._view = JobSnapshot(decision.job, self.protocol, steps)
        self.attempts += decision.attempts
        self.reviews.update((item.review_id, item) for item in decision.reviews)
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING:
                self.rows[row.outbox_id] = row
            else:
                self.rows.pop(row.outbox_id, None)

    # The clock

    def schedule_after(self, wait: Millis, act: Callable[..., object], *about: object) -> None:
        self.schedule_at(self.now + wait, act, *about)

    def schedule_at(self, instant: Instant, act: Callable[..., object], *about: object) -> None:
        item = (instant, next(self._sequence), partial(act, *about))
        heapq.heappush(self._agenda, item)

    def next_instant(self) -> Instant | None:
        """Return the instant of the next action or deadline; None if there is none."""
        due = self.job.due_at if self.job.due_at is not None else NEVER
        first = min(due, self._agenda[0][0]) if self._agenda else due
        return first if first < NEVER else None

    def advance_to(self, instant: Instant) -> None:
        """Move the clock to an instant. Scheduled actions come before deadlines that pass at the same time."""
        self._record_wait(instant)
        self.now = max(instant, self.now)
        if self._agenda and self._agenda[0][0] <= self.now:
            heapq.heappop(self._agenda)[2]()
        else:
            self.decide(DeadlinePassed())

    def explain_wait(self) -> str:
        blocked = self.job.blocked
        return explain(self.view, blocked.reason if blocked else BlockedReason.ENGINE, self.env)

    def _record_wait(self, until: Instant) -> None:
        """Record why the job waits, unless a service is at work."""
        blocked = self.job.blocked
        if blocked is None or until <= self.now:
            return
        others_act_first = bool(self._agenda) and self._agenda[0][0] <= until
        if blocked.reason in (BlockedReason.ACK, BlockedReason.RESULT) and others_act_first:
            return
        self.timeline.add_wait(self.now, blocked.step_id, self.explain_wait())
