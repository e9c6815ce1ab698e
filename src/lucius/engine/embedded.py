"""The embedded engine: relay, sweeper, calls, notices and dead letters as supervised tasks of one process."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from lucius.engine.calls import CallRunner
from lucius.engine.dead_letters import DeadLetterRunner
from lucius.engine.notices import NoticeRunner
from lucius.engine.relay import Relay
from lucius.engine.supervise import Turns, supervised
from lucius.engine.sweeper import Sweeper

GRACE = 10.0
QUIET_SECONDS = 60.0


class EmbeddedEngine:
    def __init__(
        self,
        sweeper: Sweeper,
        relay: Relay | None,
        calls: CallRunner,
        notices: NoticeRunner,
        on_failure: Callable[[str], None],
        quiet_seconds: float = QUIET_SECONDS,
        steady: Callable[[], float] = time.monotonic,
        dead_letters: DeadLetterRunner | None = None,
    ) -> None:
        """A loop that ends no turn for `quiet_seconds` is stuck."""
        self._sweeper = sweeper
        self._relay = relay
        self._calls = calls
        self._notices = notices
        self._dead_letters = dead_letters
        self._on_failure = on_failure
        self._quiet_seconds = quiet_seconds
        self._steady = steady
        self._tasks: list[asyncio.Task[None]] = []
        self._turns: dict[str, Turns] = {}

    async def start(self) -> None:
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "deadlines": self._sweeper.deadlines_turn,
            "repair": self._sweeper.repair_turn,
            "calls": self._calls.turn,
            "notices": self._notices.turn,
        }
        if self._relay is not None:
            loops |= {"relay": self._relay.turn, "claims": self._relay.claims_turn}
        if self._dead_letters is not None:
            loops |= {"dead-letters": self._dead_letters.turn}
        self._turns = {name: Turns(self._steady) for name in loops}
        self._tasks = [
            asyncio.create_task(supervised(name, turn, self._on_failure, self._turns[name]), name=f"lucius-{name}")
            for name, turn in loops.items()
        ]

    @property
    def running(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def troubles(self) -> dict[str, str]:
        """Loops that get nothing done, and what is wrong."""
        said = {name: turns.trouble(self._quiet_seconds) for name, turns in self._turns.items()}
        return {name: trouble for name, trouble in said.items() if trouble}

    async def stop(self, grace: float = GRACE) -> None:
        """What is under way may end, for so long; what is cut off after that is left to its lease or its claim."""
        for task in self._tasks:
            task.cancel()
        parts = (self._calls, self._notices) if self._relay is None else (self._calls, self._notices, self._relay)
        await asyncio.gather(self._loops_ended(grace), *(part.stop(grace) for part in parts))
        self._tasks = []
        if self._dead_letters is not None:
            await self._dead_letters.close()

    async def _loops_ended(self, grace: float) -> None:
        """A turn may end what it is at; told again, it does not."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
