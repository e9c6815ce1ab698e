"""What services have before them, for those who decide how many replicas run. Read from counters, never counted.

Only the oldest is looked for, and only so far: see `Oldest`.
"""

from collections.abc import Iterable, Mapping

from lucius.contract import ServiceBacklog
from lucius.core.counters import PENDING, UNACKED, counters_of, pending_by_lane, unacked_by_service
from lucius.core.model import Instant
from lucius.ports.ledger import Oldest, Reader
from lucius.service.timestamps import timestamp


async def backlog_of(reader: Reader, service: str, now: Instant) -> ServiceBacklog:
    """Nothing is known of a service that has nothing to do: it has a backlog of 0, whether it exists or not."""
    counters, oldest = await reader.counters(*counters_of(service)), await reader.backlog(now, service)
    (found,) = _backlogs(counters, oldest, (service,))
    return found


async def every_backlog(reader: Reader, now: Instant) -> list[ServiceBacklog]:
    counters, oldest = await reader.counters(UNACKED, PENDING), await reader.backlog(now)
    return _backlogs(counters, oldest, None)


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
