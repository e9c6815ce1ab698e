"""Virtual time: an event loop that never sleeps, runs ready callbacks in a seeded order, and can freeze processes.

Nothing here does I/O. With nothing ready, the clock jumps to the next timer: an hour costs only what happens in it.
"""

import asyncio
import functools
import heapq
import random
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, ParamSpec

from lucius.core.model.records import Instant

EPOCH_MS: Instant = 1_750_000_000_000
PRUNE_AT = 256

Fixtures = ParamSpec("Fixtures")


class Owner:
    """All tasks of one simulated process, which freeze and die together."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.frozen = False
        self.held: list[Handle] = []

    def context(self) -> Context:
        """Return a context in which every task started belongs to this owner."""
        context = copy_context()
        context.run(OWNER.set, self)
        return context


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class OutOfSteps(RuntimeError):
    """The simulation loops without time passing, or has nothing left to do."""


class VirtualLoop(asyncio.BaseEventLoop):
    _ready: deque[Handle]
    _scheduled: list[TimerHandle]
    _stopping: bool

    def __init__(self, rng: random.Random, *, shuffle: bool, max_steps: int) -> None:
        super().__init__()
        self.steps = 0
        self._now = 0.0
        self._rng = rng
        self._shuffle = shuffle
        self._max_steps = max_steps
        self._holding: dict[Owner, None] = {}
        self._traps: list[tuple[int, Callable[[], None]]] = []

    def time(self) -> float:
        return self._now

    def after_steps(self, steps: int, act: Callable[[], None]) -> None:
        """Call `act` between two callbacks, `steps` callbacks from now, in the middle of ongoing work."""
        self._traps.append((self.steps + steps, act))
        self._traps.sort(key=lambda trap: trap[0])

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        owner = context.get(OWNER) if context is not None else OWNER.get()
        if owner is not None:
            if len(owner.tasks) >= PRUNE_AT:
                owner.tasks = [known for known in owner.tasks if not known.done()]
            owner.tasks.append(task)
        return task

    def drain(self) -> None:
        """Cancel every task and run the loop until all have ended; thaw frozen owners first."""
        self._max_steps = self.steps + 1_000_000
        self._traps.clear()
        for owner in self._holding:
            self.thaw(owner)
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        ended = asyncio.gather(*tasks, return_exceptions=True) if tasks else None
        while ended is not None and not ended.done():
            with suppress(RuntimeError):  # a late stop() ends the loop too early
                self.run_until_complete(ended)

    def thaw(self, owner: Owner) -> None:
        owner.frozen = False
        self._ready.extend(owner.held)
        owner.held.clear()

    def _run_once(self) -> None:
        """Run ready callbacks; written out in full because most of a simulation's time is spent here."""
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            self._jump()
        while ready and not self._stopping:
            if self._shuffle and len(ready) > 1:
                chosen = int(self._rng.random() * len(ready))
                ready[0], ready[chosen] = ready[chosen], ready[0]
            handle = ready.popleft()
            if not handle._cancelled:
                self._run_one(handle)
            if scheduled and scheduled[0]._when <= self._now:  # type: ignore[attr-defined]
                self._collect_due()

    def _run_one(self, handle: Handle) -> None:
        owner: Owner | None = handle._context.get(OWNER)  # type: ignore[attr-defined]
        if owner is not None and owner.frozen:
            owner.held.append(handle)
            self._holding[owner] = None
            return
        self.steps += 1
        if self.steps > self._max_steps:
            raise OutOfSteps(f"more than {self._max_steps} steps")
        handle._run()
        while self._traps and self._traps[0][0] <= self.steps:
            self._traps.pop(0)[1]()

    def _jump(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if not self._scheduled:
            raise OutOfSteps("nothing is left to do")
        self._now = max(self._now, self._scheduled[0].when())
        self._collect_due()

    def _collect_due(self) -> None:
        while self._scheduled and self._scheduled[0].when() <= self._now:
            handle = heapq.heappop(self._scheduled)
            if not handle.cancelled():
                self._ready.append(handle)


class LoopClock:
    """Clock port over the loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> Instant:
        return EPOCH_MS + round(self._loop.time() * 1000)


def in_virtual_time(test: Callable[Fixtures, Coroutine[Any, Any, None]]) -> Callable[Fixtures, None]:
    """Decorate an async test to run in virtual time, which passes only while it waits, however slow the machine is."""

    @functools.wraps(test)
    def run(*args: Fixtures.args, **kwargs: Fixtures.kwargs) -> None:
        loop = VirtualLoop(random.Random(1), shuffle=False, max_steps=1_000_000)
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.drain()
            loop.close()

    return run
