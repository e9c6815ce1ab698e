"""Spares attempts that would time out only because services could not reach the control plane.

A workflow's timer fires on time even if the ledger, Temporal or every API process was down until a moment ago and
callbacks were refused. Before a time-out is committed, the core is asked which attempts would still time out once the
downtime is taken into account.

Jobs use Temporal's clock, downtimes this process's clock; the two are only compared by elapsed time.
"""

from collections.abc import Callable, Iterable

from lucius.core.model.decision import EndedAttempt
from lucius.core.model.inputs import DeadlinePassed
from lucius.core.model.records import Instant, Millis, Step
from lucius.core.model.statuses import TIMED_OUT
from lucius.engine.temporal.messages import Projection
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.peers import EngineLiveness

AWAY_MS = 5_000


class DowntimeGrace:
    """Finds time-outs caused by downtime. `back_at` returns when Temporal became reachable again."""

    def __init__(self, engine: Engine, liveness: EngineLiveness, clock: Clock, back_at: Callable[[], Instant]) -> None:
        self._engine = engine
        self._liveness = liveness
        self._clock = clock
        self._back_at = back_at

    async def downtime_end(self, projection: Projection, late_ms: Millis = 0) -> Instant:
        """Return the end of the downtime that causes time-outs in the projection; 0 if none does.

        `late_ms` is for how long the projection could not be committed.
        """
        job = projection.job
        ended = _timed_out(projection.steps, projection.attempts, job.updated_at)
        if not ended:
            return 0
        now = job.updated_at + late_ms
        until = now - await self._back_for() if late_ms <= AWAY_MS else now
        known = await self._engine.evaluate(job.job_id, (DeadlinePassed(until),), fresh=True, at=now)
        if known.job.version - known.changes != job.version - 1:
            return 0  # committed already, or can't be: the version guard of the commit tells which
        return 0 if ended <= _timed_out(known.steps, known.attempts, known.job.updated_at) else until

    async def _back_for(self) -> Millis:
        now = self._clock.now()
        return max(0, now - max(await self._liveness.working_since(now, AWAY_MS), self._back_at()))


def _timed_out(steps: Iterable[Step], attempts: Iterable[EndedAttempt], at: Instant) -> set[str]:
    """Return the leases of attempts that timed out at `at`."""
    ended = [*(step.attempt for step in steps), *(ended.attempt for ended in attempts)]
    return {one.lease_id for one in ended if one.outcome in TIMED_OUT and one.ended_at == at}
