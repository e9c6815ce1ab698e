"""The one way to change a job, where workflows drive them: what happens is told to the workflow, which decides.

What is heard is first put into the ledger's inbox: whoever comes after us tells the workflow, should we die in between.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from lucius.core.decision import CallbackReply, Decision, Env, Ignored, JobView, Reply, unchanged
from lucius.core.inputs import (
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
from lucius.core.model import Disposition, Instant, Job, JobStatus, Millis
from lucius.core.protocol import OF_THE_ENGINE
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.bundles import MOST_BYTES, Bundles
from lucius.engine.temporal.given_out import GivenOut
from lucius.engine.temporal.parts import first_part
from lucius.engine.temporal.wire import ACT, CLAIM, Happened, letter_of, pack, packed_letter, repeated, unpacked_replies
from lucius.engine.temporal.workflows import NoAnswer, NoWorkflow, Workflows
from lucius.ports.clock import Clock
from lucius.ports.errors import EngineDown, LimitReached
from lucius.ports.inbox import Inbox, Letter
from lucius.ports.ledger import Ledger, Reader
from lucius.service.jobs import Inputs, Jobs

log = structlog.get_logger(__name__)

TEMPORAL = "temporal"
GRACE_MS = 5_000
"""A workflow minds its own clocks; so long after one has rung, somebody looks whether it is awake."""
CLAIM_MS: Millis = 30_000  # more than it takes to publish
MOST_UNREAD, MOST_PAGES = 200, 500
MOST_REMEMBERED = MOST_UNREAD * MOST_PAGES  # fewer would be forgotten before they are asked for again
MOST_SAID = 10_000
MOST_NAMED, MOST_STARTS = 20, 3
MOST_COMPARED = 5_000
"""Workflows that one look compares with the ledger, each by a read of its own; the next look goes on behind them."""
LONGEST_PAUSE_MS: Millis = 300_000

Reviving = Retry | Skip | Compensate | Adopt
Clockwork = DeadlinePassed | Repair | RetryHandOver
Said = Ack | Heartbeat | Succeeded | Failed | Poisoned
SIGNALS: dict[type[Said | HandedOver], str] = {
    Succeeded: "step_result",
    Failed: "step_result",
    Poisoned: "step_result",
    Ack: "step_ack",
    Heartbeat: "heartbeat",
    HandedOver: "handed_over",
}
"""By what is said; if it is much, the first of these."""


class Repeats:
    """When something may be said again: after a pause that doubles each time."""

    def __init__(self, first_ms: Millis = 5_000) -> None:
        self._first_ms = first_ms
        self._next: dict[str, tuple[Instant, Millis]] = {}

    def is_due(self, name: str, now: Instant, *, mark: bool = True) -> bool:
        """Whether it is time; if so, it counts as said, unless that is to be marked later."""
        at, pause = self._next.get(name, (0, self._first_ms // 2))
        due = now >= at
        if not mark:
            return due
        self._next.pop(name, None)
        self._next[name] = (now + 2 * pause, min(2 * pause, LONGEST_PAUSE_MS)) if due else (at, pause)
        while len(self._next) > MOST_REMEMBERED:
            del self._next[next(iter(self._next))]
        return due


class Store(Ledger, Reader, Inbox, Protocol):
    """All that a job is told, and read from."""


class TemporalJobs(Jobs):
    """Jobs of another engine, and those that have ended, are changed as ever."""

    engines = frozenset({"", TEMPORAL})
    needs_no_retry = "nothing is to be done for jobs on Temporal: their workflows hand over again by themselves"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        env: Env,
        workflows: Workflows,
        ahead: Ahead,
        *,
        on_repair: Callable[[str], None],
        refuses_when_down: bool = False,
    ) -> None:
        """With `refuses_when_down`, no command is accepted that could not be started at once."""
        super().__init__(store, clock, env)
        self._reader: Reader = store
        self._inbox: Inbox = store
        self._workflows = workflows
        self._ahead = ahead
        self._on_repair = on_repair
        self._refuses_when_down = refuses_when_down
        self._told, self._looked, self._asked = Repeats(), Repeats(), Repeats(first_ms=60_000)
        self._bundles = Bundles(self._reach)
        self._given_out = GivenOut(store, clock, weigh=self._weigh_anew, reach=self._bundles.reach, freed=self._freed)
        self._said: dict[str, None] = {}
        """Letters that were put in here, the last of them: the inbox forgets them when they are read."""
        self._running: AsyncIterator[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, inputs: Sequence[Input]) -> Decision:
        """The job is durable as QUEUED, which is also the intent to start its workflow: until it has, it is due."""
        ours = any(isinstance(one, Submit) and one.engine == TEMPORAL for one in inputs)
        if ours and self._refuses_when_down and self._workflows.down:
            raise EngineDown(f"Temporal: {self._workflows.down}")
        decision = await super().create(inputs)
        if decision.job.engine == TEMPORAL:
            self._in_background(self._start(decision))
        return decision

    async def apply(self, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
        seen: list[tuple[JobView, tuple[Input, ...]]] = []

        async def noted(view: JobView) -> Sequence[Input]:
            happened = tuple(await inputs(view) if callable(inputs) else inputs)
            seen.append((view, happened))
            return happened

        if not callable(inputs) and all(isinstance(one, HandedOver) for one in inputs):
            return await self._give_out(job_id, inputs, step_id)
        only_answers = not callable(inputs) and all(isinstance(one, Said | Clockwork) for one in inputs)
        weighed = await self.weigh(job_id, noted, step_id, fresh=True, only_answers=only_answers)
        view, happened = seen[-1]
        if view.job.engine != TEMPORAL:
            return await super().apply(job_id, inputs, step_id)
        if all(isinstance(one, Clockwork) for one in happened):
            if not self._workflows.down:
                with suppress(EngineDown, NoWorkflow):  # then it is for a later look; others must not wait for it
                    await self._see_to(view)
                    await self._repair(view, happened)
            return unchanged(view, Ignored("the job's workflow minds this"))
        if not view.job.live and not any(isinstance(one, Reviving) for one in happened):
            return await super().apply(job_id, inputs, step_id)
        if not weighed.changes:
            return weighed
        if all(isinstance(one, Said) for one in happened):
            with self._ahead.telling(job_id):
                return await self._tell(view, weighed, happened, inputs, step_id)
        (asked,) = happened
        return await self._act(view, weighed, asked)

    async def close(self) -> None:
        await self._given_out.close()
        self._bundles.close()
        for task in self._tasks:
            task.cancel()

    async def read_inbox(self) -> int:
        """Tell what those did not who died after they had put it in, or while Temporal was away. How many there were
        to tell: what was told waits for its workflow, and is told again ever more seldom."""
        now, told = self._clock.now(), 0
        last: Letter | None = None
        for _ in range(MOST_PAGES):
            letters = await self._inbox.unread(now - GRACE_MS, MOST_UNREAD, last)
            due = [letter for letter in letters if self._is_to_be_told(letter, now)]
            for together in _by_job(due):
                await self._try_to_deliver(together)
                for letter in together:
                    self._told.is_due(letter.letter_id, now)
            told += len(due)
            if len(letters) < MOST_UNREAD:
                break
            last = letters[-1]
        return told

    async def compare_all(self) -> int:
        """Workflows that run though the ledger does not know their jobs, or takes them for ended, are told to look.

        What the ledger takes for alive and nobody minds is found by its clock, or by the lack of one. Where very many
        run, it takes several looks to get round.
        """
        told: list[str] = []
        async for job_id in self._next_running():
            view = await self._ledger.load(job_id, fresh=True)
            if view is None or not view.job.live:
                with suppress(NoWorkflow):  # it has just ended, as the ledger says
                    await self._workflows.tell(job_id, "look", [])
                    told.append(job_id)
                    self._on_repair("compared")
        if told:
            log.warning(
                "workflows ran whose jobs the ledger took for ended, and compare now",
                workflows=len(told),
                job_ids=told[:MOST_NAMED],
            )
        return len(told)

    async def _next_running(self) -> AsyncIterator[str]:
        """From the first again if there are no more, or if the last look came to nothing."""
        running, self._running = self._running or self._workflows.running(), None
        for _ in range(MOST_COMPARED):
            job_id = await anext(running, None)
            if job_id is None:
                return
            yield job_id
        self._running = running

    def _repaired(self, what: str, job: Job) -> None:
        self._on_repair("workflow")
        log.warning("drift repaired", what=what, job_id=job.job_id, status=str(job.status))

    def _is_to_be_told(self, letter: Letter, now: Instant) -> bool:
        is_claim = CLAIM in letter.letter_id and letter.at >= now - CLAIM_MS
        return not is_claim and self._told.is_due(letter.letter_id, now, mark=False)

    async def _try_to_deliver(self, letters: Sequence[Letter]) -> None:
        """Those of one job. If they can't be told, that must not keep those behind them from being told. Raises
        EngineDown if none can be."""
        job_id = letters[0].job_id
        try:
            await self._deliver(job_id, letters)
        except (EngineDown, NoWorkflow) as error:
            await self._workflows.check()
            if self._workflows.down:
                raise EngineDown(self._workflows.down) from error
            about = {"letter_id": letters[0].letter_id, "letters": len(letters), "job_id": job_id, "reason": str(error)}
            if isinstance(error, NoAnswer):
                log.info("a letter is told later", **about)
            else:
                log.error("a letter can't be told", **about)

    async def _deliver(self, job_id: str, letters: Sequence[Letter]) -> None:
        view = await self._ledger.load(job_id, fresh=True)
        if view is not None and view.job.live:
            said = [happened for letter in letters for happened in packed_letter(letter)]
            try:
                await self._workflows.tell(job_id, "look", said)
                return
            except NoWorkflow:
                await self._workflows.start(view.job)
                await self._workflows.tell(job_id, "look", said)
                return
        await self._inbox.throw_away([letter.letter_id for letter in letters])

    async def _start(self, decision: Decision) -> None:
        try:
            view = JobView(decision.job, decision.protocol, {step.step_id: step for step in decision.steps})
            await self._workflows.start(decision.job, first_part(view))
        except EngineDown as down:
            log.warning("a workflow is started later", job_id=decision.job.job_id, reason=str(down))

    async def _see_to(self, view: JobView) -> None:
        """A job that waits to be started, or whose clock rang a while ago."""
        job, now = view.job, self._clock.now()
        since = job.created_at if job.status is JobStatus.QUEUED else max(job.due_at or 0, job.updated_at)
        if job.live and since + GRACE_MS < now and self._looked.is_due(job.job_id, now):
            await self.look_after(job)

    async def _repair(self, view: JobView, happened: tuple[Input, ...]) -> None:
        """A directive that services are to pull has no row to be pulled from."""
        for drift in happened:
            missing = drift.missing_rows if isinstance(drift, Repair) and not self._workflows.publishes else ()
            steps = [view.steps[step_id] for step_id in missing if step_id in view.steps]
            wanted = tuple(step.step_id for step in steps if step.service not in OF_THE_ENGINE)
            if wanted and view.job.live and self._asked.is_due(f"{view.job.job_id} rows", self._clock.now()):
                await self._workflows.tell(view.job.job_id, "look", [pack(Repair(wanted))])

    async def look_after(self, job: Job) -> None:
        """Somebody must mind it: its workflow, or one that is started anew and goes on from the ledger.

        One that runs is asked now and then whether it knows more than the ledger; mostly its worker is away.
        """
        if not await self._workflows.runs(job.job_id):
            await self._workflows.start(job)
            self._repaired("a live job had no workflow", job)
        elif self._asked.is_due(job.job_id, self._clock.now()):
            with suppress(NoWorkflow):
                await self._workflows.tell(job.job_id, "look", [])

    async def _give_out(self, job_id: str, happened: Sequence[Input], step_id: str | None) -> Decision:
        view = await self._ledger.load(job_id)
        if view is None or view.job.engine != TEMPORAL:
            return await super().apply(job_id, happened, step_id)
        return await self._given_out.give(view, [one for one in happened if isinstance(one, HandedOver)], step_id)

    async def _weigh_anew(self, job_id: str, happened: Sequence[Input], step_id: str | None) -> Decision:
        return await self.weigh(job_id, happened, step_id, fresh=True)

    def _freed(self, counter: str) -> None:
        if self.hands_out is not None:
            self.hands_out.freed(counter)

    async def _tell(
        self, view: JobView, weighed: Decision, happened: tuple[Input, ...], inputs: Inputs, step_id: str | None
    ) -> Decision:
        """Answered as it would be decided now: the ledger shows the lease as current, and Temporal has the signal."""
        job_id = view.job.job_id
        beats = all(isinstance(one, Heartbeat) for one in happened)
        letter, is_new = await self._put(letter_of(job_id, happened, self._clock.now()), weighed, beats=beats)
        try:
            with self._given_out.telling(job_id) as before:
                said = [*before, *(pack(one, letter.letter_id) for one in happened)]
                reached = await self._bundles.reach(job_id, said)
        except EngineDown:
            if beats or not is_new:  # while nobody hears it, it is not kept as often as it is said
                await self._inbox.throw_away([letter.letter_id])
            raise
        if not reached:
            await self._inbox.throw_away([letter.letter_id])
            return await super().apply(job_id, inputs, step_id)
        return weighed if is_new else replace(weighed, replies=tuple(map(_said_before, weighed.replies)))

    async def _reach(self, job_id: str, said: Sequence[Happened]) -> bool:
        """Its workflow, started anew if need be; False if the job has ended. Raises EngineDown."""
        for _ in range(MOST_STARTS):
            try:
                task = self._ahead.task(job_id)
                await self._workflows.tell(job_id, _signal(said), said, task.run_id if task else "")
            except NoWorkflow:
                fresh = await self._ledger.load(job_id, fresh=True)
                if fresh is None or not fresh.job.live:
                    return False
                await self._workflows.start(fresh.job)
                continue
            if any(happened.kind != HandedOver.__name__ for happened in said):  # that alone is worth no task's time
                self._ahead.told(job_id, said)  # only what Temporal has: a workflow does not end before its signal came
                self._inbox.announce(list(dict.fromkeys(one.letter for one in said)))
            return True
        raise EngineDown("Temporal: the job's workflow ends as soon as it is started")

    async def _put(self, letter: Letter, weighed: Decision, *, beats: bool) -> tuple[Letter, bool]:
        """Into the inbox; and whether it was said for the first time, as far as can be seen. What counts for nothing
        may have been said before, when it did. What was said here and read meanwhile is in the inbox no longer."""
        if letter.letter_id not in self._said and any(map(_is_applied, weighed.replies)):
            (is_new,) = await self._inbox.put([letter])
            if is_new and letter.letter_id not in self._said:
                if not beats:  # no two of those are the same
                    self._remember(letter)
                return letter, True
            if is_new:
                await self._inbox.throw_away([letter.letter_id])
        again = repeated(letter)
        await self._inbox.put([again])
        return again, False

    def _remember(self, letter: Letter) -> None:
        self._said[letter.letter_id] = None
        while len(self._said) > MOST_SAID:
            del self._said[next(iter(self._said))]

    async def _act(self, view: JobView, weighed: Decision, asked: Input) -> Decision:
        self._ahead.told(view.job.job_id, ())
        answer = await self._workflows.act(view.job, pack(asked, f"{view.job.job_id}/{ACT}"))
        if answer.full is not None:
            raise LimitReached(answer.full.counter, answer.full.limit)
        return replace(weighed, replies=unpacked_replies(answer.replies))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _by_job(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    """For one signal each, unless they are too much for one."""
    jobs: dict[str, list[Letter]] = {}
    for letter in letters:
        together = jobs.setdefault(letter.job_id, [])
        if together and sum(len(one.body) for one in together) + len(letter.body) > MOST_BYTES:
            yield together
            together = jobs[letter.job_id] = []
        together.append(letter)
    yield from jobs.values()


def _signal(said: Sequence[Happened]) -> str:
    kinds = {happened.kind for happened in said}
    return next(signal for kind, signal in SIGNALS.items() if kind.__name__ in kinds)


def _is_applied(reply: Reply) -> bool:
    return isinstance(reply, CallbackReply) and reply.disposition is Disposition.APPLIED


def _said_before(reply: Reply) -> Reply:
    if isinstance(reply, CallbackReply) and _is_applied(reply):
        return replace(reply, disposition=Disposition.DUPLICATE)
    return reply
