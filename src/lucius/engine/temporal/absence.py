"""Whether attempts would time out only because we could not be spoken to.

A workflow's clock rings in time, though the ledger, Temporal or all of us were away until a moment ago and services
spoke to a closed door. The core knows what that excuses; it is asked before a time-out is written down.

A job has Temporal's time, and an absence ours. What both have in common is how long ago something was.
"""

from collections.abc import Callable, Iterable

from lucius.core.decision import EndedAttempt
from lucius.core.inputs import DeadlinePassed
from lucius.core.model import TIMED_OUT, Instant, Millis, Step
from lucius.engine.temporal.wire import Projection
from lucius.ports.clock import Clock
from lucius.ports.peers import Presence
from lucius.service.jobs import Jobs

AWAY_MS = 5_000


class Absence:
    """`back_at` is when Temporal could be reached again after it could not."""

    def __init__(self, jobs: Jobs, presence: Presence, clock: Clock, back_at: Callable[[], Instant]) -> None:
        self._jobs = jobs
        self._presence = presence
        self._clock = clock
        self._back_at = back_at

    async def excuses(self, projection: Projection, late_ms: Millis = 0) -> Instant:
        """Until when we were away, if that is why attempts would end by it; else 0. `late_ms` is for how long it could
        not be written down."""
        job = projection.job
        ended = _timed_out(projection.steps, projection.attempts, job.updated_at)
        if not ended:
            return 0
        now = job.updated_at + late_ms
        until = now - await self._back_for() if late_ms <= AWAY_MS else now
        known = await self._jobs.weigh(job.job_id, (DeadlinePassed(until),), fresh=True, at=now)
        if known.job.version - known.changes != job.version - 1:
            return 0  # it is written down already, or can't be: the ledger's guard finds out which
        return 0 if ended <= _timed_out(known.steps, known.attempts, known.job.updated_at) else until

    async def _back_for(self) -> Millis:
        now = self._clock.now()
        return max(0, now - max(await self._presence.at_work(now, AWAY_MS), self._back_at()))


def _timed_out(steps: Iterable[Step], attempts: Iterable[EndedAttempt], at: Instant) -> set[str]:
    """The leases of attempts that ended then."""
    ended = [*(step.attempt for step in steps), *(ended.attempt for ended in attempts)]
    return {one.lease_id for one in ended if one.outcome in TIMED_OUT and one.ended_at == at}
