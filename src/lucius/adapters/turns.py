"""Whose turn it is at the outbox: a service's tenants are served one after the other, whatever each has waiting."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Taker(NamedTuple):
    service: str
    tenant_id: str


class Turns(Generic[T]):
    """What a store knows of each tenant's rows with each service; whoever waited longest for a turn comes first."""

    def __init__(self) -> None:
        self._rings: dict[str, dict[str, T]] = {}

    def find(self, taker: Taker) -> T | None:
        return self._rings.get(taker.service, {}).get(taker.tenant_id)

    def add(self, taker: Taker, known: T) -> T:
        """Behind all the others."""
        self._rings.setdefault(taker.service, {})[taker.tenant_id] = known
        return known

    def drop(self, taker: Taker) -> None:
        ring = self._rings.get(taker.service)
        if ring is not None:
            ring.pop(taker.tenant_id, None)
            if not ring:
                del self._rings[taker.service]

    def served(self, takers: Iterable[Taker]) -> None:
        """In this order: the next turn of each comes when everybody else had theirs."""
        for taker in reversed(dict.fromkeys(reversed(list(takers)))):
            ring = self._rings.pop(taker.service)
            ring[taker.tenant_id] = ring.pop(taker.tenant_id)
            self._rings[taker.service] = ring

    def items(self) -> Iterator[tuple[Taker, T]]:
        for service, ring in self._rings.items():
            for tenant_id, known in ring.items():
                yield Taker(service, tenant_id), known

    def takers(self, service: str | None, except_services: Collection[str]) -> Iterator[tuple[Taker, T]]:
        """In turn, one of each service at a time."""
        services = self._rings if service is None else [service]
        rings = [self._ring(name) for name in services if name in self._rings and name not in except_services]
        while rings:
            for ring in list(rings):
                taker = next(ring, None)
                if taker is None:
                    rings.remove(ring)
                else:
                    yield taker

    def _ring(self, service: str) -> Iterator[tuple[Taker, T]]:
        return ((Taker(service, tenant_id), known) for tenant_id, known in self._rings[service].items())


def deal(takers: Iterable[Taker], limit: int, look: Callable[[Taker, int], list[R]]) -> list[tuple[Taker, R]]:
    """The first row of each taker, then the second of each, up to the limit.

    `look` answers a taker's first rows, as many as asked for. It is asked for about as many as will be used, so that a
    long backlog is never read to find what stands beside it.
    """
    waiting = iter(takers)
    hands: dict[Taker, list[R]] = {}
    asked: dict[Taker, int] = {}
    while batch := list(islice(waiting, limit - len(hands))):
        share = -(-(limit - len(hands)) // len(batch))
        for taker in batch:
            if rows := look(taker, share):
                hands[taker], asked[taker] = rows, share
    while (lacking := limit - sum(map(len, hands.values()))) > 0:
        unsure = [taker for taker, rows in hands.items() if len(rows) == asked[taker]]
        if not unsure:
            break
        for taker in unsure:
            asked[taker] += max(asked[taker], -(-lacking // len(unsure)))
            hands[taker] = look(taker, asked[taker])
    rounds = range(max(map(len, hands.values()), default=0))
    dealt = ((taker, rows[n]) for n in rounds for taker, rows in hands.items() if n < len(rows))
    return list(islice(dealt, limit))
