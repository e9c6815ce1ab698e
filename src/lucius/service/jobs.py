"""The one way to change a job: load, decide, commit; again if somebody else was faster."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from lucius.core.decide import Takers, answer_all, decide_all, unacked_counter
from lucius.core.decision import Decision, Env, JobView, MissingSteps
from lucius.core.inputs import Input, Taker
from lucius.core.model import Instant, Job, Millis
from lucius.ports.clock import Clock
from lucius.ports.errors import AlreadyAccepted, ForeignEngine, LedgerFull, LimitReached, VersionConflict
from lucius.ports.ledger import Ledger
from lucius.service.errors import RejectCode, Rejected
from lucius.service.pulls import Promise
from lucius.service.uncut import Uncut

Inputs = Sequence[Input] | Callable[[JobView], Awaitable[Sequence[Input]]]
"""What happens to a job, or how to tell from the job as it was loaded: then both are as old as each other."""

SURELY_REFUSED = (VersionConflict, LimitReached, AlreadyAccepted, LedgerFull)
"""With any other failure of a commit nobody knows whether it is durable."""

MAX_CONFLICTS = 20
REFUSED_LATELY_MS: Millis = 15_000
MAX_LOADS = 100  # each finds at least one more step, and a decision touches few


class HandsOut(Protocol):
    """Knows the services that wait for directives."""

    def taker(self, service: str, tenant_id: str) -> Taker | None:
        """Who of a service can be given some of a tenant at this moment."""

    def promise(self, decision: Decision) -> list[Promise]:
        """What the decision gives, once it is durable. To be asked in the same turn of the loop as `taker`."""

    def freed(self, counter: str) -> None:
        """Less may be on its way than was when somebody found a limit reached."""

    def doubt(self, decision: Decision) -> None:
        """It may be durable or not, so what it gives may have been handed over."""


class _Turn:
    __slots__ = ("lock", "takers")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.takers = 0


class Jobs:
    """Applies inputs to jobs. Inputs for one job take turns here; across replicas the version guards."""

    engines = frozenset({""})
    """Whose jobs can be changed here while they live."""
    needs_no_retry = ""
    """What hands over again by itself, in words for operators."""

    def __init__(self, ledger: Ledger, clock: Clock, env: Env) -> None:
        self._ledger = ledger
        self._clock = clock
        self._env = env
        self.hands_out: HandsOut | None = None
        """Without it, a directive is handed over by a decision of its own, later than the one that asks for it."""
        self._uncut = Uncut()
        self._turns: dict[str, _Turn] = {}
        self._refused: tuple[Instant, LedgerFull] | None = None

    def refused(self) -> LedgerFull | None:
        """Whether the ledger had no space the last time, if that was lately: only who tries again can tell."""
        if self._refused is None or self._clock.now() - self._refused[0] > REFUSED_LATELY_MS:
            return None
        return self._refused[1]

    @property
    def _takers(self) -> Takers | None:
        return self.hands_out.taker if self.hands_out is not None else None

    async def _commit(self, decision: Decision) -> None:
        """To be called in the same turn of the loop in which it was decided: what was promised must still be wanted."""
        if not decision.given or self.hands_out is None:
            await self._write(decision)
            return
        promises = self.hands_out.promise(decision)
        await self._uncut.run(self._write_and_give(decision, promises, self.hands_out))

    async def _write_and_give(self, decision: Decision, promises: list[Promise], hands_out: HandsOut) -> None:
        try:
            await self._write(decision)
        except BaseException as failure:
            for promise in promises:
                promise.withdraw()
            if not isinstance(failure, SURELY_REFUSED):
                hands_out.doubt(decision)
            raise
        for promise in promises:
            promise.keep(decision)

    async def _write(self, decision: Decision) -> None:
        try:
            await self._ledger.commit(decision)
        except LedgerFull as error:
            self._refused = self._clock.now(), error
            raise
        self._refused = None

    async def apply(self, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
        """One durable decision over these inputs. Raises Rejected for an unknown job, LimitReached for a cap."""
        turn = self._turns.get(job_id)
        if turn is None:
            turn = self._turns[job_id] = _Turn()
        turn.takers += 1
        try:
            async with turn.lock:
                return await self._apply(job_id, inputs, step_id)
        finally:
            turn.takers -= 1
            if not turn.takers:
                del self._turns[job_id]

    async def _apply(self, job_id: str, inputs: Inputs, step_id: str | None) -> Decision:
        takers = self._takers
        for conflicts in range(MAX_CONFLICTS):
            decision = await self.weigh(job_id, inputs, step_id, takers=takers)
            if not decision.changes:
                return decision
            try:
                await self._commit(decision)
            except VersionConflict:
                await asyncio.sleep(self._env.jitter() * 0.002 * 2 ** min(conflicts, 6))
                continue
            except LimitReached as reached:
                if not _gives_too_much(decision, reached):
                    raise
                takers = None
                continue
            return decision
        message = f"job {job_id} is changing too fast; try again"
        raise Rejected(RejectCode.LEDGER_CONTENDED, message, retry_after_seconds=1)

    async def weigh(
        self,
        job_id: str,
        inputs: Inputs,
        step_id: str | None = None,
        fresh: bool = False,
        at: Instant | None = None,
        takers: Takers | None = None,
        only_answers: bool = False,
    ) -> Decision:
        """What would be decided as things stand, now or then. Nothing is committed. Raises Rejected for an unknown job.

        No commit guards a decision that changes nothing, so it must not rest on what another process may have changed.
        """
        wanted = {step_id} if step_id is not None else set()
        for _ in range(MAX_LOADS):
            view = await self._ledger.load(job_id, wanted, fresh)
            if view is None:
                raise Rejected(RejectCode.JOB_NOT_FOUND, f"there is no job {job_id}")
            self._require_engine(view.job)
            try:
                happened = await inputs(view) if callable(inputs) else inputs
            except Rejected:
                if not view.cached:
                    raise
                fresh = True
                continue
            try:
                now = self._clock.now() if at is None else at
                now = max(now, view.job.updated_at)  # another process may be some milliseconds ahead
                if only_answers:
                    decision = answer_all(view, happened, now, self._env)
                else:
                    decision = decide_all(view, happened, now, self._env, None if view.job.engine else takers)
            except MissingSteps as missing:
                wanted |= missing.step_ids
                continue
            if decision.changes or not view.cached:
                self._require_engine(decision.job)
                return decision
            fresh = True
        raise RuntimeError(f"a decision about job {job_id} asked for steps {MAX_LOADS} times")

    def _require_engine(self, job: Job) -> None:
        """Nobody here could drive it on, should it live."""
        if job.engine not in self.engines and job.live:
            raise ForeignEngine(f"job {job.job_id} is driven by {job.engine}, which this deployment does not use")

    async def create(self, inputs: Sequence[Input]) -> Decision:
        """The first decision of a job. Raises AlreadyAccepted or LimitReached."""
        decision = decide_all(None, inputs, self._clock.now(), self._env, self._takers)
        try:
            await self._commit(decision)
        except LimitReached as reached:
            if not _gives_too_much(decision, reached):
                raise
            decision = decide_all(None, inputs, self._clock.now(), self._env)
            await self._commit(decision)
        return decision


def _gives_too_much(decision: Decision, reached: LimitReached) -> bool:
    """Whether it would do without what it hands over: a service at its cap gets its directive later."""
    return any(reached.counter == unacked_counter(row.service) for row in decision.given)
