"""Threads for blocking functions. A thread can't be ended from outside, so those of fenced attempts are counted."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Threads:
    """Runs each call in a daemon thread, which can't hold up the process's exit. The runtime bounds their number."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self.stray = 0
        """Number of threads that still run after their call was cancelled; each still takes up room."""
        self._on_free = on_free

    async def run(self, function: Callable[[], Any], name: str) -> Any:
        """Run the function in a thread; return or raise what it does. Cancellation leaves the thread running.

        Other than plain Exceptions, such as SystemExit, are raised as RuntimeError.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - raised in the waiting task
                error = raised
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._ended, outcome, result, error)

        threading.Thread(target=work, name=name, daemon=True).start()
        try:
            return await outcome
        except asyncio.CancelledError:
            if outcome.cancelled():
                self.stray += 1
            raise

    def _ended(self, outcome: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if outcome.cancelled():
            self.stray -= 1
            self._on_free()
        elif error is None:
            outcome.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            outcome.set_exception(error)
        else:  # SystemExit and the like end a thread, not the service
            outcome.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
