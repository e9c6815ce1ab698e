"""Who waits for rows of a service: woken when one is there, or given one by the very commit that makes it."""

import asyncio
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from lucius.core.decision import Decision
from lucius.core.model import OutboxRow


class Given(Struct, frozen=True):
    """A row that was handed over by the decision that made it."""

    row: OutboxRow
    decision: Decision


class Pull(Struct, eq=False):
    """Somebody who waits. `room` is how many rows can be given to him; without any, he is only woken.

    `gone` is done once he no longer waits: what he is given then nobody will hear of.
    """

    lanes: frozenset[int] | None = None
    room: int = 0
    gone: asyncio.Future[Any] | None = None
    promised: int = 0
    """Rows that will be his if the commit under way becomes durable."""
    given: list[Given] = field(default_factory=list)
    rung: bool = False
    woken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    def is_gone(self) -> bool:
        return self.gone is not None and self.gone.done()

    def waits(self) -> bool:
        return not self.woken.done() and not self.is_gone()

    def wants(self, lane: int) -> bool:
        return self.waits() and (self.lanes is None or lane in self.lanes)

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Promise(Struct, frozen=True):
    """That a row will be given to a pull. Kept or withdrawn, but one of the two, once."""

    pull: Pull
    row: OutboxRow

    def keep(self, decision: Decision) -> None:
        self.pull.given.append(Given(self.row, decision))
        self._settle()

    def withdraw(self) -> None:
        self._settle()

    def _settle(self) -> None:
        self.pull.promised -= 1
        if self.pull.given:
            self.pull.wake()
        if not self.pull.promised:
            self.pull.settled.set()


class Pulls:
    def __init__(self) -> None:
        self._waiting: dict[str, list[Pull]] = {}
        self._arrivals: dict[str, int] = {}
        self.closed = False

    def arrivals(self, service: str) -> int:
        """Grows whenever there may be something to pull. Read it before looking, and nothing slips in between."""
        return self._arrivals.get(service, 0)

    def awaits(self, service: str, lane: int) -> bool:
        """Whether a row like this would be taken here at once."""
        return any(pull.wants(lane) for pull in self._waiting.get(service, ()))

    def wake_one(self, service: str, lane: int) -> None:
        """One new row needs one pull: waking all of them would make each look in vain."""
        self._arrivals[service] = self.arrivals(service) + 1
        for pull in self._waiting.get(service, ()):
            if pull.wants(lane):
                pull.rung = True
                pull.wake()
                return

    def wake_all(self, service: str) -> None:
        self._arrivals[service] = self.arrivals(service) + 1
        for pull in self._waiting.get(service, ()):
            if pull.waits():
                pull.rung = True
                pull.wake()

    def room(self, service: str) -> int:
        """How many rows, of whatever lane, can be given to those who wait."""
        return sum(pull.room - pull.promised for pull in self._takers(service))

    def promise(self, row: OutboxRow) -> Promise:
        """To whom the fewest are promised, so that services share the work. There must be room."""
        pull = min((pull for pull in self._takers(row.service) if pull.promised < pull.room), key=_promised)
        pull.promised += 1
        pull.settled.clear()
        return Promise(pull, row)

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
            if pull.promised:
                await pull.settled.wait()
            took_it = pull.rung and not pull.given and not self.closed and not pull.is_gone()
        finally:
            if pull.rung and not took_it:
                self.wake_all(service)  # a wake-up that nobody uses must not be lost
        return took_it or bool(pull.given)

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
    return pull.promised
