"""Adopts changes of the config file and of protocol files while the control plane runs.

Files are read in threads: if a file system hangs, the versions in force stay, and the event loop goes on.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import structlog

from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.own_files import ref_defaults

log = structlog.get_logger(__name__)

MAX_LOOK_SECONDS = 2.0

T = TypeVar("T")


class FileLook(Generic[T]):
    """Runs a function that reads files, one call at a time, in a daemon thread, which can't hold up the exit."""

    def __init__(self, name: str, read: Callable[[], T]) -> None:
        self._name = name
        self._read = read
        self._running: asyncio.Future[T] | None = None
        self._is_late = False

    async def result(self) -> T | None:
        """Return what the function returns; None if it takes too long. Then the next call waits for the same look."""
        running = self._running
        if running is None:
            running = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._work, args=(running,), name=f"lucius-{self._name}", daemon=True).start()
            self._running = running
        await asyncio.wait({running}, timeout=MAX_LOOK_SECONDS)
        if not running.done():
            if not self._is_late:
                log.error("files can't be read: no answer from the file system", look=self._name)
            self._is_late = True
            return None
        if self._running is running:
            self._running, self._is_late = None, False
        return running.result()

    def _work(self, running: "asyncio.Future[T]") -> None:
        settle: Callable[[], None]
        try:
            settle = partial(running.set_result, self._read())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            settle = partial(running.set_exception, failure)
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            running.get_loop().call_soon_threadsafe(settle)


class Reloader:
    """Looks for changed files at every `reload_interval`; for protocols also when another process announces some."""

    def __init__(self, runtime: ControlPlane) -> None:
        self._runtime = runtime
        self._protocols = FileLook("protocol-files", runtime.protocols.read_files)
        self._config = FileLook("config-file", runtime.config.refresh)
        self._ref_defaults = FileLook("own-files", partial(ref_defaults, runtime.settings))
        self._next_at = 0.0

    async def run_once(self) -> None:
        """Wait for announced protocols or for the interval to pass; then adopt what changed."""
        loop = asyncio.get_running_loop()
        if not self._next_at:
            self._next_at = loop.time() + self._interval()
        announced = self._runtime.notifier.protocols
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._next_at):
                await announced.wait()
        announced.clear()
        if loop.time() < self._next_at:
            await self._reload_protocols()
            return
        self._next_at = loop.time() + self._interval()
        reloads = (self._reload_protocols(), self._reload_config(), self._reload_ref_defaults())
        for failure in await asyncio.gather(*reloads, return_exceptions=True):
            if failure is not None:
                raise failure

    def _interval(self) -> float:
        liveness = self._runtime.store.liveness
        return self._runtime.settings.reload_interval * (liveness.poll_backoff() if liveness else 1)

    async def _reload_protocols(self) -> None:
        protocols = self._runtime.protocols
        await self._protocols.result()
        if await protocols.refresh(reads_files=False):
            log.info("protocols reloaded", problems=[str(problem) for problem in protocols.problems()])

    async def _reload_config(self) -> None:
        config = self._runtime.config
        refused = config.problems()
        if await self._config.result():
            self._runtime.auth.use(config.current())
            if config.problems():
                log.warning("API keys revoked; the rest of the new config is refused")
            else:
                log.info("config reloaded")
        for problem in config.problems():
            if problem not in refused:
                log.error("config refused; the previous one stays in force", problem=str(problem))

    async def _reload_ref_defaults(self) -> None:
        """Protect the files to which symbolic links lead now."""
        defaults = await self._ref_defaults.result()
        if defaults is not None:
            self._runtime.refs.use_defaults(defaults)
