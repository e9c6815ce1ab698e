"""Makes the HTTP requests of `external_call` and `notify` steps: the engine is the service of these steps."""

import asyncio
from collections.abc import Callable

import structlog

from lucius.backoff import Backoff
from lucius.core.model.decision import Applied, Decision
from lucius.core.model.inputs import HandedOver, Succeeded
from lucius.core.model.records import Instant, OutboxRow, Step
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import HTTP_SERVICE
from lucius.engine.outbound.host_queue import RequestTarget, Waiting
from lucius.engine.outbound.http_attempt import AttemptResult, HttpAttempt, failed_by
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.errors import LedgerDown, LedgerError
from lucius.ports.http import Caller, Closed, Slot
from lucius.ports.ledger import Ledger
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
HOLD_MS = 60_000  # rows that wait longer for their host are put back
DOUBT_MS = 15_000  # for how long to look up whether a failed commit was made


class StepCalls:
    """The requests of `external_call` and `notify` steps. Rows that wait stay PENDING and use up no attempt."""

    service = HTTP_SERVICE
    hold_ms = patience_ms = HOLD_MS
    takes_postponed = False
    runs_while_paused = False

    def __init__(
        self,
        *,
        ledger: Ledger,
        engine: Engine,
        caller: Caller,
        http_attempt: HttpAttempt,
        clock: Clock,
        jitter: Callable[[], float],
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._caller = caller
        self._http_attempt = http_attempt
        self._clock = clock
        self._jitter = jitter
        self._on_failure = on_failure

    async def target(self, row: OutboxRow) -> RequestTarget | None:
        view = await self._ledger.load(row.job_id, (row.step_id,))
        step = view.steps.get(row.step_id) if view else None
        if step is None or step.request is None or step.attempt.lease_id != row.lease_id:
            return None
        return RequestTarget(self._caller.host(step.request.url), step.request.url)

    async def run(self, one: Waiting, admitted: Slot | Closed) -> bool:
        """Make a call after one commit of hand-over and pick-up: a started call never counts as not started."""
        row = one.row
        taken = await self._take(row)
        if taken is None:
            return False
        step = next(step for step in taken.steps if step.step_id == row.step_id)
        if step.attempt.lease_id != row.lease_id or step.status is not StepStatus.PROCESSING:
            return True  # the same commit ended the attempt: no result is expected
        outcome = await self._outcome(taken, step)
        log.info("call made", job_id=row.job_id, step_id=row.step_id, attempt_no=row.attempt_no, **_log_fields(outcome))
        await self._report(row, outcome, step.attempt.lease_expires_at or 0)
        return True

    async def _outcome(self, taken: Decision, step: Step) -> AttemptResult:
        """Return an outcome in any case: without one, the attempt would wait for its lease to expire."""
        try:
            return await self._http_attempt.outcome(taken, step)
        except Exception as error:
            self._on_failure("calls")
            log.exception("a call failed unexpectedly", job_id=step.job_id, step_id=step.step_id)
            return failed_by(step, error)

    async def _take(self, row: OutboxRow) -> Decision | None:
        """Commit the hand-over; return None if the call must not be made here.

        If the ledger fails, look up whether the commit was made nevertheless. Raises LedgerDown after `DOUBT_MS`.
        """
        began_at, backoff = self._clock.now(), self._backoff()
        try:
            return await self._hand_over(row)
        except LedgerDown as down:
            log.info("outcome of a commit unknown, will be looked up", job_id=row.job_id, reason=str(down))
        ended_at = self._clock.now()
        while True:
            await asyncio.sleep(backoff.pause())
            try:
                return await self._taken_before(row, began_at, ended_at) or await self._hand_over(row)
            except LedgerDown:
                ended_at = self._clock.now()
                if ended_at - began_at >= DOUBT_MS:
                    raise

    async def _hand_over(self, row: OutboxRow) -> Decision | None:
        taken = HandedOver(row.step_id, row.attempt_no, row.lease_id, picked_up=True)
        try:
            decision = await self._engine.apply(row.job_id, (taken,), row.step_id)
        except Rejected as rejected:
            if rejected.code is not RejectCode.JOB_NOT_FOUND:
                raise
            return None
        return decision if isinstance(decision.reply, Applied) else None

    async def _taken_before(self, row: OutboxRow, began_at: Instant, ended_at: Instant) -> Decision | None:
        """Return the hand-over if it was committed between these times; None if not, or if the step must not run twice.

        Another replica may have committed it after this one's hold expired.
        """
        view = await self._ledger.load(row.job_id, (row.step_id,), fresh=True)
        step = view.steps.get(row.step_id) if view else None
        if view is None or step is None or step.attempt.lease_id != row.lease_id:
            return None
        picked_up_at = step.attempt.picked_up_at
        if picked_up_at is None or not began_at <= picked_up_at <= ended_at:
            return None
        spec = view.protocol.step(row.step_id)
        if spec is None or spec.retry_safety == "NOT_SAFE_TO_RETRY":
            return None
        return Decision(job=view.job, replies=(Applied(),), protocol=view.protocol, steps=(step,))

    async def _report(self, row: OutboxRow, outcome: AttemptResult, lease_expires_at: Instant) -> None:
        """Record the outcome; retry until the lease expires, as the call has been made, then raise the error."""
        backoff = self._backoff()
        while True:
            try:
                await self._engine.apply(row.job_id, (outcome,), row.step_id)
            except (LedgerError, Rejected) as error:
                pause = backoff.pause()
                if self._clock.now() + pause * 1000 >= lease_expires_at:
                    raise
                log.warning("could not record a call, will try again", job_id=row.job_id, reason=str(error))
                await asyncio.sleep(pause)
            else:
                return

    def _backoff(self) -> Backoff:
        return Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._jitter)


def _log_fields(outcome: AttemptResult) -> dict[str, str]:
    """Return the fields of an outcome that may be logged."""
    if isinstance(outcome, Succeeded):
        return {"outcome": "SUCCEEDED"}
    return {"outcome": "FAILED", "failure_class": str(outcome.failure_class), "error_code": outcome.error.code}
