"""The only way to change a job: load, decide, commit; repeated after a version conflict."""

import asyncio
from collections.abc import Sequence

from lucius.backoff import full_jitter
from lucius.core.decide.decide import answer_all, decide_all, unacked_counter
from lucius.core.model.decision import Decision, Env, JobSnapshot, MissingSteps
from lucius.core.model.inputs import Input, Submit
from lucius.core.model.records import Instant, Job, Millis
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.clock import Clock
from lucius.ports.engine import EngineHealth, Inputs
from lucius.ports.errors import AlreadyAccepted, ForeignEngine, LedgerFull, LimitReached, VersionConflict
from lucius.ports.ledger import Ledger
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.handover.broker import HandoverBroker
from lucius.usecases.handover.shielded_tasks import ShieldedTasks
from lucius.usecases.handover.waiting_pulls import Reservation

SURELY_REFUSED = (VersionConflict, LimitReached, AlreadyAccepted, LedgerFull)
"""Errors after which a commit surely did not happen; after any other error its outcome is unknown."""

MAX_CONFLICTS = 20
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.002, 0.128
REFUSED_LATELY_MS: Millis = 15_000
MAX_LOADS = 100  # each load adds at least one step, and a decision touches few


class _JobLock:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class EmbeddedEngine:
    """Engine that changes jobs directly in the ledger.

    A lock serialises the inputs of one job here; across replicas the version guards.
    """

    outbox_retry_notice = ""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        env: Env,
        broker: HandoverBroker | None = None,
        engines: frozenset[str] = frozenset({""}),
    ) -> None:
        """`engines` are those whose live jobs this deployment can change.

        Without a broker, a directive is handed over by a later decision, not by the one that creates it.
        """
        self._ledger = ledger
        self._clock = clock
        self._env = env
        self._broker = broker
        self._engines = engines
        self._shielded = ShieldedTasks()
        self._locks: dict[str, _JobLock] = {}
        self._refused: tuple[Instant, LedgerFull] | None = None

    async def start(self) -> None:
        """Do nothing: this engine works within the calls to it."""

    async def stop(self, grace: float) -> None:
        """Do nothing: commits under way end by themselves."""

    def health(self) -> EngineHealth:
        """Return LedgerFull as the error of a recent write; only another write can tell if it persists."""
        if self._refused is None or self._clock.now() - self._refused[0] > REFUSED_LATELY_MS:
            return EngineHealth()
        return EngineHealth(write_refusal=self._refused[1])

    async def _commit(self, decision: Decision, reservation: Reservation | None) -> None:
        if reservation is None or not decision.handed_over:
            await self._write(decision)
        else:
            await self._shielded.run(self._write_and_deliver(decision, reservation))

    async def _write_and_deliver(self, decision: Decision, reservation: Reservation) -> None:
        assert self._broker is not None
        try:
            await self._write(decision)
        except BaseException as failure:
            is_uncertain = not isinstance(failure, SURELY_REFUSED)
            self._broker.abandon(reservation, decision, is_uncertain=is_uncertain)
            raise
        reservation.deliver(decision)

    async def _write(self, decision: Decision) -> None:
        try:
            await self._ledger.commit(decision)
        except LedgerFull as error:
            self._refused = self._clock.now(), error
            raise
        self._refused = None

    async def apply(self, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
        """Commit one decision over these inputs and return it; a decision without changes is not committed.

        Raises Rejected for an unknown job or too many conflicts, and LimitReached for a cap.
        """
        held = self._locks.get(job_id)
        if held is None:
            held = self._locks[job_id] = _JobLock()
        held.users += 1
        try:
            async with held.lock:
                return await self._apply(job_id, inputs, step_id)
        finally:
            held.users -= 1
            if not held.users:
                del self._locks[job_id]

    async def _apply(self, job_id: str, inputs: Inputs, step_id: str | None) -> Decision:
        hands_over = True
        for conflicts in range(MAX_CONFLICTS):
            decision, reservation = await self._evaluate(job_id, inputs, step_id, hands_over=hands_over)
            if not decision.changes:
                return decision
            try:
                await self._commit(decision, reservation)
            except VersionConflict:
                pause = full_jitter(conflicts + 1, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._env.jitter())
                await asyncio.sleep(pause)
                continue
            except LimitReached as reached:
                if not _hands_over_too_much(decision, reached):
                    raise
                hands_over = False
                continue
            return decision
        message = f"job {job_id} is changing too fast; try again"
        raise Rejected(RejectCode.LEDGER_CONTENDED, message, retry_after_seconds=1)

    async def evaluate(
        self,
        job_id: str,
        inputs: Inputs,
        step_id: str | None = None,
        fresh: bool = False,
        at: Instant | None = None,
        only_answers: bool = False,
    ) -> Decision:
        """Return the decision that the inputs lead to, now or at the instant `at`. Commits nothing.

        No commit guards a decision without changes, so such a decision is never based on a cached snapshot, which
        another process may have outdated. Raises Rejected for an unknown job.
        """
        decision, _ = await self._evaluate(
            job_id, inputs, step_id, fresh, at, only_answers=only_answers, hands_over=False
        )
        return decision

    async def _evaluate(
        self,
        job_id: str,
        inputs: Inputs,
        step_id: str | None,
        fresh: bool = False,
        at: Instant | None = None,
        *,
        hands_over: bool,
        only_answers: bool = False,
    ) -> tuple[Decision, Reservation | None]:
        """Return the decision as `evaluate`; with `hands_over`, also the reservation for the rows it hands over."""
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
                now = max(now, view.job.updated_at)  # another process's clock may be some milliseconds ahead
                if only_answers:
                    decision, reservation = answer_all(view, happened, now, self._env), None
                else:
                    hands_over = hands_over and view.job.is_ledger_driven
                    decision, reservation = self._decide(view, happened, now, hands_over=hands_over)
            except MissingSteps as missing:
                wanted |= missing.step_ids
                continue
            if decision.changes or not view.cached:
                return decision, reservation
            fresh = True
        raise RuntimeError(f"a decision about job {job_id} asked for steps {MAX_LOADS} times")

    def _require_engine(self, job: Job) -> None:
        """Raise ForeignEngine for a live job that no engine of this deployment could drive."""
        if job.engine not in self._engines and job.live:
            raise ForeignEngine(f"job {job.job_id} is driven by {job.engine}, which this deployment does not use")

    async def create(self, inputs: Sequence[Input]) -> Decision:
        """Commit the first decision of a job and return it. Raises AlreadyAccepted or LimitReached."""
        decision, reservation = self._decide(None, inputs, self._clock.now(), hands_over=True)
        try:
            await self._commit(decision, reservation)
        except LimitReached as reached:
            if not _hands_over_too_much(decision, reached):
                raise
            decision, _ = self._decide(None, inputs, self._clock.now(), hands_over=False)
            await self._write(decision)
        return decision

    def _decide(
        self, view: JobSnapshot | None, inputs: Sequence[Input], now: Instant, *, hands_over: bool
    ) -> tuple[Decision, Reservation | None]:
        """Decide, with `hands_over` also on waiting pulls; the reservation holds what the decision uses of them."""
        if self._broker is None or not hands_over:
            decision = decide_all(view, inputs, now, self._env)
            self._require_engine(decision.job)
            return decision, None
        reservation = self._broker.reserve(*_protocol_and_tenant(view, inputs))
        try:
            decision = decide_all(view, inputs, now, self._env, self._broker.capacity(reservation))
            self._require_engine(decision.job)
        except BaseException:
            reservation.release()
            raise
        reservation.assign(decision.handed_over)
        return decision, reservation


def _protocol_and_tenant(view: JobSnapshot | None, inputs: Sequence[Input]) -> tuple[ProtocolDefinition, str]:
    if view is not None:
        return view.protocol, view.job.tenant_id
    for one in inputs:
        if isinstance(one, Submit):
            return one.protocol, one.command.tenant_id
    raise ValueError("a job that does not exist can only be submitted")


def _hands_over_too_much(decision: Decision, reached: LimitReached) -> bool:
    """Return True if the decision would pass without its hand-overs: a service at its cap gets its directive later."""
    return any(reached.counter == unacked_counter(row.service) for row in decision.handed_over)
