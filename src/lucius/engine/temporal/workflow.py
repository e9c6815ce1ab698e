"""One workflow for each job: it holds the job, feeds `decide` with what happens, and writes each decision down.

Each decision is projected into the ledger by a local activity before anything follows from it, so that an attempt and
its lease are known before its directive leaves. A worker that dies in between leaves the ledger ahead of Temporal's
history. Whoever goes on finds that out from the version, takes the ledger's word for what was decided, and feeds what
it had in hand once more: the fence on attempts makes that safe.
"""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from msgspec.structs import replace

    from lucius.core.decide import decide_all
    from lucius.core.decision import Applied, CallbackReply, Decision, Env, JobView, MissingSteps, Refused
    from lucius.core.inputs import DeadlinePassed, Input, Start
    from lucius.core.model import NEVER, Disposition, Instant, JobStatus, StepStatus
    from lucius.core.restore import restored
    from lucius.core.routing import topic
    from lucius.engine.temporal.further import env_of, id_of
    from lucius.engine.temporal.hand_overs import LEDGER_SECONDS, PATIENT, HandOvers
    from lucius.engine.temporal.mail import Mail, Waiting
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
        Turn,
        advanced,
        digest,
        is_due,
        packed_replies,
        projection,
        unpack,
    )

LOOK_AGAIN_MS = 1_000
GAP_MS = 5_000
MOST_ACTS = 8
LONGEST_TIMER_MS = 30 * 86_400_000


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
        self._mail = Mail()
        self._hand_overs = HandOvers(begin.publishes, self._mail.hear, lambda: self._take_up(self._job))
        self._timer: asyncio.Task[None] | None = None
        self._rings_at: Instant | None = None
        self._in_doubt, self._doubts, self._gone = False, 0, False
        self._hurried_in = 0
        """The length of the history in whose task somebody waits for an answer."""
        self._away_until: Instant = 0
        self._looks_again_at: Instant = 0
        self._told_state = state_of(workflow.info().typed_search_attributes.get(STATE, ""))

    @workflow.run
    async def run(self, begin: Begin) -> str:
        loaded = _view(begin.job) if begin.job is not None else await self._load()
        if loaded is None:
            return "GONE"
        self._view = loaded
        if loaded.job.status is JobStatus.QUEUED:
            self._mail.add(Waiting(Start()), first=True)
        self._take_up(loaded)
        while True:
            while self._has_work() and not self._gone:
                if self._in_doubt:
                    await self._compare()
                else:
                    await self._turn()
            if self._gone:
                _tell(self._mail.take_all(), Answer(packed_replies((Refused("JOB_NOT_FOUND", "the job is gone"),))))
                await workflow.wait_condition(workflow.all_handlers_finished)
                return "GONE"
            if self._is_over():
                return self._end()
            if self._may_begin_anew():
                workflow.continue_as_new(replace(begin, job=None))
            self._set_timer()
            await workflow.wait_condition(self._has_news)

    # What Temporal tells us

    @workflow.signal(name="step_ack")
    def step_ack(self, said: list[Happened]) -> None:
        self._mail.hear(said)

    @workflow.signal(name="step_result")
    def step_result(self, said: list[Happened]) -> None:
        self._mail.hear(said)

    @workflow.signal(name="heartbeat")
    def heartbeat(self, said: list[Happened]) -> None:
        self._mail.hear(said)

    @workflow.signal(name="handed_over")
    def handed_over(self, said: list[Happened]) -> None:
        self._mail.hear(said)

    @workflow.signal(name="look")
    def look(self, said: list[Happened]) -> None:
        """What was told before and may not have been heard; or somebody doubts that the ledger has what we know."""
        if not said:
            self._in_doubt = True
            self._mail.expect_no_more()
        self._mail.hear(said, again=True)

    @workflow.update(name=ACT)
    async def act(self, asked: Happened) -> Answer:
        """What a person does; answered when it is in the ledger. Who can't read what goes to another job can still send
        it to this one: it says which job it is for."""
        if asked.letter and asked.letter != f"{self._begin.job_id}/{ACT}":
            raise ApplicationError("this was asked of another job", type="FOREIGN", non_retryable=True)
        self._hurried_in = workflow.info().get_current_history_length()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        about = workflow.current_update_info()
        self._mail.add(Waiting(unpack(asked), answer=answer, act_id=about.id if about else ""))
        return await answer

    @workflow.query(name="status")
    def status(self) -> str:
        return "" if self._view is None else str(self._view.job.status)

    # Deciding

    def _new_id(self) -> str:
        self._ids += 1
        return id_of(workflow.info().run_id, self._job.job, self._ids)

    @property
    def _job(self) -> JobView:
        assert self._view is not None
        return self._view

    async def _turn(self) -> None:
        """One decision, and what follows from it."""
        batch = self._mail.take()
        if batch and batch[0].act_id and batch[0].act_id in self._job.job.recent_acts:  # by a task that was lost
            _tell(batch, Answer(packed_replies((Applied(),))))
            return
        self._ids = 0
        now = max(_now(), self._job.job.updated_at, self._away_until)
        inputs: list[Input] = [waiting.happened for waiting in batch]
        if not batch and is_due(self._job.job, now):
            inputs.append(DeadlinePassed(self._resumed_at(now)))
        try:
            decision = decide_all(self._job, inputs, now, self._env)
        except MissingSteps as missing:
            self._mail.put_back(batch)
            await self._load_more(missing.step_ids)
            return
        if batch and self._mail.is_old_news(batch[0], decision):
            decision = decide_all(self._job, (), now, self._env)
        doubted = self._mail.is_doubtful and bool(batch and batch[0].letter) and _is_repeated(decision)
        if batch and batch[0].act_id:
            acts = (*decision.job.recent_acts, batch[0].act_id)[-MOST_ACTS:]
            decision = replace(decision, job=replace(decision.job, recent_acts=acts))
        letters = (*(waiting.letter for waiting in batch if waiting.letter), *self._mail.take_still_there())
        if decision.changes or letters:
            found = await self._project(decision, letters, doubted=doubted)
            if found.is_old:
                self._mail.is_recorded(letters)
                return
            if found.ledger is not None:
                self._mail.put_back(batch)
                await self._reconcile(found.ledger)
                return
            if found.away:
                self._mail.put_back(batch)
                self._away_until = found.away
                return
            if found.full is not None:
                _tell(batch, Answer(full=found.full))
                self._mail.is_over(letters)
                return
            self._went_on(decision, letters)
            for turn in found.turns:
                self._follow(turn)
            self._mail.hear_ahead(found.heard)
        elif not batch:
            self._looks_again_at = now + LOOK_AGAIN_MS  # nothing came of it: time alone may change that
        for waiting, reply in zip(batch, decision.replies, strict=False):
            _tell([waiting], Answer(packed_replies((reply,))))

    def _follow(self, turn: Turn) -> None:
        """What was decided in our name when services answered at once."""
        env = env_of(workflow.info().run_id, self._job.job, self._begin.defaults, rules.tools)
        decision = decide_all(self._job, [unpack(happened) for happened in turn.happened], turn.at, env)
        if digest(decision) != turn.decided:
            raise workflow.NondeterminismError("another version of the rules decided otherwise")
        self._mail.was_decided(turn)
        self._went_on(decision)

    def _resumed_at(self, now: Instant) -> Instant:
        """A clock that is heard long after it rang means that nobody was at work: no service is to blame for that."""
        late = now - (self._job.job.due_at or now)
        away, self._away_until = self._away_until, 0
        return away or (now if late > GAP_MS else 0)

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

    async def _project(
        self, decision: Decision, letters: tuple[str, ...], *, doubted: bool = False, hurries: bool = False
    ) -> Projected:
        rows = tuple(row for row in decision.outbox if not self._hand_overs.are_of(row))
        name = "record_attempt_lease" if any(row.is_ready for row in decision.outbox) else "project"
        defaults = self._begin.defaults if self._job.asked is None else None  # or steps may be missing that it had
        hurries = hurries or self._hurries() or is_due(decision.job, _now())
        asked = replace(projection(decision, rows, letters), hurries=hurries, doubted=doubted, defaults=defaults)
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
        self._hand_overs.start_ready(decision.outbox)
        self._tell_state()
        self._mail.is_recorded(letters)

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
            self._mail.doubt()
            return
        if view is None and not known.job.live:  # dropped, as what has ended may be
            self._gone = True
            return
        decision = restored(known, view, max(_now(), known.job.updated_at), self._env)
        again = await self._project(decision, (), hurries=True)
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
                self._hand_overs.start(
                    HandOver(step.job_id, step.step_id, attempt.attempt_no, attempt.lease_id, step.service, where)
                )

    # Time

    def _hurries(self) -> bool:
        """What an act came to is told when the task ends, and only then a new run begins, and signals come that were
        heard before; and while there is enough to do, nobody waits for more."""
        about = workflow.info()
        acted = self._hurried_in == about.get_current_history_length()
        return acted or self._mail.waits or self._mail.is_far_ahead or about.is_continue_as_new_suggested()

    def _has_work(self) -> bool:
        now = _now()
        return self._mail.has_work or self._in_doubt or (is_due(self._job.job, now) and now >= self._looks_again_at)

    def _has_news(self) -> bool:
        if self._has_work() or self._wants_timer():
            return True
        return self._is_over() or self._may_begin_anew()

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
        return workflow.info().is_continue_as_new_suggested() and not self._is_busy()

    # The end

    def _is_busy(self) -> bool:
        return self._hand_overs.under_way or self._mail.is_ahead or not workflow.all_handlers_finished()

    def _is_over(self) -> bool:
        """Temporal lets no workflow end that has signals to hear: its last task would be lost with all that it did."""
        return not self._job.job.live and not self._is_busy()

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


def _view(loaded: Loaded) -> JobView | None:
    if loaded.job is None or loaded.protocol is None:
        return None
    asked = None if loaded.asked is None else frozenset(loaded.asked)
    return JobView(loaded.job, loaded.protocol, {step.step_id: step for step in loaded.steps}, asked)


def _tell(batch: Sequence[Waiting], answer: Answer) -> None:
    for waiting in batch:
        if waiting.answer is not None and not waiting.answer.done():
            waiting.answer.set_result(answer)


def _now() -> Instant:
    """In a task, only local activities make it pass."""
    return round(workflow.now().timestamp() * 1000)


def _is_repeated(decision: Decision) -> bool:
    """Whether it notes what changes nothing, and may have been noted before."""
    replies = (reply for reply in decision.replies if isinstance(reply, CallbackReply))
    return any(reply.disposition is not Disposition.APPLIED for reply in replies)
