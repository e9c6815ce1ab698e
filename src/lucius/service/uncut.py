"""Work that goes on when whoever waits for it is cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Uncut:
    """What is not cut off with the turn that began it: rows that are just being taken must be known to be given back.

    Whoever stops the part waits for `tasks`, as long as he can.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """How it failed, if it did, is told to who waits for it. If nobody does any more, nobody needs to know."""
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()
