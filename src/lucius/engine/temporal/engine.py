"""API side of the Temporal engine: changes jobs through the workflows that drive them.

The plain route of a callback or hand-over is: inbox row → signal → decide → project. The first two happen here:

1. `_signal_callback` inserts the message into the ledger's inbox. If this process dies, another one redelivers it
   (`inbox_redelivery.py`).
2. `_reach` signals the job's workflow, and starts one if none runs. Then the sender is answered, from what the ledger
   shows of the attempt.

`workflow.py` has the rest: the workflow decides about the message, and an activity commits the decision to the ledger
and deletes the inbox row: `project`, or `record_attempt_lease` if a directive is to be handed over. The hooks of
`shortcuts.py` do nothing on the plain route.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import structlog
from msgspec.structs import replace

from lucius.core.model.decision import CallbackReply, Decision, Ignored, JobSnapshot, Reply, unchanged
from lucius.core.model.inputs import (
    Ack,
    Adopt,
    Compensate,
    DeadlinePassed,
    Failed,
    HandedOver,
    Heartbeat,
    Input,
    Poisoned,
    Repair,
    Retry,
    RetryHandOver,
    Skip,
    Submit,
    Succeeded,
)
from lucius.core.model.records import Instant, Job, Millis
from lucius.core.model.statuses import Disposition, JobStatus
from lucius.core.protocol.definition import ENGINE_SERVICES
from lucius.engine.temporal.background import Background
from lucius.engine.temporal.messages import (
    ACT_UPDATE,
    JobMessage,
    decode_replies,
    encode_input,
    make_inbox_message,
    make_repeat,
)
from lucius.engine.temporal.pull_handover import PullHandover
from lucius.engine.temporal.repeat_limiter import RepeatLimiter
from lucius.engine.temporal.shortcuts import SignalShortcuts
from lucius.engine.temporal.signal_batcher import SignalBatcher
from lucius.engine.temporal.workflow_client import NoWorkflow, WorkflowClient
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine, EngineHealth, Inputs
from lucius.ports.errors import EngineDown, LimitReached
from lucius.ports.inbox import Inbox, InboxMessage
from lucius.ports.ledger import Ledger
from lucius.ports.readers import JobReader

log = structlog.get_logger(__name__)

TEMPORAL = "temporal"
GRACE_MS: Millis = 5_000
"""Workflows act on their own deadlines and signals; after this long, other processes check whether they did."""
MAX_INSERTED_IDS = 10_000
MAX_STARTS = 3

RevivingInput = Retry | Skip | Compensate | Adopt
EngineInput = DeadlinePassed | Repair | RetryHandOver
CallbackInput = Ack | Heartbeat | Succeeded | Failed | Poisoned
SIGNALS: dict[type[CallbackInput | HandedOver], str] = {
    Succeeded: "step_result",
    Failed: "step_result",
    Poisoned: "step_result",
    Ack: "step_ack",
    Heartbeat: "heartbeat",
    HandedOver: "handed_over",
}
"""Signal name by input type; a batch of several types goes out under the first of these."""


class TemporalEngine:
    """Engine that changes jobs through their workflows. Jobs of other engines, and ended ones, go to `direct`.

    An ended job that is revived, such as by a retry, gets a workflow again. With `refuses_when_down`, no command is
    accepted whose workflow could not be started at once.
    """

    outbox_retry_notice = "nothing is to be done for jobs on Temporal: their workflows hand over again by themselves"

    def __init__(
        self,
        ledger: Ledger,
        jobs: JobReader,
        inbox: Inbox,
        clock: Clock,
        direct: Engine,
        workflows: WorkflowClient,
        shortcuts: SignalShortcuts,
        background: Background,
        *,
        on_repair: Callable[[str], None],
        freed: Callable[[str], None] = lambda counter: None,
        refuses_when_down: bool = False,
    ) -> None:
        """`direct` changes jobs in the ledger. `freed` is called with a counter that may be below its limit again."""
        self._ledger = ledger
        self._inbox = inbox
        self._clock = clock
        self._direct = direct
        self.workflows = workflows
        self.background = background
        self._shortcuts = shortcuts
        self._on_repair = on_repair
        self._refuses_when_down = refuses_when_down
        self._checks, self._requests = RepeatLimiter(), RepeatLimiter(first_ms=60_000)
        self._batcher = SignalBatcher(self._reach)
        self._pull_handover = PullHandover(
            jobs, inbox, clock, evaluate=self._evaluate_fresh, send=self._send_handovers, freed=freed
        )
        self._inserted_ids: dict[str, None] = {}
        """Ids of the latest messages inserted here: the inbox deletes messages once they are read."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, inputs: Sequence[Input]) -> Decision:
        """Commit the job as QUEUED and start its workflow in the background. Raises EngineDown.

        The commit is also the intent to start the workflow: until that has happened, the job is due.
        """
        ours = any(isinstance(one, Submit) and one.engine == TEMPORAL for one in inputs)
        if ours and self._refuses_when_down and self.workflows.down:
            raise EngineDown(f"Temporal: {self.workflows.down}")
        decision = await self._direct.create(inputs)
        if decision.job.engine == TEMPORAL:
            self._in_background(self._start(decision))
        return decision

    async def apply(self, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
        seen: list[tuple[JobSnapshot, tuple[Input, ...]]] = []

        async def noting(snapshot: JobSnapshot) -> Sequence[Input]:
            given = tuple(await inputs(snapshot) if callable(inputs) else inputs)
            seen.append((snapshot, given))
            return given

        if not callable(inputs) and all(isinstance(one, HandedOver) for one in inputs):
            return await self._hand_over(job_id, inputs, step_id)
        only_answers = not callable(inputs) and all(isinstance(one, CallbackInput | EngineInput) for one in inputs)
        evaluated = await self._direct.evaluate(job_id, noting, step_id, fresh=True, only_answers=only_answers)
        snapshot, given = seen[-1]
        if snapshot.job.engine != TEMPORAL:
            return await self._direct.apply(job_id, inputs, step_id)
        if all(isinstance(one, EngineInput) for one in given):
            if not self.workflows.down:
                with suppress(EngineDown, NoWorkflow):  # left to a later check, so that other jobs need not wait
                    await self._check_workflow(snapshot)
                    await self._repair(snapshot, given)
            return unchanged(snapshot, Ignored("the job's workflow handles this"))
        if not snapshot.job.live and not any(isinstance(one, RevivingInput) for one in given):
            return await self._direct.apply(job_id, inputs, step_id)
        if not evaluated.changes:
            return evaluated
        if all(isinstance(one, CallbackInput) for one in given):
            with self._shortcuts.callback_in_flight(job_id):
                return await self._signal_callback(snapshot, evaluated, given, inputs, step_id)
        (request,) = given
        return await self._act(snapshot, evaluated, request)

    async def evaluate(
        self,
        job_id: str,
        inputs: Inputs,
        step_id: str | None = None,
        fresh: bool = False,
        at: Instant | None = None,
        only_answers: bool = False,
    ) -> Decision:
        return await self._direct.evaluate(job_id, inputs, step_id, fresh, at, only_answers)

    async def start(self) -> None:
        await self.background.start()

    async def stop(self, grace: float) -> None:
        """Send what waits for its signal, and let the worker of this process finish for `grace` seconds."""
        self.background.stop_loops()
        await self._shortcuts.close()
        await self._pull_handover.close()
        self._batcher.close()
        for task in self._tasks:
            task.cancel()
        await self.background.stop_worker(grace)

    def health(self) -> EngineHealth:
        return EngineHealth(
            write_refusal=self._direct.health().write_refusal,
            outage=self.workflows.down,
            is_worker_running=self.background.is_worker_running,
            worker_troubles=self.background.worker_troubles(),
        )

    def _repaired(self, what: str, job: Job) -> None:
        self._on_repair("workflow")
        log.warning("drift repaired", what=what, job_id=job.job_id, status=str(job.status))

    async def _start(self, decision: Decision) -> None:
        try:
            snapshot = JobSnapshot(decision.job, decision.protocol, {step.step_id: step for step in decision.steps})
            await self.workflows.start(decision.job, self._shortcuts.preload(snapshot))
        except EngineDown as down:
            log.warning("workflow will be started later", job_id=decision.job.job_id, reason=str(down))

    async def _check_workflow(self, snapshot: JobSnapshot) -> None:
        """Check the workflow of a job that waits to be started, or whose deadline passed a while ago."""
        job, now = snapshot.job, self._clock.now()
        since = job.created_at if job.status is JobStatus.QUEUED else max(job.due_at or 0, job.updated_at)
        if job.live and since + GRACE_MS < now and self._checks.is_due(job.job_id, now):
            await self.ensure_workflow(job)

    async def _repair(self, snapshot: JobSnapshot, given: tuple[Input, ...]) -> None:
        """Make the workflow write missing outbox rows of directives that services pull."""
        for drift in given:
            missing = drift.missing_rows if isinstance(drift, Repair) and not self.workflows.publishes else ()
            steps = [snapshot.steps[step_id] for step_id in missing if step_id in snapshot.steps]
            wanted = tuple(step.step_id for step in steps if step.service not in ENGINE_SERVICES)
            if wanted and snapshot.job.live and self._requests.is_due(f"{snapshot.job.job_id} rows", self._clock.now()):
                await self.workflows.signal(snapshot.job.job_id, "resync", [encode_input(Repair(wanted))])

    async def ensure_workflow(self, job: Job) -> None:
        """Start a workflow for the job if none runs; it continues from the ledger. Raises EngineDown.

        One that runs is made to compare now and then, in case it knows more than the ledger; mostly its worker is down.
        """
        if not await self.workflows.runs(job.job_id):
            await self.workflows.start(job)
            self._repaired("a live job had no workflow", job)
        elif self._requests.is_due(job.job_id, self._clock.now()):
            with suppress(NoWorkflow):
                await self.workflows.signal(job.job_id, "resync", [])

    async def _hand_over(self, job_id: str, given: Sequence[Input], step_id: str | None) -> Decision:
        snapshot = await self._ledger.load(job_id)
        if snapshot is None or snapshot.job.engine != TEMPORAL:
            return await self._direct.apply(job_id, given, step_id)
        return await self._pull_handover.hand_over(
            snapshot, [one for one in given if isinstance(one, HandedOver)], step_id
        )

    async def _send_handovers(self, job_id: str, messages: Sequence[JobMessage]) -> bool:
        return await self._shortcuts.send_handovers(job_id, messages, self._batcher.send)

    async def _evaluate_fresh(self, job_id: str, given: Sequence[Input], step_id: str | None) -> Decision:
        return await self._direct.evaluate(job_id, given, step_id, fresh=True)

    async def _signal_callback(
        self, snapshot: JobSnapshot, evaluated: Decision, given: tuple[Input, ...], inputs: Inputs, step_id: str | None
    ) -> Decision:
        """Insert callbacks into the inbox and signal them to the workflow; return what the ledger's state leads to.

        Raises EngineDown. On return, Temporal has the signal. The decision rests on the ledger, which shows the lease
        as current.
        """
        job_id = snapshot.job.job_id
        are_heartbeats = all(isinstance(one, Heartbeat) for one in given)
        message, is_new = await self._insert(
            make_inbox_message(job_id, given, self._clock.now()), evaluated, are_heartbeats=are_heartbeats
        )
        try:
            messages = [encode_input(one, message.message_id) for one in given]
            reached = await self._shortcuts.send_callback(job_id, messages, self._batcher.send)
        except EngineDown:
            if are_heartbeats or not is_new:  # during an outage, repeats must not pile up
                await self._inbox.delete([message.message_id])
            raise
        if not reached:
            await self._inbox.delete([message.message_id])
            return await self._direct.apply(job_id, inputs, step_id)
        return evaluated if is_new else replace(evaluated, replies=tuple(map(_as_duplicate, evaluated.replies)))

    async def _reach(self, job_id: str, messages: Sequence[JobMessage]) -> bool:
        """Signal the job's workflow, starting one if needed; return False if the job has ended. Raises EngineDown."""
        for _ in range(MAX_STARTS):
            try:
                await self.workflows.signal(
                    job_id, _signal_name(messages), messages, self._shortcuts.run_to_signal(job_id)
                )
            except NoWorkflow:
                fresh = await self._ledger.load(job_id, fresh=True)
                if fresh is None or not fresh.job.live:
                    return False
                await self.workflows.start(fresh.job)
                continue
            self._shortcuts.on_signalled(job_id, messages)
            return True
        raise EngineDown("Temporal: the job's workflow ends as soon as it is started")

    async def _insert(
        self, message: InboxMessage, evaluated: Decision, *, are_heartbeats: bool
    ) -> tuple[InboxMessage, bool]:
        """Insert the message; return it and whether it is new, as far as can be seen. A repeat gets an id of its own.

        A callback without effect may repeat one that had an effect. Messages that were inserted here may have been read
        and deleted from the inbox since.
        """
        if message.message_id not in self._inserted_ids and any(map(_is_applied, evaluated.replies)):
            (is_new,) = await self._inbox.put([message])
            if is_new and message.message_id not in self._inserted_ids:
                if not are_heartbeats:  # no two of those have the same id
                    self._remember(message)
                return message, True
            if is_new:
                await self._inbox.delete([message.message_id])
        again = make_repeat(message)
        await self._inbox.put([again])
        return again, False

    def _remember(self, message: InboxMessage) -> None:
        self._inserted_ids[message.message_id] = None
        while len(self._inserted_ids) > MAX_INSERTED_IDS:
            del self._inserted_ids[next(iter(self._inserted_ids))]

    async def _act(self, snapshot: JobSnapshot, evaluated: Decision, request: Input) -> Decision:
        self._shortcuts.on_update(snapshot.job.job_id)
        answer = await self.workflows.act(snapshot.job, encode_input(request, f"{snapshot.job.job_id}/{ACT_UPDATE}"))
        if answer.limit_reached is not None:
            raise LimitReached(answer.limit_reached.counter, answer.limit_reached.limit)
        return replace(evaluated, replies=decode_replies(answer.replies))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _signal_name(messages: Sequence[JobMessage]) -> str:
    kinds = {message.kind for message in messages}
    return next(signal for kind, signal in SIGNALS.items() if kind.__name__ in kinds)


def _is_applied(reply: Reply) -> bool:
    return isinstance(reply, CallbackReply) and reply.disposition is Disposition.APPLIED


def _as_duplicate(reply: Reply) -> Reply:
    if isinstance(reply, CallbackReply) and _is_applied(reply):
        return replace(reply, disposition=Disposition.DUPLICATE)
    return reply
