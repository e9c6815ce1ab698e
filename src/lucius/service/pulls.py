"""Who waits for rows of a service: woken when one is there, or given one by the very commit that makes it."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import structlog
from msgspec import Struct, field

from lucius.core.decision import Decision
from lucius.core.model import OutboxRow

log = structlog.get_logger(__name__)

MOST_KEPT = 1_000


class Given(Struct, frozen=True):
    """A row that was handed over by the decision that made it."""

    row: OutboxRow
    decision: Decision


class Pull(Struct, eq=False):
    """Somebody who waits. `room` is how many rows can be given to him; without any, he is only woken.

    `gone` is done once he no longer listens, and an `abandoned` pull was cut off: what he is given then others get.
    """

    lanes: frozenset[int] | None = None
    room: int = 0
    gone: asyncio.Future[Any] | None = None
    promised: Counter[str] = field(default_factory=Counter)
    """How many rows of each tenant will be his if the commits under way become durable."""
    given: list[Given] = field(default_factory=list)
    rung: bool = False
    abandoned: bool = False
    woken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left(self) -> int:
        return self.room - self.promised.total() - len(self.given)

    def is_gone(self) -> bool:
        return self.abandoned or (self.gone is not None and self.gone.done())

    def waits(self) -> bool:
        return not self.woken.done() and not self.is_gone()

    def wants(self, lane: int) -> bool:
        return not self.woken.done() and self.takes(lane)

    def takes(self, lane: int) -> bool:
        return not self.is_gone() and (self.lanes is None or lane in self.lanes)

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Promise(Struct, frozen=True):
    """That a row will be given to a pull. Kept or withdrawn, but one of the two, once."""

    pulls: "Pulls"
    pull: Pull
    row: OutboxRow

    def keep(self, decision: Decision) -> None:
        given = Given(self.row, decision)
        if self.pull.abandoned:
            self.pulls.give(given)
        else:
            self.pull.given.append(given)
        self._settle()

    def withdraw(self) -> None:
        self._settle()

    def _settle(self) -> None:
        self.pull.promised[self.row.tenant_id] -= 1
        if self.pull.given:
            self.pull.wake()
        if not self.pull.promised.total():
            self.pull.settled.set()


class Pulls:
    def __init__(self) -> None:
        self._waiting: dict[str, list[Pull]] = {}
        self._arrivals: Counter[str] = Counter()
        self._kept: dict[str, list[Given]] = {}
        self.closed = False

    def arrivals(self, service: str) -> int:
        """Grows whenever there may be something to pull. Read it before looking, and nothing slips in between."""
        return self._arrivals[service]

    def awaits(self, service: str, lane: int) -> bool:
        """Whether a row like this would be taken here at once."""
        return any(pull.wants(lane) and (not pull.room or pull.left) for pull in self._waiting.get(service, ()))

    def wake_one(self, service: str, lane: int) -> None:
        """One new row needs one pull: waking all of them would make each look in vain.

        Rather one that looks at once than one that has first to wait for what it was promised.
        """
        self._arrivals[service] += 1
        wanting = [pull for pull in self._waiting.get(service, ()) if pull.wants(lane)]
        for pull in sorted(wanting, key=_promised)[:1]:
            pull.rung = True
            pull.wake()

    def wake_all(self, service: str) -> None:
        self._arrivals[service] += 1
        for pull in self._waiting.get(service, ()):
            if pull.waits():
                pull.rung = True
                pull.wake()

    def room(self, service: str, tenant_id: str) -> int:
        """How many rows of a tenant, of whatever lane, can be given to those who wait.

        A tenant who comes with many at once gets half of the room: the rest of them wait in the outbox, where tenants
        take turns.
        """
        takers = list(self._takers(service))
        share = (sum(pull.room for pull in takers) + 1) // 2 - sum(pull.promised[tenant_id] for pull in takers)
        return max(0, min(share, sum(pull.left for pull in takers)))

    def promise(self, rows: Iterable[OutboxRow]) -> list[Promise]:
        """Each to whom the fewest are promised, so that services share the work. There must be room."""
        promises: list[Promise] = []
        for row in rows:
            pull = min((pull for pull in self._takers(row.service) if pull.left), key=_promised, default=None)
            if pull is None:
                for promise in promises:
                    promise.withdraw()
                raise RuntimeError(f"nobody of {row.service} has room for what was decided for it")
            pull.promised[row.tenant_id] += 1
            pull.settled.clear()
            promises.append(Promise(self, pull, row))
        return promises

    def give(self, given: Given) -> None:
        """What is handed over already, to somebody who waits or else to who comes next."""
        waiting = self._waiting.get(given.row.service, ())
        pull = next((pull for pull in waiting if pull.takes(given.row.lane) and pull.left > 0), None)
        if pull is None:
            self.keep(given)
        else:
            pull.given.append(given)
            pull.wake()

    def keep(self, given: Given) -> None:
        """For who comes next, or looks again. In memory only: should we end before, it has cost its attempt."""
        kept = self._kept.setdefault(given.row.service, [])
        kept.append(given)
        if len(kept) > MOST_KEPT:
            lost = kept.pop(0).row
            log.error("a directive was handed over and nobody came for it", job_id=lost.job_id, step_id=lost.step_id)
        self.wake_one(given.row.service, given.row.lane)

    def take_kept(self, service: str, limit: int, lanes: frozenset[int] | None) -> list[Given]:
        kept = self._kept.pop(service, None)
        if kept is None:
            return []
        taken = [given for given in kept if lanes is None or given.row.lane in lanes][:limit]
        names = {given.row.outbox_id for given in taken}
        if rest := [given for given in kept if given.row.outbox_id not in names]:
            self._kept[service] = rest
        return taken

    def _takers(self, service: str) -> Iterator[Pull]:
        return (pull for pull in self._waiting.get(service, ()) if pull.lanes is None and pull.waits())

    async def wait(self, service: str, pull: Pull, seconds: float, seen: int) -> bool:
        """True when a row may have become ready since `seen` arrivals, or was given to the pull.

        False when the time is over, the puller is gone or we are closed. What was promised by then is waited for: it is
        handed over once its commit is durable.
        """
        if self.closed:
            return False
        if self.arrivals(service) != seen:
            return True
        took_it = False
        try:
            await self._stand_in_line(service, pull, seconds)
            if pull.promised.total():
                await pull.settled.wait()
            took_it = pull.rung and not pull.given and not self.closed and not pull.is_gone()
        except asyncio.CancelledError:
            pull.abandoned = True
            raise
        finally:
            if pull.rung and not took_it:
                self.wake_all(service)  # a wake-up that nobody uses must not be lost
            if pull.is_gone():
                self._pass_on(pull)
        return took_it or bool(pull.given)

    def _pass_on(self, pull: Pull) -> None:
        """Handed over to somebody who does not listen any more, it would cost an attempt."""
        given, pull.given = pull.given, []
        for one in given:
            self.give(one)

    async def _stand_in_line(self, service: str, pull: Pull, seconds: float) -> None:
        """From the end of this on, nothing more is promised to the pull."""
        waiting = self._waiting.setdefault(service, [])
        waiting.append(pull)
        try:
            watched = (pull.woken,) if pull.gone is None else (pull.woken, pull.gone)
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.remove(pull)

    def close(self) -> None:
        """Let everyone who waits go."""
        self.closed = True
        for service in self._waiting:
            self.wake_all(service)


def _promised(pull: Pull) -> int:
    return pull.promised.total()
