"""Says from a thread of its own what a consumer is still at: a step that blocks the event loop must not cost it its
messages. Code that also keeps the interpreter's lock stops this thread, too; such steps belong into a process.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from lucius.adapters.bus_redis.line import Argument, Script

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Ask = Callable[[Script, Sequence[str], Sequence[Argument]], Any]


class Touching:
    """Calls `touch` every third of the idle time, and sooner after it failed. What it asks goes over a connection that
    only this thread has."""

    def __init__(
        self,
        url: str,
        call_seconds: float,
        idle_seconds: float,
        touch: Callable[[Ask], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._client: Any = Redis.from_url(
            url,
            socket_connect_timeout=call_seconds,
            socket_timeout=call_seconds,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._idle_seconds = idle_seconds
        self._touch = touch
        self._chance = chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bus-touch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        failures = 0
        while not self._over.wait(self._pause(failures)):
            try:
                self._touch(self._ask)
                failures = 0
            except (RedisError, OSError) as error:
                failures = min(failures + 1, 20)
                log.warning("can't keep messages from being claimed", reason=f"{type(error).__name__}: {error}")
        self._client.close()

    def _pause(self, failures: int) -> float:
        ceiling = self._idle_seconds / 3 if not failures else min(self._idle_seconds / 12, 0.1 * 2.0**failures)
        return ceiling * (0.75 + 0.25 * self._chance())

    def _ask(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        return self._client.register_script(script.text)(keys=keys, args=arguments)
