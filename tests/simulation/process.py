"""Orchestrator processes over one disk: they start, serve, freeze, and die between any two callbacks."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

from lucius.bootstrap.control_plane import ControlPlane
from lucius.ports.errors import ExpectedError
from tests.simulation.clock import LoopClock, Owner, VirtualLoop
from tests.simulation.disk import Connection, Disk
from tests.simulation.faults import Faults
from tests.simulation.invariants import Absence
from tests.simulation.monitor import Monitor

T = TypeVar("T")
Act = Callable[["Process"], Coroutine[Any, Any, T]]


class Unanswered(Exception):
    """The caller does not know what became of its request."""


class Process(Owner):
    """One life of an orchestrator process. Its memory dies with it; the disk stays."""

    def __init__(self, name: str, disk: Disk, started_at: float) -> None:
        super().__init__()
        self.name = name
        self.started_at = started_at
        self.connection = Connection(disk, name)
        self.runtime: ControlPlane
        self.open = False
        self.dead = False
        self.pulling: Counter[str] = Counter()

    def serve(self, act: Act[T], outside: Context) -> asyncio.Future[T]:
        """Start the request and return its answer: Unanswered if the process dies; it runs on if the caller leaves."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(act(self), context=self.context())
        task.add_done_callback(lambda done: _hand_on(done, answer), context=outside)
        return answer


def _hand_on(done: asyncio.Task[T], answer: asyncio.Future[T]) -> None:
    error = Unanswered("the connection broke") if done.cancelled() else done.exception()
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
        answer.exception()  # mark as retrieved: the caller may be gone
    else:
        answer.set_result(done.result())


class Fleet:
    """Slots for processes; records the periods in which none was running."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        disk: Disk,
        faults: Faults,
        monitor: Monitor,
        build: Callable[[Process], ControlPlane],
        gap_ms: int,
    ) -> None:
        self._loop, self._rng, self._disk, self._faults, self._monitor = loop, rng, disk, faults, monitor
        self._build = build
        self._gap_ms = gap_ms
        self._clock = LoopClock(loop)
        self._slots: list[Process | None] = []
        self._lives = 0
        self._away_since: int | None = self._clock.now()
        self.outside = copy_context()

    @property
    def away(self) -> bool:
        return self._away_since is not None

    def start(self, slot: int) -> None:
        while len(self._slots) <= slot:
            self._slots.append(None)
        if self._slots[slot] is not None:
            return
        self._lives += 1
        process = Process(f"lucius-{slot}.{self._lives}", self._disk, self._loop.time())
        self._slots[slot] = process
        self._note(process.name, "starts")
        self._monitor.known.steady.add(process.name)
        self._monitor.known.started[process.name] = self._clock.now()
        context = process.context()
        process.runtime = context.run(self._build, process)
        booting = self._loop.create_task(self._boot(process), context=context)
        booting.add_done_callback(lambda done: self._booted(slot, process, done), context=self.outside)
        self._look_around()

    async def _boot(self, process: Process) -> None:
        await process.runtime.loops.start()
        process.open = True

    def _booted(self, slot: int, process: Process, done: asyncio.Task[None]) -> None:
        if done.cancelled() or process.dead or done.exception() is None:
            return
        error = done.exception()
        self._monitor.require(isinstance(error, ExpectedError), "an engine starts", "", repr(error))
        self._faults.saw("start_failed")
        self.crash(slot, downtime=1.0)

    def crash(self, slot: int, downtime: float) -> None:
        """Kill the process at once, as kill -9 does, and start a new one after `downtime` seconds."""
        process = self._slots[slot] if slot < len(self._slots) else None
        if process is None:
            return
        self._note(process.name, "dies")
        self._monitor.known.steady.discard(process.name)
        self._slots[slot] = None
        process.open, process.dead = False, True
        process.connection.cut()
        for task in process.tasks:
            task.cancel()
        if process.frozen:
            self._loop.thaw(process)
        self._look_around()
        self._loop.call_later(downtime, self.start, slot, context=self.outside)

    def freeze(self, name: str, seconds: float) -> None:
        """Stop the process while the world goes on, as a stopped machine or a stalled disk would."""
        process = next((p for p in self._slots if p is not None and p.name == name), None)
        if process is None or process.frozen:
            return
        self._faults.saw("frozen")
        self._note(process.name, "freezes")
        self._monitor.known.steady.discard(process.name)
        process.frozen = True
        self._look_around()
        self._loop.call_later(seconds, self._thaw, process, context=self.outside)

    def _thaw(self, process: Process) -> None:
        if process.dead or not process.frozen:
            return
        self._note(process.name, "goes on")
        self._loop.thaw(process)
        self._look_around()

    def heal(self) -> None:
        for slot, process in enumerate(self._slots):
            if process is None:
                self.start(slot)
            else:
                self._thaw(process)

    def names(self) -> list[str]:
        return [process.name for process in self._slots if process is not None]

    def pick(self) -> Process | None:
        """Return any process that takes requests, or None; a frozen one takes them too and lets its callers wait."""
        open_ = [process for process in self._slots if process is not None and process.open]
        return self._rng.choice(open_) if open_ else None

    def _look_around(self) -> None:
        """Record when the last process stops running and when one runs again.

        Short freezes of a process that lives on are within its tolerance and count as no absence.
        """
        now = self._clock.now()
        looking = [process for process in self._slots if process is not None and not process.frozen]
        if not looking and self._away_since is None:
            self._away_since = now
        if looking and self._away_since is not None:
            since, self._away_since = self._away_since, None
            newborn = all(process.started_at == self._loop.time() for process in self._slots if process is not None)
            if newborn or now - since > self._gap_ms:
                self._monitor.known.absences.append(Absence(since, now))

    def _note(self, who: str, what: str) -> None:
        self._monitor.trace.note(who, "", what)


class Network:
    """Network to the orchestrators: loses, duplicates, delays and so reorders requests and answers."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, faults: Faults, fleet: Fleet) -> None:
        self._loop, self._rng, self._faults, self._fleet = loop, rng, faults, fleet

    async def call(self, act: Act[T], patience: float = 4.0) -> T:
        """Return the answer of any process; raise Unanswered if none comes, and what the orchestrator refuses with."""
        faults, rng = self._faults, self._rng
        if faults.hit("request_lost"):
            await self._give_up(patience)
        if faults.hit("request_delayed"):
            await asyncio.sleep(rng.uniform(0, 1.5))
        if faults.hit("request_doubled"):
            self._loop.call_later(rng.uniform(0, 2), self._again, act)
        process = self._fleet.pick()
        if process is None:
            await self._give_up(0.05)
            raise AssertionError
        answer = await self._wait(process.serve(act, self._fleet.outside), patience)
        if faults.hit("reply_lost"):
            await self._give_up(patience)
        if faults.hit("reply_delayed"):
            await asyncio.sleep(rng.uniform(0, 1.5))
        return answer

    async def _wait(self, answer: asyncio.Future[T], patience: float) -> T:
        try:
            async with asyncio.timeout(patience):
                return await answer
        except TimeoutError:
            raise Unanswered("no answer in time") from None

    async def _give_up(self, after: float) -> None:
        await asyncio.sleep(after)
        raise Unanswered("no answer")

    def _again(self, act: Act[Any]) -> None:
        process = self._fleet.pick()
        if process is not None:
            process.serve(act, self._fleet.outside)
