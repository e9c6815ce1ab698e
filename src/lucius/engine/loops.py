"""Embedded engine: relay, sweeper, external calls, job webhooks and dead letters as supervised tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from lucius.engine.dead_letters import DeadLetterRunner
from lucius.engine.embedded.relay import Relay
from lucius.engine.embedded.sweeper import Sweeper
from lucius.engine.outbound.runner import OutboundRunner
from lucius.engine.supervisor import LoopHealth, supervised

GRACE_SECONDS = 10.0
QUIET_SECONDS = 60.0


class EngineLoops:
    """Runs the engine's loops. One that completes no iteration for `quiet_seconds` counts as stuck."""

    def __init__(
        self,
        sweeper: Sweeper,
        relay: Relay | None,
        calls: OutboundRunner,
        webhooks: OutboundRunner,
        on_failure: Callable[[str], None],
        quiet_seconds: float = QUIET_SECONDS,
        steady: Callable[[], float] = time.monotonic,
        dead_letters: DeadLetterRunner | None = None,
    ) -> None:
        self.sweeper = sweeper
        self._relay = relay
        self.calls = calls
        self.webhooks = webhooks
        self._dead_letters = dead_letters
        self._on_failure = on_failure
        self._quiet_seconds = quiet_seconds
        self._steady = steady
        self._tasks: list[asyncio.Task[None]] = []
        self._health: dict[str, LoopHealth] = {}

    async def start(self) -> None:
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "deadlines": self.sweeper.run_deadlines,
            "repair": self.sweeper.run_repair,
            "calls": self.calls.run_once,
            "webhooks": self.webhooks.run_once,
        }
        if self._relay is not None:
            loops |= {"relay": self._relay.run_once, "claims": self._relay.run_claims}
        if self._dead_letters is not None:
            loops |= {"dead-letters": self._dead_letters.run_once}
        self._health = {name: LoopHealth(self._steady) for name in loops}
        self._tasks = [
            asyncio.create_task(supervised(name, run_once, self._on_failure, self._health[name]), name=f"lucius-{name}")
            for name, run_once in loops.items()
        ]

    @property
    def running(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def troubles(self) -> dict[str, str]:
        """Return the loops that make no progress, each with the reason."""
        troubles = {name: health.trouble(self._quiet_seconds) for name, health in self._health.items()}
        return {name: trouble for name, trouble in troubles.items() if trouble}

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Stop all loops. Work that does not finish within `grace` seconds is cancelled; its lease or claim ends it."""
        for task in self._tasks:
            task.cancel()
        parts = (self.calls, self.webhooks) if self._relay is None else (self.calls, self.webhooks, self._relay)
        await asyncio.gather(self._loops_ended(grace), *(part.stop(grace) for part in parts))
        self._tasks = []
        if self._dead_letters is not None:
            await self._dead_letters.close()

    async def _loops_ended(self, grace: float) -> None:
        """Wait for the cancelled loops. An iteration may finish its work first; a second cancellation ends it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
