"""What services have before them, for those who decide how many replicas run. Read from counters, never counted."""

from lucius.contract import ServiceBacklog
from lucius.core.counters import pending_by_lane, unacked_by_service
from lucius.ports.ledger import Reader


async def backlog_of(reader: Reader, service: str) -> ServiceBacklog:
    """Nothing is known of a service that has nothing to do: it has a backlog of 0, whether it exists or not."""
    counters = await reader.counters()
    return _backlog(service, pending_by_lane(counters), unacked_by_service(counters))


async def every_backlog(reader: Reader) -> list[ServiceBacklog]:
    counters = await reader.counters()
    pending, unacked = pending_by_lane(counters), unacked_by_service(counters)
    return [_backlog(service, pending, unacked) for service in sorted({*pending, *unacked})]


def _backlog(service: str, pending: dict[str, dict[int, int]], unacked: dict[str, int]) -> ServiceBacklog:
    lanes = pending.get(service, {})
    return ServiceBacklog(
        service=service,
        pending=sum(lanes.values()),
        unacked=unacked.get(service, 0),
        lanes={str(lane): n for lane, n in sorted(lanes.items())},
    )
