"""`memory:` bus: queues in this process, for tests and simulations. Nothing outlives the process.

Waits only on futures and the loop's own timeouts, so that a loop with a virtual clock can drive it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from lucius.contract import Directive
from lucius.ports.errors import BusDown, MessageRefused

DEFAULT_CAPACITY_MESSAGES = 10_000
LANES = frozenset(range(16))


class MemoryBus:
    """Publisher and source of consumers. Tests set `down` and `refuse` to simulate failures."""

    def __init__(
        self, capacity: int = DEFAULT_CAPACITY_MESSAGES, refuse: Callable[[Directive], bool] | None = None
    ) -> None:
        self.refuse = refuse
        self._capacity = capacity
        self._down = False
        self._queues: dict[str, deque[Directive]] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # a dict keeps the order: simulations must be repeatable

    @property
    def down(self) -> bool:
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self._wake()

    @property
    def waiting_count(self) -> int:
        """Number of waiting pulls."""
        return len(self._waiting)

    async def publish(self, topic: str, directive: Directive) -> None:
        if self._down:
            raise BusDown("the memory bus is down")
        if self.refuse is not None and self.refuse(directive):
            raise MessageRefused(f"{directive.message_id} refused on {topic}")
        queue = self._queues.setdefault(directive.service, deque())
        if len(queue) >= self._capacity:
            raise BusDown(f"the queue of {directive.service} is full")
        queue.append(directive)
        self._wake()

    async def ping(self) -> None:
        if self._down:
            raise BusDown("the memory bus is down")

    async def close(self) -> None:
        self._queues.clear()

    def consumer(self, service: str, lanes: Iterable[int] | None = None) -> "MemoryConsumer":
        return MemoryConsumer(self, service, LANES if lanes is None else frozenset(lanes))

    def backlog(self, service: str) -> int:
        return len(self._queues.get(service, ()))

    def take(self, service: str, lanes: frozenset[int], limit: int) -> list[Directive]:
        """Remove up to `limit` directives of these lanes, oldest first."""
        if self._down:
            raise BusDown("the memory bus is down")
        queue = self._queues.get(service)
        if not queue:
            return []
        taken: list[Directive] = []
        skipped: list[Directive] = []
        while queue and len(taken) < limit:
            directive = queue.popleft()
            (taken if directive.lane in lanes else skipped).append(directive)
        queue.extendleft(reversed(skipped))
        return taken

    async def changed(self) -> None:
        """Wait until something is published or the bus goes down or up."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[news] = None
        try:
            await news
        finally:
            self._waiting.pop(news, None)

    def _wake(self) -> None:
        """Wake all waiting consumers: if one is being cancelled, another takes what it leaves."""
        for news in self._waiting:
            if not news.done():
                news.set_result(None)


class MemoryConsumer:
    gives_once = True

    def __init__(self, bus: MemoryBus, service: str, lanes: frozenset[int]) -> None:
        self._bus = bus
        self._service = service
        self._lanes = lanes

    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        taken = self._bus.take(self._service, self._lanes, max_directives)
        if taken or wait_seconds <= 0:
            return taken
        try:
            async with asyncio.timeout(wait_seconds):
                while not taken:
                    await self._bus.changed()
                    taken = self._bus.take(self._service, self._lanes, max_directives)
        except TimeoutError:
            pass
        return taken

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        return [True] * len(directives)  # each directive is given out once

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        return [False] * len(directives)  # no other consumer would get them

    async def close(self) -> None:
        """Do nothing: the bus belongs to its creator."""
