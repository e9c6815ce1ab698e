"""Waiting pulls of each service: woken when a row is ready, or given a row by the commit that creates it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import structlog
from msgspec import Struct, field

from lucius.core.model.decision import Decision
from lucius.core.model.records import OutboxRow

log = structlog.get_logger(__name__)

MAX_KEPT_DIRECTIVES = 1_000


class DeliverableDirective(Struct, frozen=True):
    """A row that was handed over by the decision that created it."""

    row: OutboxRow
    decision: Decision


class Pull(Struct, eq=False):
    """A waiting pull. `room` is how many rows it can be given; with 0 it is only woken.

    `gone` is done once the client has disconnected. Rows given to an `abandoned` (cancelled) pull go to others.
    """

    lanes: frozenset[int] | None = None
    room: int = 0
    gone: asyncio.Future[Any] | None = None
    tenants: frozenset[str] | None = None
    """Tenants whose rows this pull may receive; None for all.

    What a pull with tenants receives counts towards the dispatch windows of its tenants, not of the service. So it is
    never given a directive that was handed over before, and no capacity of it is reserved.
    """
    reserved: Counter[str] = field(default_factory=Counter)
    """How many rows of each tenant this pull may receive from decisions in progress."""
    given: list[DeliverableDirective] = field(default_factory=list)
    rung: bool = False
    abandoned: bool = False
    woken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left(self) -> int:
        return self.room - self.reserved.total() - len(self.given)

    @property
    def is_bound(self) -> bool:
        return self.tenants is not None

    def is_gone(self) -> bool:
        return self.abandoned or (self.gone is not None and self.gone.done())

    def waits(self) -> bool:
        return not self.woken.done() and not self.is_gone()

    def wants(self, lane: int, tenant_id: str | None) -> bool:
        return not self.woken.done() and self.takes(lane, tenant_id)

    def takes(self, lane: int, tenant_id: str | None) -> bool:
        """Return True if a row of this lane and tenant may be given to this pull. None means an unknown tenant."""
        return not self.is_gone() and (self.lanes is None or lane in self.lanes) and self.serves(tenant_id)

    def serves(self, tenant_id: str | None) -> bool:
        return self.tenants is None or tenant_id is None or tenant_id in self.tenants

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def reserve(self, tenant_id: str) -> None:
        self.reserved[tenant_id] += 1
        self.settled.clear()

    def release(self, tenant_id: str) -> None:
        self.reserved[tenant_id] -= 1
        if self.given:
            self.wake()
        if not self.reserved.total():
            self.settled.set()


class Reservation:
    """Capacity of waiting pulls, held for one decision of a tenant's job.

    A pull with reserved capacity does not return before the reservation is settled: `assign` releases what the decision
    does not use, and each assigned row is then delivered or released, after the commit.
    """

    def __init__(self, pulls: "WaitingPulls", tenant_id: str, held: dict[str, list[Pull]]) -> None:
        """Take over `held`: the pulls of each service with capacity reserved by the caller, one entry per row."""
        self._pulls = pulls
        self._tenant_id = tenant_id
        self._held = held
        self._assigned: list[tuple[OutboxRow, Pull]] = []

    def counts(self) -> dict[str, int]:
        """Return how many rows of each service can be handed over."""
        return {service: len(pulls) for service, pulls in self._held.items()}

    def assign(self, rows: Iterable[OutboxRow]) -> None:
        """Assign the rows to the held pulls, and release the rest."""
        for row in rows:
            self._assigned.append((row, self._held[row.service].pop(0)))
        held, self._held = self._held, {}
        for pull in chain.from_iterable(held.values()):
            pull.release(self._tenant_id)

    def deliver(self, decision: Decision) -> None:
        """Give each assigned row to its pull, or to another one if that pull was cancelled."""
        assigned, self._assigned = self._assigned, []
        for row, pull in assigned:
            given = DeliverableDirective(row, decision)
            if pull.abandoned:
                self._pulls.give(given)
            else:
                pull.given.append(given)
            pull.release(self._tenant_id)

    def release(self) -> None:
        """Release everything that is still held."""
        assigned, self._assigned = self._assigned, []
        for _, pull in assigned:
            pull.release(self._tenant_id)
        self.assign(())


class WaitingPulls:
    """Registry of waiting pulls, and of directives kept for the next pull."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Pull]] = {}
        self._arrivals: Counter[str] = Counter()
        self._kept: dict[str, list[DeliverableDirective]] = {}
        self.closed = False

    @property
    def kept_count(self) -> int:
        """Number of directives that are kept for the next pull."""
        return sum(map(len, self._kept.values()))

    def waiting(self, service: str) -> tuple[Pull, ...]:
        """Return the waiting pulls of a service, the longest waiting first."""
        return tuple(self._waiting.get(service, ()))

    def waiting_counts(self) -> dict[str, int]:
        """Return the number of waiting pulls of each service."""
        return {service: len(pulls) for service, pulls in self._waiting.items()}

    def room(self, service: str) -> int:
        """Return how many more rows could be reserved at waiting pulls for all tenants."""
        return sum(pull.left for pull in self._ready_for(service))

    def arrivals(self, service: str) -> int:
        """Return a counter that grows whenever there may be something to pull; read it before looking for rows."""
        return self._arrivals[service]

    def awaits(self, service: str, lane: int, tenant_id: str, *, is_bound: bool) -> bool:
        """Return True if a waiting pull, with tenants if it `is_bound`, would take such a row at once."""
        waiting = self._waiting.get(service, ())
        return any(
            pull.is_bound is is_bound and pull.wants(lane, tenant_id) and (not pull.room or pull.left)
            for pull in waiting
        )

    def wake_one(self, service: str, lane: int, tenant_id: str | None = None) -> None:
        """Wake one pull for one new row, and one with tenants, since either may be at its cap.

        Waking all of them would make the others query in vain. Prefer a pull with nothing reserved. If the tenant is
        unknown, wake a pull for all tenants, else every pull.
        """
        if tenant_id is not None:
            self.wake_bound(service, lane, tenant_id)
        if not self.wake_unbound(service, lane) and tenant_id is None:
            self.wake_all(service, lambda pull: pull.wants(lane, None))

    def wake_unbound(self, service: str, lane: int) -> bool:
        """Wake one pull for all tenants; return False if there is none."""
        return self._wake_first(service, [pull for pull in self._wanting(service, lane) if not pull.is_bound])

    def wake_bound(self, service: str, lane: int, tenant_id: str) -> bool:
        """Wake one pull with this tenant among its tenants; return False if there is none."""
        return self._wake_first(service, [pull for pull in self._wanting(service, lane, tenant_id) if pull.is_bound])

    def wake_all(self, service: str, wakes: Callable[[Pull], bool] = lambda pull: True) -> None:
        """Wake all pulls that `wakes` selects."""
        self._wake(service, [pull for pull in self._waiting.get(service, ()) if pull.waits() and wakes(pull)])

    def _wanting(self, service: str, lane: int, tenant_id: str | None = None) -> Iterator[Pull]:
        return (pull for pull in self._waiting.get(service, ()) if pull.wants(lane, tenant_id))

    def _wake_first(self, service: str, pulls: list[Pull]) -> bool:
        self._wake(service, [min(pulls, key=_reserved)] if pulls else [])
        return bool(pulls)

    def _wake(self, service: str, pulls: Iterable[Pull]) -> None:
        self._arrivals[service] += 1
        for pull in pulls:
            pull.rung = True
            pull.wake()

    def reserve(self, services: Collection[str], tenant_id: str, max_rows: int) -> Reservation:
        """Reserve capacity for up to `max_rows` rows of each service, spread over the pulls that wait for any row.

        A tenant with many rows at once gets half of the capacity: the others wait in the outbox, where tenants take
        turns.
        """
        held: dict[str, list[Pull]] = {}
        for service in services:
            if pulls := self._reserve_rows(service, tenant_id, max_rows):
                held[service] = pulls
        return Reservation(self, tenant_id, held)

    def _reserve_rows(self, service: str, tenant_id: str, max_rows: int) -> list[Pull]:
        pulls = list(self._ready_for(service))
        if not pulls:
            return []
        share = (sum(pull.room for pull in pulls) + 1) // 2 - sum(pull.reserved[tenant_id] for pull in pulls)
        held: list[Pull] = []
        for _ in range(min(share, max_rows)):
            pull = min((pull for pull in pulls if pull.left > 0), key=_reserved, default=None)
            if pull is None:
                break
            pull.reserve(tenant_id)
            held.append(pull)
        return held

    def give(self, given: DeliverableDirective) -> None:
        """Give a handed-over directive to a waiting pull for all tenants, or keep it for the next one."""
        waiting = self._waiting.get(given.row.service, ())
        row = given.row
        takers = (pull for pull in waiting if not pull.is_bound and pull.takes(row.lane, row.tenant_id))
        pull = next((pull for pull in takers if pull.left > 0), None)
        if pull is None:
            self.keep(given)
        else:
            pull.given.append(given)
            pull.wake()

    def keep(self, given: DeliverableDirective) -> None:
        """Keep a directive for the next pull. In memory only: if the process ends first, it has cost an attempt."""
        kept = self._kept.setdefault(given.row.service, [])
        kept.append(given)
        if len(kept) > MAX_KEPT_DIRECTIVES:
            lost = kept.pop(0).row
            log.error("handed-over directive dropped: no pull took it", job_id=lost.job_id, step_id=lost.step_id)
        self.wake_unbound(given.row.service, given.row.lane)

    def take_kept(self, service: str, limit: int, lanes: frozenset[int] | None) -> list[DeliverableDirective]:
        kept = self._kept.pop(service, None)
        if kept is None:
            return []
        taken = [given for given in kept if lanes is None or given.row.lane in lanes][:limit]
        names = {given.row.outbox_id for given in taken}
        if rest := [given for given in kept if given.row.outbox_id not in names]:
            self._kept[service] = rest
        return taken

    def _ready_for(self, service: str) -> Iterator[Pull]:
        waiting = self._waiting.get(service, ())
        return (pull for pull in waiting if pull.lanes is None and not pull.is_bound and pull.waits())

    async def wait(self, service: str, pull: Pull, seconds: float, seen: int) -> bool:
        """Return True when a row may have become ready since `seen` arrivals, or was given to the pull.

        Return False on timeout, when the client is gone, or on shutdown. Reservations made by then are waited
        for: their rows are handed over once their commit is durable.
        """
        if self.closed:
            return False
        if self.arrivals(service) != seen:
            return True
        took_it = False
        try:
            await self._stand_in_line(service, pull, seconds)
            if pull.reserved.total():
                await pull.settled.wait()
            took_it = pull.rung and not pull.given and not self.closed and not pull.is_gone()
        except asyncio.CancelledError:
            pull.abandoned = True
            raise
        finally:
            if pull.rung and not took_it:
                self.wake_all(service)  # an unused wake-up must not be lost
            if pull.is_gone():
                self._pass_on(pull)
        return took_it or bool(pull.given)

    def _pass_on(self, pull: Pull) -> None:
        """Give the rows of a gone pull to others; undelivered, each would cost an attempt."""
        given, pull.given = pull.given, []
        for one in given:
            self.give(one)

    async def _stand_in_line(self, service: str, pull: Pull, seconds: float) -> None:
        """Wait to be woken, at most `seconds`; afterwards no more capacity of the pull is reserved."""
        waiting = self._waiting.setdefault(service, [])
        waiting.append(pull)
        try:
            watched = (pull.woken,) if pull.gone is None else (pull.woken, pull.gone)
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.remove(pull)

    def close(self) -> None:
        """Release all waiting pulls."""
        self.closed = True
        for service in self._waiting:
            self.wake_all(service)


def _reserved(pull: Pull) -> int:
    return pull.reserved.total()
