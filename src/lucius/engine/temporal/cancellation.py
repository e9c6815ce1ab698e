"""Keeps a cancellation of the workflow from interrupting its work.

Temporal cancels a workflow by cancelling the task that runs it. A job is cancelled by a decision instead, which
notifies its services and ends the job in order. So the workflow notes the request and goes on.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class UncancelledAwait(Generic[T]):
    """Awaits a task as `await task` does, but offers a cancellation of the waiter to `take_cancel` first.

    If that returns True, neither the task nor its waiter notices; else both are cancelled, as when a workflow is
    evicted from its worker's memory. `asyncio.shield` would do, too, but wakes the waiter one turn of the event loop
    later, and recorded histories depend on the order of turns.
    """

    def __init__(self, task: "asyncio.Task[T]", take_cancel: Callable[[], bool]) -> None:
        self._task = task
        self._take_cancel = take_cancel
        self._asyncio_future_blocking = False
        """Marks this object as a future for asyncio, which then uses the methods below."""

    def __await__(self) -> Generator[Any, None, T]:
        if not self._task.done():
            self._asyncio_future_blocking = True
            yield self
        return self._task.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._task.get_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._task.add_done_callback(callback, context=context)

    def cancel(self, msg: Any = None) -> bool:
        return self._take_cancel() or self._task.cancel(msg)
