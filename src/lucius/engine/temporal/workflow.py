"""One workflow for each job: it holds the job, feeds `decide` with what happens, and writes each decision down.

Each decision is projected into the ledger by a local activity before anything follows from it, so that an attempt and
its lease are known before its directive leaves. A worker that dies in between leaves the ledger ahead of Temporal's
history. Whoever goes on finds that out from the version, takes the ledger's word for what was decided, and feeds what
it had in hand once more: the fence on attempts makes that safe.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from msgspec.structs import replace

    from lucius.core.decide import decide_all
    from lucius.core.decision import Applied, CallbackReply, Decision, Env, JobView, MissingSteps, Refused
    from lucius.core.inputs import DeadlinePassed, Input, Start
    from lucius.core.model import NEVER, Disposition, Instant, JobStatus, OutboxRow, OutboxStatus, StepStatus
    from lucius.core.protocol import HTTP_SERVICE, WEBHOOK_SERVICE
    from lucius.core.restore import restored
    from lucius.core.routing import topic
    from lucius.engine.temporal.parts import Wanted, joined
    from lucius.engine.temporal.rules import rules
    from lucius.engine.temporal.search import STATE, state_of
    from lucius.engine.temporal.wire import (
        ACT,
        WORKFLOW,
        Answer,
        Begin,
        HandOver,
        Happened,
        Loaded,
        Projected,
        advanced,
        is_due,
        packed_replies,
        projection,
        unpack,
    )

LOOK_AGAIN_MS = 1_000
GAP_MS = 5_000
MOST_ACTS = 8
MOST_REMEMBERED = 200
LONGEST_TIMER_MS = 30 * 86_400_000
MOST_AT_ONCE = 10
"""Inputs in one decision, which touches a few dozen rows at most."""
LEDGER_SECONDS = timedelta(seconds=15)
PUBLISH_SECONDS = timedelta(seconds=3)
CALL_SECONDS = timedelta(hours=24)
HEARTBEAT_SECONDS = timedelta(seconds=60)
PATIENT = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10))
ONCE = RetryPolicy(maximum_attempts=1)


class _Waiting:
    """What happened, and who waits for what became of it."""

    def __init__(
        self, happened: Input, letter: str = "", answer: "asyncio.Future[Answer] | None" = None, act_id: str = ""
    ) -> None:
        self.happened = happened
        self.letter = letter
        self.answer = answer
        self.act_id = act_id
        self.again = False
        """Decided before, by a task that was lost: it may be in the ledger."""


@workflow.defn(name=WORKFLOW)
class JobWorkflow:
    @workflow.init
    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._env = Env(
            new_id=self._new_id, jitter=workflow.random().random, defaults=begin.defaults, tools=rules.tools
        )
        self._ids = 0
        self._view: JobView | None = None
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[bool]] = set()
        self._leases: set[str] = set()
        """Attempts that are being published or called out for."""
        self._timer: asyncio.Task[None] | None = None
        self._rings_at: Instant | None = None
        self._in_doubt, self._doubts, self._gone = False, 0, False
        self._away_until: Instant = 0
        self._read: dict[str, None] = {}
        """Letters that are in the history already, the last of them."""
        self._still_there: dict[str, None] = {}
        self._old_news: set[str] = set()
        self._heard: set[str] = set()
        """Letters that wait for a decision."""
        self._looks_again_at: Instant = 0
        self._told_state = state_of(workflow.info().typed_search_attributes.get(STATE, ""))

    @workflow.run
    async def run(self, begin: Begin) -> str:
        loaded = await self._load()
        if loaded is None:
            return "GONE"
        self._view = loaded
        if loaded.job.status is JobStatus.QUEUED:
            self._waiting.appendleft(_Waiting(Start()))
        self._take_up(loaded)
        while True:
            while self._has_work() and not self._gone:
                if self._in_doubt:
                    await self._compare()
                else:
                    await self._turn()
            if self._gone:
                _tell(self._waiting, Answer(packed_replies((Refused("JOB_NOT_FOUND", "the job is gone"),))))
                await workflow.wait_condition(workflow.all_handlers_finished)
                return "GONE"
            if not self._job.job.live and not self._tasks and workflow.all_handlers_finished():
                return self._end()
            if self._may_begin_anew():
                workflow.continue_as_new(begin)
            self._set_timer()
            await workflow.wait_condition(self._has_news)

    # What Temporal tells us

    @workflow.signal(name="step_ack")
    def step_ack(self, said: list[Happened]) -> None:
        self._hear(said)

    @workflow.signal(name="step_result")
    def step_result(self, said: list[Happened]) -> None:
        self._hear(said)

    @workflow.signal(name="heartbeat")
    def heartbeat(self, said: list[Happened]) -> None:
        self._hear(said)

    @workflow.signal(name="handed_over")
    def handed_over(self, said: list[Happened]) -> None:
        self._hear(said)

    @workflow.signal(name="look")
    def look(self, said: list[Happened]) -> None:
        """What was told before and may not have been heard; or somebody doubts that the ledger has what we know."""
        self._in_doubt = self._in_doubt or not said
        self._hear(said, again=True)

    @workflow.update(name=ACT)
    async def act(self, asked: Happened) -> Answer:
        """What a person does; answered when it is in the ledger."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        about = workflow.current_update_info()
        self._waiting.append(_Waiting(unpack(asked), answer=answer, act_id=about.id if about else ""))
        return await answer

    @workflow.query(name="status")
    def status(self) -> str:
        return "" if self._view is None else str(self._view.job.status)

    def _hear(self, said: Sequence[Happened], *, again: bool = False) -> None:
        """What we have heard already is told again by those who find it in the inbox still. A service that says the
        same twice is another matter: that is a duplicate, and recorded."""
        known = self._read.keys() | self._heard if again else set[str]()
        self._still_there |= dict.fromkeys(one.letter for one in said if again and one.letter in self._read)
        new = [happened for happened in said if happened.letter not in known]
        self._heard.update(happened.letter for happened in new if happened.letter)
        self._waiting.extend(_Waiting(unpack(happened), happened.letter) for happened in new)

    # Deciding

    def _new_id(self) -> str:
        """Of all decisions about one version only one is ever committed, so no two attempts share an id. A random
        generator begins anew with each replay, and would give the same twice."""
        job = self._job.job
        self._ids += 1
        said = f"{workflow.info().run_id} {job.version} {job.event_hash} {self._ids}"
        return hashlib.sha256(said.encode()).hexdigest()[:24]

    @property
    def _job(self) -> JobView:
        assert self._view is not None
        return self._view

    async def _turn(self) -> None:
        """One decision, and what follows from it."""
        batch = self._next_batch()
        if batch and batch[0].act_id and batch[0].act_id in self._job.job.recent_acts:  # by a task that was lost
            _tell(batch, Answer(packed_replies((Applied(),))))
            return
        self._ids = 0
        now = max(_now(), self._job.job.updated_at, self._away_until)  # time stands still while a task lasts
        inputs: list[Input] = [waiting.happened for waiting in batch]
        if not batch and is_due(self._job.job, now):
            inputs.append(DeadlinePassed(self._resumed_at(now)))
        try:
            decision = decide_all(self._job, inputs, now, self._env)
        except MissingSteps as missing:
            self._waiting.extendleft(reversed(batch))
            await self._load_more(missing.step_ids)
            return
        if batch and batch[0].again and self._is_old_news(batch[0], decision):
            decision = decide_all(self._job, (), now, self._env)
        if batch and batch[0].act_id:
            acts = (*decision.job.recent_acts, batch[0].act_id)[-MOST_ACTS:]
            decision = replace(decision, job=replace(decision.job, recent_acts=acts))
        letters = (*(waiting.letter for waiting in batch if waiting.letter), *self._still_there)
        self._still_there.clear()
        if decision.changes or letters:
            found = await self._project(decision, letters)
            if found.ledger is not None:
                self._waiting.extendleft(reversed(batch))
                await self._reconcile(found.ledger)
                return
            if found.away:
                self._waiting.extendleft(reversed(batch))
                self._away_until = found.away
                return
            if found.full is not None:
                _tell(batch, Answer(full=found.full))
                self._heard.difference_update(letters)
                return
            self._went_on(decision, letters)
        elif not batch:
            self._looks_again_at = now + LOOK_AGAIN_MS  # nothing came of it: time alone may change that
        for waiting, reply in zip(batch, decision.replies, strict=False):
            _tell([waiting], Answer(packed_replies((reply,))))

    def _resumed_at(self, now: Instant) -> Instant:
        """A clock that is heard long after it rang means that nobody was at work: no service is to blame for that."""
        late = now - (self._job.job.due_at or now)
        away, self._away_until = self._away_until, 0
        return now if away or late > GAP_MS else 0

    def _is_old_news(self, waiting: _Waiting, decision: Decision) -> bool:
        """A duplicate only of itself, as the ledger has it from a task that was lost. If it was said twice, the second
        is a duplicate indeed."""
        reply = decision.replies[0]
        if not isinstance(reply, CallbackReply) or reply.disposition is not Disposition.DUPLICATE:
            return False
        first = waiting.letter not in self._old_news
        self._old_news.add(waiting.letter)
        return first

    def _next_batch(self) -> list[_Waiting]:
        """What people do is decided by itself: a limit may refuse it, and nothing else with it."""
        if not self._waiting:
            return []
        batch = [self._waiting.popleft()]
        alone = batch[0].answer is not None or batch[0].again
        while not alone and self._waiting and len(batch) < MOST_AT_ONCE and self._waiting[0].answer is None:
            batch.append(self._waiting.popleft())
        return batch

    async def _load(self) -> JobView | None:
        found: Loaded = await workflow.execute_local_activity(
            "load_job",
            self._begin.job_id,
            result_type=Loaded,
            start_to_close_timeout=LEDGER_SECONDS,
            retry_policy=PATIENT,
        )
        return _view(found)

    async def _load_more(self, step_ids: frozenset[str]) -> None:
        """Of a job that is too large for one payload. One by one, so that no task answers with too many of them."""
        found: Loaded = await workflow.execute_local_activity(
            "load_steps",
            Wanted(self._begin.job_id, sorted(step_ids)),
            result_type=Loaded,
            start_to_close_timeout=LEDGER_SECONDS,
            retry_policy=PATIENT,
        )
        self._view = joined(self._job, found)
        await workflow.sleep(0.001)

    async def _project(self, decision: Decision, letters: tuple[str, ...]) -> Projected:
        rows = tuple(row for row in decision.outbox if not self._is_ours(row))
        name = "record_attempt_lease" if any(map(_is_ready, decision.outbox)) else "project"
        asked = projection(decision, rows, letters)
        found: Projected = await workflow.execute_local_activity(
            name,
            asked,
            result_type=Projected,
            start_to_close_timeout=LEDGER_SECONDS,
            retry_policy=PATIENT,
        )
        if found.decided not in ("", asked.decided):  # the run ends, and another goes on from the ledger
            raise workflow.NondeterminismError("another version of the rules decided otherwise")
        return found

    def _went_on(self, decision: Decision, letters: tuple[str, ...] = ()) -> None:
        self._view = advanced(self._job, decision)
        self._hand_over(decision.outbox)
        self._tell_state()
        self._read |= dict.fromkeys(letters)
        self._heard.difference_update(letters)
        while len(self._read) > MOST_REMEMBERED:
            del self._read[next(iter(self._read))]

    async def _compare(self) -> None:
        self._in_doubt = False
        found: Projected = await workflow.execute_local_activity(
            "compare",
            self._job.job,
            result_type=Projected,
            start_to_close_timeout=LEDGER_SECONDS,
            retry_policy=PATIENT,
        )
        if found.ledger is not None:
            await self._reconcile(found.ledger)

    async def _reconcile(self, found: Loaded) -> None:
        """If the ledger is ahead, somebody died who had written more than Temporal heard of: it is taken at its word.
        If it is behind, it has lost something: it is told anew."""
        view, known = _view(found), self._job
        if view is not None and view.job.version >= known.job.version:
            self._view = view
            self._take_up(view)
            for waiting in self._waiting:
                waiting.again = True
            return
        if view is None and not known.job.live:  # dropped, as what has ended may be
            self._gone = True
            return
        decision = restored(known, view, max(_now(), known.job.updated_at), self._env)
        again = await self._project(decision, ())
        if again.taken:
            workflow.logger.error("another job has this job's key by now: it can't be told to the ledger anew")
            self._gone = True
        elif again.ledger is None:
            workflow.logger.warning("the ledger was behind and has been told anew")
            self._doubts = 0
            self._went_on(decision)
        else:  # somebody was faster
            self._doubts = min(self._doubts + 1, 6)
            await workflow.sleep(2.0**self._doubts)
            self._in_doubt = True

    def _take_up(self, view: JobView) -> None:
        """What was decided before, by whoever it was, and may not have been seen to."""
        for step in (view.steps[step_id] for step_id in view.job.active):
            attempt, routing = step.attempt, step.attempt.routing
            if step.status is StepStatus.DISPATCHING and not attempt.held:
                where = topic(self._begin.defaults.topic_layout, routing.resolved_mode, routing.lane)
                self._start_hand_over(
                    HandOver(step.job_id, step.step_id, attempt.attempt_no, attempt.lease_id, step.service, where)
                )

    # What follows from a decision

    def _is_ours(self, row: OutboxRow) -> bool:
        """Whether an activity hands this over, rather than somebody who takes it out of the outbox."""
        if row.service == WEBHOOK_SERVICE:
            return False
        return row.service == HTTP_SERVICE or self._begin.publishes

    def _hand_over(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            if _is_ready(row):
                self._start_hand_over(
                    HandOver(row.job_id, row.step_id, row.attempt_no, row.lease_id, row.service, row.topic)
                )

    def _start_hand_over(self, what: HandOver) -> None:
        if what.lease_id in self._leases:
            return
        if what.service == HTTP_SERVICE:
            self._keep(self._call(what), what)
        elif self._begin.publishes:
            self._keep(self._publish(what), what)

    def _keep(self, work: Coroutine[Any, Any, bool], what: HandOver) -> None:
        """Work that came to nothing met a paused job: should that have been resumed meanwhile, it is begun anew."""
        self._leases.add(what.lease_id)
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def over(done: "asyncio.Task[bool]") -> None:
            self._tasks.discard(done)
            self._leases.discard(what.lease_id)
            if not done.cancelled() and done.exception() is None and not done.result():
                self._take_up(self._job)

        task.add_done_callback(over)

    async def _publish(self, what: HandOver) -> bool:
        """At once if the bus takes it; else by an activity that Temporal repeats until it does."""
        try:
            outcome: list[Happened] = await workflow.execute_local_activity(
                "publish_to_bus",
                what,
                result_type=list[Happened],
                start_to_close_timeout=PUBLISH_SECONDS,
                retry_policy=ONCE,
            )
        except FailureError:  # of a local activity, its own error comes out, and no ActivityError around it
            outcome = await workflow.execute_activity(
                "publish_to_bus",
                what,
                result_type=list[Happened],
                start_to_close_timeout=LEDGER_SECONDS,
                retry_policy=PATIENT,
            )
        self._hear(outcome)
        return bool(outcome)

    async def _call(self, what: HandOver) -> bool:
        """Should whoever calls die with it, the attempt ends by its lease, as any does."""
        try:
            outcome: list[Happened] = await workflow.execute_activity(
                "external_call",
                what,
                result_type=list[Happened],
                start_to_close_timeout=CALL_SECONDS,
                heartbeat_timeout=HEARTBEAT_SECONDS,
                retry_policy=PATIENT,
            )
        except ActivityError:
            return True
        self._hear(outcome)
        return bool(outcome)

    # Time

    def _has_work(self) -> bool:
        now = _now()
        return (
            bool(self._waiting or self._still_there)
            or self._in_doubt
            or (is_due(self._job.job, now) and now >= self._looks_again_at)
        )

    def _has_news(self) -> bool:
        if self._has_work() or self._wants_timer():
            return True
        return not self._job.job.live and not self._tasks and workflow.all_handlers_finished()

    def _due_at(self) -> Instant | None:
        job = self._job.job
        if not job.live or job.due_at is None or job.due_at >= NEVER:
            return None
        return max(job.due_at, self._looks_again_at)

    def _wants_timer(self) -> bool:
        """One that rings too early costs less than one that is set anew each time."""
        due_at = self._due_at()
        return due_at is not None and (self._rings_at is None or self._rings_at > due_at)

    def _set_timer(self) -> None:
        due_at = self._due_at()
        if due_at is None or not self._wants_timer():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = min(due_at, _now() + LONGEST_TIMER_MS)
        self._timer = asyncio.create_task(self._ring(self._rings_at))

    async def _ring(self, at: Instant) -> None:
        await workflow.sleep(max(1, at - _now()) / 1000)
        self._rings_at = self._timer = None

    def _may_begin_anew(self) -> bool:
        """Before the history grows large, when nothing is under way that would be lost."""
        return workflow.info().is_continue_as_new_suggested() and not self._tasks and workflow.all_handlers_finished()

    # The end

    def _tell_state(self) -> None:
        """If it is another: each time costs an event."""
        state = state_of(self._job.job.status)
        if self._begin.searchable and state != self._told_state:
            self._told_state = state
            workflow.upsert_search_attributes([STATE.value_set(state)])

    def _end(self) -> str:
        job = self._job.job
        if job.status is JobStatus.FAILED_FINAL:
            said = f"{job.error.code}: {job.error.message}" if job.error else "the job failed"
            raise ApplicationError(said, type=str(job.status), non_retryable=True)
        return str(job.status)


def _is_ready(row: OutboxRow) -> bool:
    return row.status is OutboxStatus.PENDING and row.next_attempt_at is None and row.claimed_at is None


def _view(loaded: Loaded) -> JobView | None:
    if loaded.job is None or loaded.protocol is None:
        return None
    asked = None if loaded.asked is None else frozenset(loaded.asked)
    return JobView(loaded.job, loaded.protocol, {step.step_id: step for step in loaded.steps}, asked)


def _tell(batch: Sequence[_Waiting], answer: Answer) -> None:
    for waiting in batch:
        if waiting.answer is not None and not waiting.answer.done():
            waiting.answer.set_result(answer)


def _now() -> Instant:
    return round(workflow.now().timestamp() * 1000)
