"""Bridge from blocking code to asyncio: a private event loop in a thread of its own.

It therefore also works inside a running loop, as in a notebook, and from any number of threads.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
OnClose = Callable[[], Coroutine[Any, Any, None]]

CLEAN_UP_SECONDS = 5.0


class Bridge:
    """Runs coroutines on its own event loop for blocking callers.

    `on_close` runs when the bridge is closed or garbage-collected, so its thread must not hold a reference to it.
    """

    def __init__(self, on_close: OnClose) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Event()
        # Work is scheduled before the loop is stopped, or not at all. Reentrant: garbage collection may close an
        # iterator at any point.
        self._lock = threading.RLock()
        self._thread = threading.Thread(
            target=_run_loop, args=(self._loop, on_close), name="lucius-client", daemon=True
        )
        self._thread.start()
        self._forgotten = weakref.finalize(self, _stop, self._loop, self._closing, self._pid)
        self._forgotten.atexit = False  # not run when the process exits

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; return or raise what it does. An interruption of this thread cancels it.

        Raises RuntimeError if the bridge is closed, was made before a fork, or is used from its own loop.
        """
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        if not (reason := self._unusable()):  # checked first: after a fork the lock may stay held forever
            with self._lock:
                if not (reason := self._unusable()):
                    self._loop.call_soon_threadsafe(_begin, self._loop, work, done, tasks)
        if reason:
            work.close()
            raise RuntimeError(reason)
        try:
            return done.result()
        finally:
            if not done.done():  # interrupted: let the coroutine clean up before the caller continues
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                with suppress(TimeoutError):
                    done.exception(CLEAN_UP_SECONDS)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield each item of an async generator as it comes. Stopping early closes the source."""
        try:
            while (item := self.run(_next(source))) is not _END:
                yield item
        finally:
            if not self._unusable():
                self.run(_close(source))

    def close(self) -> None:
        """Cancel running work and end the thread. Idempotent."""
        if self._unusable():
            return
        with self._lock:
            self._forgotten()
        self._thread.join()

    def _unusable(self) -> str:
        if self._closing.is_set():
            return "this client is closed"
        if self._pid != os.getpid():
            return "this client was made before the process was forked: make one in each process"
        if threading.current_thread() is self._thread:
            return "a blocking client can't be used from its own event loop"
        return ""


def _run_loop(loop: asyncio.AbstractEventLoop, on_close: OnClose) -> None:
    """Run the loop in its thread until it is stopped, then `on_close`, cancel what still runs, and close it."""
    try:
        loop.run_forever()
        loop.run_until_complete(on_close())
        loop.run_until_complete(_cancel_others())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, closing: threading.Event, pid: int) -> None:
    """Stop the loop without waiting: garbage collection may run this in any thread, even the loop's own."""
    closing.set()
    if pid == os.getpid():
        loop.call_soon_threadsafe(loop.stop)


def _begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], done: "Future[T]", tasks: "list[asyncio.Task[T]]"
) -> None:
    tasks.append(task := loop.create_task(work))
    task.add_done_callback(lambda ended: _pass_on(ended, done))


def documented_as(original: type[Any]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that copies missing method docstrings from `original`."""

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
