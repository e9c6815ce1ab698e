"""Tasks that finish even if the request that started them is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class ShieldedTasks:
    """Runs coroutines that must not be cancelled half-way: rows being taken must be known, to be given back.

    On shutdown, await `tasks` for as long as possible.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to its end and return its result; cancelling the caller does not cancel it."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Drop a finished task, and retrieve its exception: asyncio would log it if the caller is gone."""
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()
