"""Backlog of services, for autoscaling. Read from counters; rows are never counted.

Only the oldest row is searched for, and only within limits: see `Oldest`.
"""

from collections.abc import Iterable, Mapping

from lucius.contract import ServiceBacklog
from lucius.core.model.counters import PENDING, UNACKED, counters_of, pending_by_lane, unacked_by_service
from lucius.ports.clock import Clock
from lucius.ports.readers import JobReader, Oldest
from lucius.usecases.timestamps import timestamp


class Backlogs:
    """Answers how much work waits for a service, over all tenants."""

    def __init__(self, jobs: JobReader, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock

    async def of_service(self, service: str) -> ServiceBacklog:
        """Return a service's backlog; 0 for an unknown service, which can't be told apart from an idle one."""
        counters = await self._jobs.counters(*counters_of(service))
        (found,) = _backlogs(counters, await self._jobs.backlog(self._clock.now(), service), (service,))
        return found

    async def of_every_service(self) -> list[ServiceBacklog]:
        counters = await self._jobs.counters(UNACKED, PENDING)
        return _backlogs(counters, await self._jobs.backlog(self._clock.now()), None)


def _backlogs(
    counters: Mapping[str, int], oldest: Mapping[str, Oldest], services: Iterable[str] | None
) -> list[ServiceBacklog]:
    pending, unacked = pending_by_lane(counters), unacked_by_service(counters)
    return [
        ServiceBacklog(
            service=service,
            pending=sum(pending.get(service, {}).values()),
            unacked=unacked.get(service, 0),
            lanes={str(lane): n for lane, n in sorted(pending.get(service, {}).items())},
            oldest_at=timestamp(oldest[service].at) if service in oldest else None,
            older_possible=service in oldest and oldest[service].older_possible,
        )
        for service in (sorted({*pending, *unacked}) if services is None else services)
    ]
