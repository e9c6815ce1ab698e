"""Fair order at the outbox: a service's tenants are served in turn, however much each has waiting."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class QueueKey(NamedTuple):
    service: str
    tenant_id: str


class TenantRotation(Generic[T]):
    """A store's data about each tenant's queue at each service; first comes the one that waited longest."""

    def __init__(self) -> None:
        self._rings: dict[str, dict[str, T]] = {}
        self._positions: dict[QueueKey, int] = {}
        """Positions in the rotation, to sort the tenants of one query without walking over all that wait."""
        self._last_position = 0

    def find(self, queue: QueueKey) -> T | None:
        return self._rings.get(queue.service, {}).get(queue.tenant_id)

    def add(self, queue: QueueKey, known: T) -> T:
        """Add a queue as the last in the rotation and return `known`."""
        self._rings.setdefault(queue.service, {})[queue.tenant_id] = known
        self._move_to_end(queue)
        return known

    def remove(self, queue: QueueKey) -> None:
        ring = self._rings.get(queue.service)
        if ring is not None:
            ring.pop(queue.tenant_id, None)
            self._positions.pop(queue, None)
            if not ring:
                del self._rings[queue.service]

    def mark_served(self, queues: Iterable[QueueKey]) -> None:
        """Move these queues to the end of the rotation, in this order."""
        for queue in reversed(dict.fromkeys(reversed(list(queues)))):
            ring = self._rings.pop(queue.service)
            ring[queue.tenant_id] = ring.pop(queue.tenant_id)
            self._move_to_end(queue)
            self._rings[queue.service] = ring

    def items(self) -> Iterator[tuple[QueueKey, T]]:
        for service, ring in self._rings.items():
            for tenant_id, known in ring.items():
                yield QueueKey(service, tenant_id), known

    def _move_to_end(self, queue: QueueKey) -> None:
        self._last_position += 1
        self._positions[queue] = self._last_position

    def iter_queues(
        self, service: str | None, except_services: Collection[str], tenants: Collection[str] | None = None
    ) -> Iterator[tuple[QueueKey, T]]:
        """Yield queues in turn, one of each service at a time; with `tenants`, only theirs."""
        services = self._rings if service is None else [service]
        rings = [self._ring(name, tenants) for name in services if name in self._rings and name not in except_services]
        while rings:
            for ring in list(rings):
                queue = next(ring, None)
                if queue is None:
                    rings.remove(ring)
                else:
                    yield queue

    def _ring(self, service: str, tenants: Collection[str] | None) -> Iterator[tuple[QueueKey, T]]:
        ring = self._rings[service]
        if tenants is None:
            return ((QueueKey(service, tenant_id), known) for tenant_id, known in ring.items())
        queues = sorted((QueueKey(service, name) for name in tenants if name in ring), key=self._positions.__getitem__)
        return ((queue, ring[queue.tenant_id]) for queue in queues)


def take_round_robin(
    queues: Iterable[QueueKey], limit: int, read_rows: Callable[[QueueKey, int], list[R]]
) -> list[tuple[QueueKey, R]]:
    """Return the first row of each queue, then the second of each, up to the limit.

    `read_rows` returns a queue's first rows, up to a limit. The limit is about what will be used, so that a long
    backlog is not read to find other tenants' rows.
    """
    waiting = iter(queues)
    rows_by_queue: dict[QueueKey, list[R]] = {}
    limits: dict[QueueKey, int] = {}
    while batch := list(islice(waiting, limit - len(rows_by_queue))):
        share = -(-(limit - len(rows_by_queue)) // len(batch))
        for queue in batch:
            if rows := read_rows(queue, share):
                rows_by_queue[queue], limits[queue] = rows, share
    while (lacking := limit - sum(map(len, rows_by_queue.values()))) > 0:
        unsure = [queue for queue, rows in rows_by_queue.items() if len(rows) == limits[queue]]
        if not unsure:
            break
        for queue in unsure:
            limits[queue] += max(limits[queue], -(-lacking // len(unsure)))
            rows_by_queue[queue] = read_rows(queue, limits[queue])
    rounds = range(max(map(len, rows_by_queue.values()), default=0))
    taken = ((queue, rows[n]) for n in rounds for queue, rows in rows_by_queue.items() if n < len(rows))
    return list(islice(taken, limit))
