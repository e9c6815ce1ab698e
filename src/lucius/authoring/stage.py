"""Where a rehearsal takes place: a ledger for one job, a clock that jumps, and an agenda of what is to come."""

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count

from lucius.authoring.timeline import Teller
from lucius.core.decide import decide_all
from lucius.core.decision import Decision, Defaults, EndedAttempt, Env, JobView, Refused
from lucius.core.explain import explain
from lucius.core.inputs import DeadlinePassed, Input
from lucius.core.model import NEVER, BlockedReason, Instant, Job, Millis, OutboxRow, OutboxStatus, ReviewItem
from lucius.core.protocol import Protocol, StepSpec, spec_id
from lucius.core.tools import Tools

Watcher = Callable[[Decision], None]


class Stage:
    def __init__(self, protocol: Protocol, tools: Tools, seed: int, start: Instant) -> None:
        ids = count(1)
        self.protocol = protocol
        self.env = Env(lambda: f"id-{next(ids)}", random.Random(seed).random, Defaults(), tools)
        self.start = self.now = start
        self.teller = Teller(protocol, start)
        self.rows: dict[str, OutboxRow] = {}
        self.attempts: list[EndedAttempt] = []
        self.reviews: dict[str, ReviewItem] = {}
        self.watchers: list[Watcher] = []
        self.decisions = 0
        self._view: JobView | None = None
        self._agenda: list[tuple[Instant, int, partial[object]]] = []
        self._turns = count()

    # The ledger

    @property
    def view(self) -> JobView:
        assert self._view is not None, "the job is submitted first"
        return self._view

    @property
    def job(self) -> Job:
        return self.view.job

    def spec(self, step_id: str) -> StepSpec:
        return self.protocol.plan.places[spec_id(step_id)].spec

    def decide(self, *inputs: Input) -> Decision:
        """The core decides, the decision is kept, and whoever watches may plan what to do about it."""
        decision = decide_all(self._view, inputs, self.now, self.env)
        self.decisions += 1
        if decision.changes:
            self._keep(decision)
        self.teller.tell(decision, self.view)
        for happened, reply in zip(inputs, decision.replies, strict=True):
            if isinstance(reply, Refused):
                self.teller.refused(self.now, happened, reply)
        for watcher in self.watchers:
            watcher(decision)
        return decision

    def _keep(self, decision: Decision) -> None:
        steps = self._view.steps if self._view is not None else {}
        steps.update((step.step_id, step) for step in decision.steps)
        self._view = JobView(decision.job, self.protocol, steps)
        self.attempts += decision.attempts
        self.reviews.update((item.review_id, item) for item in decision.reviews)
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING:
                self.rows[row.outbox_id] = row
            else:
                self.rows.pop(row.outbox_id, None)

    # The clock

    def later(self, wait: Millis, act: Callable[..., object], *about: object) -> None:
        self.at(self.now + wait, act, *about)

    def at(self, instant: Instant, act: Callable[..., object], *about: object) -> None:
        item = (instant, next(self._turns), partial(act, *about))
        heapq.heappush(self._agenda, item)

    def next(self) -> Instant | None:
        """When something happens next; None if nothing ever will."""
        due = self.job.due_at if self.job.due_at is not None else NEVER
        first = min(due, self._agenda[0][0]) if self._agenda else due
        return first if first < NEVER else None

    def go_to(self, instant: Instant) -> None:
        """What others do at an instant comes before what the passing of time does."""
        self._tell_wait(instant)
        self.now = max(instant, self.now)
        if self._agenda and self._agenda[0][0] <= self.now:
            heapq.heappop(self._agenda)[2]()
        else:
            self.decide(DeadlinePassed())

    def why(self) -> str:
        blocked = self.job.blocked
        return explain(self.view, blocked.reason if blocked else BlockedReason.ENGINE, self.env)

    def _tell_wait(self, until: Instant) -> None:
        """Say why nothing happens, unless it is that a service is at work as it should be."""
        blocked = self.job.blocked
        if blocked is None or until <= self.now:
            return
        others_act_first = bool(self._agenda) and self._agenda[0][0] <= until
        if blocked.reason in (BlockedReason.ACK, BlockedReason.RESULT) and others_act_first:
            return
        self.teller.wait(self.now, blocked.step_id, self.why())
