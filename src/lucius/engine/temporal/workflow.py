"""Workflow side of the Temporal engine: holds one job, feeds inputs to `decide` and records each decision.

The plain route of a callback or hand-over is: inbox row → signal → decide → project. `engine.py` has the first two
steps; the others are here:

3. A signal method puts the message into the workflow's queue, and `_decide_next` takes it and asks `decide_all`.
4. `_project` has a local activity (`activities.py`) commit the decision to the ledger and delete the inbox row:
   `project`, or `record_attempt_lease` if a directive is to be handed over. Then `_advance` starts what follows.

With shortcuts, an activity's result may also have messages that are to be decided here before their signals arrive, and
decisions that the activity took itself: see `early_messages.py`. On the plain route it has neither.

Each decision is projected before anything follows from it, so that an attempt and its lease are known before its
directive leaves. A worker that dies in between leaves the ledger ahead of Temporal's
history. The next worker detects that by the version, adopts the ledger's state, and decides about its pending inputs
again: the fence on attempts makes that safe.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from msgspec.structs import replace

    from lucius.core.decide.decide import decide_all
    from lucius.core.decide.resync import decide_restore
    from lucius.core.model.decision import Applied, CallbackReply, Decision, Env, JobSnapshot, MissingSteps, Refused
    from lucius.core.model.inputs import Cancel, DeadlinePassed, Input, Start
    from lucius.core.model.records import NEVER, Instant
    from lucius.core.model.routing import topic
    from lucius.core.model.statuses import Disposition, JobStatus, StepStatus
    from lucius.engine.temporal.cancellation import UncancelledAwait
    from lucius.engine.temporal.deterministic_env import derive_id
    from lucius.engine.temporal.early_messages import EarlyMessages
    from lucius.engine.temporal.messages import (
        ACT_UPDATE,
        WORKFLOW_TYPE,
        ActResult,
        HandoverRequest,
        JobMessage,
        LoadedJob,
        ProjectionResult,
        WorkflowArgs,
        advance_snapshot,
        decode_input,
        encode_replies,
        is_due,
        make_projection,
    )
    from lucius.engine.temporal.paged_state import LoadStepsRequest, joined
    from lucius.engine.temporal.search import STATE, state_of
    from lucius.engine.temporal.workflow_handover import LEDGER_TIMEOUT, UNLIMITED_RETRIES, HandoverTasks
    from lucius.engine.temporal.workflow_inbox import PendingInput, WorkflowInbox
    from lucius.engine.temporal.workflow_tools import workflow_tools

DECIDE_AGAIN_MS = 1_000
GAP_MS = 5_000
MAX_RECENT_ACTS = 8
MAX_TIMER_MS = 30 * 86_400_000
CANCELLED_BY = "operator via Temporal"

T = TypeVar("T")


@workflow.defn(name=WORKFLOW_TYPE)
class JobWorkflow:
    @workflow.init
    def __init__(self, args: WorkflowArgs) -> None:
        self._args = args
        self._env = Env(
            new_id=self._new_id, jitter=workflow.random().random, defaults=args.defaults, tools=workflow_tools.tools
        )
        self._ids = 0
        self._snapshot: JobSnapshot | None = None
        self._inbox = WorkflowInbox()
        self._early = EarlyMessages(self._inbox, args.defaults)
        self._handovers = HandoverTasks(args.publishes, self._receive, lambda: self._start_handovers(self._job))
        self._timer: asyncio.Task[None] | None = None
        self._timer_at: Instant | None = None
        self._must_compare, self._failed_restores, self._is_gone = False, 0, False
        self._has_cancel = False
        self._downtime_end: Instant = 0
        self._decide_again_at: Instant = 0
        self._shown_state = state_of(workflow.info().typed_search_attributes.get(STATE, ""))

    @workflow.run
    async def run(self, args: WorkflowArgs) -> str:
        loaded = _to_snapshot(args.job) if args.job is not None else await self._load()
        if loaded is None:
            return "GONE"
        self._snapshot = loaded
        if loaded.job.status is JobStatus.QUEUED:
            self._inbox.add(PendingInput(Start()), first=True)
        self._start_handovers(loaded)
        while True:
            while self._has_work() and not self._is_gone:
                if self._must_compare:
                    await self._compare()
                else:
                    await self._decide_next()
            if self._is_gone:
                _answer(
                    self._inbox.take_all(), ActResult(encode_replies((Refused("JOB_NOT_FOUND", "the job is gone"),)))
                )
                while not workflow.all_handlers_finished():
                    await self._unless_cancelled(workflow.wait_condition(workflow.all_handlers_finished))
                return "GONE"
            if self._can_end():
                return self._result()
            if self._can_continue_as_new():
                workflow.continue_as_new(replace(args, job=None))
            self._set_timer()
            await self._unless_cancelled(workflow.wait_condition(self._is_woken))

    # Signals, updates and queries

    @workflow.signal(name="step_ack")
    def step_ack(self, messages: list[JobMessage]) -> None:
        self._receive(messages)

    @workflow.signal(name="step_result")
    def step_result(self, messages: list[JobMessage]) -> None:
        self._receive(messages)

    @workflow.signal(name="heartbeat")
    def heartbeat(self, messages: list[JobMessage]) -> None:
        self._receive(messages)

    @workflow.signal(name="handed_over")
    def handed_over(self, messages: list[JobMessage]) -> None:
        self._receive(messages)

    @workflow.signal(name="resync")
    def resync(self, messages: list[JobMessage]) -> None:
        """Receive messages redelivered from the inbox; without any, compare this job with the ledger."""
        if not messages:
            self._must_compare = True
            self._early.forget()
        self._inbox.receive(messages, redelivered=True)

    def _receive(self, messages: Sequence[JobMessage]) -> None:
        """Queue the messages of a signal or a hand-over."""
        self._inbox.receive(self._early.without_early(messages))

    @workflow.update(name=ACT_UPDATE)
    async def act(self, message: JobMessage) -> ActResult:
        """Apply a request of a client or operator; return the replies once the decision is in the ledger.

        The message names its job: even without the key, a payload that was encrypted for one job's workflow could be
        sent to another's. Raises ApplicationError for a message to another job.
        """
        if message.message_id and message.message_id != f"{self._args.job_id}/{ACT_UPDATE}":
            raise ApplicationError("this was asked of another job", type="FOREIGN", non_retryable=True)
        self._early.note_update()
        answer: asyncio.Future[ActResult] = asyncio.get_running_loop().create_future()
        about = workflow.current_update_info()
        self._inbox.add(PendingInput(decode_input(message), answer=answer, act_id=about.id if about else ""))
        return await answer

    @workflow.query(name="status")
    def status(self) -> str:
        return "" if self._snapshot is None else str(self._snapshot.job.status)

    def _take_cancel(self) -> bool:
        """Turn a cancellation of the workflow into one of the job; return whether there was a new one.

        If there was none, the workflow is being evicted from its worker's memory.
        """
        if self._has_cancel or not workflow.in_workflow():
            return False
        reason = workflow.cancellation_reason()
        if reason is None:
            return False
        self._has_cancel = True
        # with an answer to resolve, it is decided about alone
        answer: asyncio.Future[ActResult] = asyncio.get_running_loop().create_future()
        self._inbox.add(PendingInput(Cancel(CANCELLED_BY, reason), answer=answer))
        return True

    async def _unless_cancelled(self, done: Awaitable[None]) -> None:
        """Await `done`, or return at once if the workflow is cancelled meanwhile."""
        try:
            await done
        except asyncio.CancelledError:
            if not self._take_cancel():
                raise

    async def _ask_ledger(self, activity: str, argument: object, result_type: type[T]) -> T:
        """Run a local activity to its end, even if the workflow is cancelled meanwhile; return its result."""
        handle: workflow.ActivityHandle[Any] = workflow.start_local_activity(
            activity,
            argument,
            result_type=result_type,
            start_to_close_timeout=LEDGER_TIMEOUT,
            retry_policy=UNLIMITED_RETRIES,
        )
        result: T = await UncancelledAwait(handle, self._take_cancel)
        return result

    # Deciding

    def _new_id(self) -> str:
        self._ids += 1
        return derive_id(workflow.info().run_id, self._job.job, self._ids)

    @property
    def _job(self) -> JobSnapshot:
        assert self._snapshot is not None
        return self._snapshot

    async def _decide_next(self) -> None:
        """Decide about the next inputs, or a deadline; project the decision and act on it."""
        batch = self._inbox.take()
        if batch and batch[0].act_id and batch[0].act_id in self._job.job.recent_acts:  # in a lost task
            _answer(batch, ActResult(encode_replies((Applied(),))))
            return
        now = max(_now(), self._job.job.updated_at, self._downtime_end)
        try:
            decision = self._decide(batch, now)
        except MissingSteps as missing:
            self._inbox.put_back(batch)
            await self._load_more(missing.step_ids)
            return
        may_be_repeat = self._inbox.is_uncertain and bool(batch and batch[0].message_id) and _is_repeated(decision)
        message_ids = (*(pending.message_id for pending in batch if pending.message_id), *self._inbox.take_stored_ids())
        if decision.changes or message_ids:
            result = await self._project(decision, message_ids, may_be_repeat=may_be_repeat)
            if not _is_committed(result):
                await self._take_refusal(result, batch, message_ids)
                return
            self._advance(decision, message_ids)
            for inline in result.inline_decisions:
                self._advance(self._early.repeat(inline, self._job))
            self._early.receive(result.early_messages)
        elif not batch:
            self._decide_again_at = now + DECIDE_AGAIN_MS  # nothing changed: only time may change that
        for pending, reply in zip(batch, decision.replies, strict=False):
            _answer([pending], ActResult(encode_replies((reply,))))

    def _decide(self, batch: Sequence[PendingInput], now: Instant) -> Decision:
        """Return the decision about these inputs, or about a deadline if there are none. Raises MissingSteps."""
        self._ids = 0
        inputs: list[Input] = [pending.value for pending in batch]
        if not batch and is_due(self._job.job, now):
            inputs.append(DeadlinePassed(self._resumed_at(now)))
        decision = decide_all(self._job, inputs, now, self._env)
        if not batch:
            return decision
        if self._inbox.is_own_duplicate(batch[0], decision):
            decision = decide_all(self._job, (), now, self._env)
        if batch[0].act_id:
            acts = (*decision.job.recent_acts, batch[0].act_id)[-MAX_RECENT_ACTS:]
            decision = replace(decision, job=replace(decision.job, recent_acts=acts))
        return decision

    async def _take_refusal(
        self, result: ProjectionResult, batch: Sequence[PendingInput], message_ids: tuple[str, ...]
    ) -> None:
        """Go on after a projection that was not committed; mostly the inputs are decided about again."""
        if result.already_recorded:
            self._inbox.mark_recorded(message_ids)
        elif result.ledger is not None:
            self._inbox.put_back(batch)
            await self._reconcile(result.ledger)
        elif result.downtime_end:
            self._inbox.put_back(batch)
            self._downtime_end = result.downtime_end
        else:
            _answer(batch, ActResult(limit_reached=result.limit_reached))
            self._inbox.forget(message_ids)

    def _resumed_at(self, now: Instant) -> Instant:
        """Return the end of the downtime that delayed this deadline, 0 if none did: no service is to blame for it."""
        late = now - (self._job.job.due_at or now)
        downtime_end, self._downtime_end = self._downtime_end, 0
        return downtime_end or (now if late > GAP_MS else 0)

    async def _load(self) -> JobSnapshot | None:
        found: LoadedJob = await self._ask_ledger("load_job", self._args.job_id, LoadedJob)
        return _to_snapshot(found)

    async def _load_more(self, step_ids: frozenset[str]) -> None:
        """Load steps of a job too large for one payload. The timer ends the task, which limits its size."""
        found: LoadedJob = await self._ask_ledger(
            "load_steps", LoadStepsRequest(self._args.job_id, sorted(step_ids)), LoadedJob
        )
        self._snapshot = joined(self._job, found)
        await self._unless_cancelled(workflow.sleep(0.001))

    async def _project(
        self, decision: Decision, message_ids: tuple[str, ...], *, may_be_repeat: bool = False, is_urgent: bool = False
    ) -> ProjectionResult:
        rows = tuple(row for row in decision.outbox if not self._handovers.is_own(row))
        name = "record_attempt_lease" if any(row.is_ready for row in decision.outbox) else "project"
        projection = replace(make_projection(decision, rows, message_ids), may_be_repeat=may_be_repeat)
        projection = self._early.allow(projection, self._job, is_urgent=is_urgent or is_due(decision.job, _now()))
        result: ProjectionResult = await self._ask_ledger(name, projection, ProjectionResult)
        if result.digest not in ("", projection.digest):  # this run ends, the next continues from the ledger
            raise workflow.NondeterminismError("another version of the rules decided otherwise")
        return result

    def _advance(self, decision: Decision, message_ids: tuple[str, ...] = ()) -> None:
        self._snapshot = advance_snapshot(self._job, decision)
        self._handovers.start_ready(decision.outbox)
        self._show_state()
        self._inbox.mark_recorded(message_ids)

    async def _compare(self) -> None:
        self._must_compare = False
        found: ProjectionResult = await self._ask_ledger("compare", self._job.job, ProjectionResult)
        if found.ledger is not None:
            await self._reconcile(found.ledger)

    async def _reconcile(self, found: LoadedJob) -> None:
        """Adopt the ledger's state if it is ahead: a worker died after a commit that Temporal's history lacks.

        If it is behind, it has lost data: restore the job there.
        """
        stored, known = _to_snapshot(found), self._job
        if stored is not None and stored.job.version >= known.job.version:
            self._snapshot = stored
            self._start_handovers(stored)
            self._inbox.mark_uncertain()
            return
        if stored is None and not known.job.live:  # deleted, as ended jobs may be
            self._is_gone = True
            return
        decision = decide_restore(known, stored, max(_now(), known.job.updated_at), self._env)
        again = await self._project(decision, (), is_urgent=True)
        if again.key_taken:
            workflow.logger.error("another job has this job's idempotency key: it can't be restored to the ledger")
            self._is_gone = True
        elif again.ledger is None:
            workflow.logger.warning("the ledger was behind, the job has been restored")
            self._failed_restores = 0
            self._advance(decision)
        else:  # another process was faster
            self._failed_restores = min(self._failed_restores + 1, 6)
            await self._unless_cancelled(workflow.sleep(2.0**self._failed_restores))
            self._must_compare = True

    def _start_handovers(self, snapshot: JobSnapshot) -> None:
        """Start the hand-overs that were decided before, perhaps in a lost task, and may not have been made."""
        for step in (snapshot.steps[step_id] for step_id in snapshot.job.active):
            attempt, routing = step.attempt, step.attempt.routing
            if step.status is StepStatus.DISPATCHING and not attempt.held:
                where = topic(self._args.defaults.topic_layout, routing.resolved_mode, routing.lane)
                self._handovers.start(
                    HandoverRequest(
                        step.job_id, step.step_id, attempt.attempt_no, attempt.lease_id, step.service, where
                    )
                )

    # Time

    def _has_work(self) -> bool:
        now = _now()
        return (
            self._inbox.has_work or self._must_compare or (is_due(self._job.job, now) and now >= self._decide_again_at)
        )

    def _is_woken(self) -> bool:
        if self._has_work() or self._wants_timer():
            return True
        return self._can_end() or self._can_continue_as_new()

    def _due_at(self) -> Instant | None:
        job = self._job.job
        if not job.live or job.due_at is None or job.due_at >= NEVER:
            return None
        return max(job.due_at, self._decide_again_at)

    def _wants_timer(self) -> bool:
        """Return whether to set a timer. One that fires too early costs less than replacing it each time."""
        due_at = self._due_at()
        return due_at is not None and (self._timer_at is None or self._timer_at > due_at)

    def _set_timer(self) -> None:
        due_at = self._due_at()
        if due_at is None or not self._wants_timer():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(due_at, _now() + MAX_TIMER_MS)
        self._timer = asyncio.create_task(self._run_timer(self._timer_at))

    async def _run_timer(self, at: Instant) -> None:
        await workflow.sleep(max(1, at - _now()) / 1000)
        self._timer_at = self._timer = None

    def _can_continue_as_new(self) -> bool:
        """Return whether to continue as new: the history is large, and nothing is under way that would be lost."""
        return workflow.info().is_continue_as_new_suggested() and not self._is_busy()

    # The end

    def _is_busy(self) -> bool:
        return self._handovers.under_way or self._early.awaits_signals or not workflow.all_handlers_finished()

    def _can_end(self) -> bool:
        """Return whether the workflow may end. With signals undelivered, Temporal would discard its last task."""
        return not self._job.job.live and not self._is_busy()

    def _show_state(self) -> None:
        """Update the search attribute if the state has changed: each update costs an event."""
        state = state_of(self._job.job.status)
        if self._args.searchable and state != self._shown_state:
            self._shown_state = state
            workflow.upsert_search_attributes([STATE.value_set(state)])

    def _result(self) -> str:
        job = self._job.job
        if job.status is JobStatus.FAILED_FINAL:
            message = f"{job.error.code}: {job.error.message}" if job.error else "the job failed"
            raise ApplicationError(message, type=str(job.status), non_retryable=True)
        return str(job.status)


def _to_snapshot(loaded: LoadedJob) -> JobSnapshot | None:
    if loaded.job is None or loaded.protocol is None:
        return None
    asked = None if loaded.asked is None else frozenset(loaded.asked)
    return JobSnapshot(loaded.job, loaded.protocol, {step.step_id: step for step in loaded.steps}, asked)


def _is_committed(result: ProjectionResult) -> bool:
    refused = result.already_recorded or result.ledger is not None or result.downtime_end
    return not refused and result.limit_reached is None


def _answer(batch: Sequence[PendingInput], answer: ActResult) -> None:
    for pending in batch:
        if pending.answer is not None and not pending.answer.done():
            pending.answer.set_result(answer)


def _now() -> Instant:
    """Return the workflow's time; within a task, it advances only with local activities."""
    return round(workflow.now().timestamp() * 1000)


def _is_repeated(decision: Decision) -> bool:
    """Return whether the decision records a callback without effect, which may have been recorded before."""
    replies = (reply for reply in decision.replies if isinstance(reply, CallbackReply))
    return any(reply.disposition is not Disposition.APPLIED for reply in replies)
