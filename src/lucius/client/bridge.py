"""From blocking code to asyncio: an event loop of our own on a thread of its own.

So it works inside a running loop too, as in a notebook, and from any number of threads.
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
Last = Callable[[], Coroutine[Any, Any, None]]

CLEAN_UP_SECONDS = 5.0


class Bridge:
    """`last` is done when it is closed, or when nobody holds it any more: so nothing below may keep a bridge alive."""

    def __init__(self, last: Last) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Event()
        # Who begins something does so before the loop is told to stop, or not at all. Reentrant: garbage collection
        # may close an iterator at any point.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=_turn, args=(self._loop, last), name="lucius-client", daemon=True)
        self._thread.start()
        self._forgotten = weakref.finalize(self, _stop, self._loop, self._closing, self._pid)
        self._forgotten.atexit = False  # a process that ends does not wait for it

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine answers. Ctrl-C, or whatever else interrupts this thread, cancels it."""
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        if not (reason := self._unusable()):  # after a fork nobody may ever let go of the lock
            with self._lock:
                if not (reason := self._unusable()):
                    self._loop.call_soon_threadsafe(_begin, self._loop, work, done, tasks)
        if reason:
            work.close()
            raise RuntimeError(reason)
        try:
            return done.result()
        finally:
            if not done.done():  # interrupted: let it clean up before anyone goes on
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                with suppress(TimeoutError):
                    done.exception(CLEAN_UP_SECONDS)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Each item as it comes. Whoever stops early closes the source."""
        try:
            while (item := self.run(_next(source))) is not _END:
                yield item
        finally:
            if not self._unusable():
                self.run(_close(source))

    def close(self) -> None:
        """Cancel all that is under way, and end the thread. The second time nothing happens."""
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


def _turn(loop: asyncio.AbstractEventLoop, last: Last) -> None:
    """The thread: until the loop is stopped, and then whatever is left to do."""
    try:
        loop.run_forever()
        loop.run_until_complete(last())
        loop.run_until_complete(_cancel_others())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, closing: threading.Event, pid: int) -> None:
    """Whichever thread collects garbage does this, perhaps the loop's own: so it waits for nothing."""
    closing.set()
    if pid == os.getpid():
        loop.call_soon_threadsafe(loop.stop)


def _begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], done: "Future[T]", tasks: "list[asyncio.Task[T]]"
) -> None:
    tasks.append(task := loop.create_task(work))
    task.add_done_callback(lambda ended: _pass_on(ended, done))


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
