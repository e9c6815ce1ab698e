"""The embedded engine: relay, sweeper, calls and notices as supervised tasks of one process."""

import asyncio
from collections.abc import Callable

from lucius.engine.calls import CallRunner
from lucius.engine.notices import NoticeRunner
from lucius.engine.relay import Relay
from lucius.engine.supervise import supervised
from lucius.engine.sweeper import Sweeper


class EmbeddedEngine:
    def __init__(
        self,
        sweeper: Sweeper,
        relay: Relay | None,
        calls: CallRunner,
        notices: NoticeRunner,
        on_failure: Callable[[str], None],
    ) -> None:
        self._sweeper = sweeper
        self._relay = relay
        self._calls = calls
        self._notices = notices
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        loops = {
            "deadlines": self._sweeper.deadlines_turn,
            "repair": self._sweeper.repair_turn,
            "calls": self._calls.turn,
            "notices": self._notices.turn,
        }
        if self._relay is not None:
            loops |= {"relay": self._relay.turn, "claims": self._relay.claims_turn}
        self._tasks = [
            asyncio.create_task(supervised(name, turn, self._on_failure), name=f"lucius-{name}")
            for name, turn in loops.items()
        ]

    @property
    def running(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(self._calls.stop(), self._notices.stop())
