"""From blocking code to asyncio: an event loop of our own on a thread of its own.

So it works inside a running loop too, as in a notebook, and from any number of threads.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

CLEAN_UP_SECONDS = 5.0


class Bridge:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="lucius-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine answers. Ctrl-C, or whatever else interrupts this thread, cancels it."""
        if reason := self._unusable():
            work.close()
            raise RuntimeError(reason)
        return self._run(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Each item as it comes. Whoever stops early closes the source."""
        try:
            while (item := self.run(_next(source))) is not _END:
                yield item
        finally:
            if not self._unusable():
                self.run(_close(source))

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Do this last, cancel all that is under way, and end the thread. The second time nothing happens."""
        if self._unusable():
            last.close()
            return
        self._closing = True
        try:
            self._run(last)
            self._run(_cancel_others())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _unusable(self) -> str:
        if self._closing:
            return "this client is closed"
        if self._pid != os.getpid():
            return "this client was made before the process was forked: make one in each process"
        if threading.current_thread() is self._thread:
            return "a blocking client can't be used from its own event loop"
        return ""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(task := self._loop.create_task(work))
            task.add_done_callback(lambda ended: _pass_on(ended, done))

        self._loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        finally:
            if not done.done():  # interrupted: let it clean up before anyone goes on
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                with suppress(TimeoutError):
                    done.exception(CLEAN_UP_SECONDS)


def documented_as(original: type[Any]) -> Callable[[type[T]], type[T]]:
    """What a method does is said once, where it is done."""

    def document(kind: type[T]) -> type[T]:
        for name, method in vars(kind).items():
            if not name.startswith("_") and callable(method) and not method.__doc__:
                method.__doc__ = getattr(original, name).__doc__
        return kind

    return document


class _End:
    pass


_END: Any = _End()


async def _next(source: AsyncGenerator[T, None]) -> T:
    found: T = await anext(source, _END)
    return found


async def _close(source: AsyncGenerator[T, None]) -> None:
    await source.aclose()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _pass_on(task: "asyncio.Task[T]", done: "Future[T]") -> None:
    if task.cancelled():
        done.set_exception(RuntimeError("this client is closed"))
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
