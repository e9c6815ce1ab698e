"""Renews a consumer's claims from a thread, so that a step that blocks the event loop keeps its messages.

Code that holds the interpreter's lock stops this thread too; such steps belong in a process of their own.
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

from lucius.adapters.bus.redis.connection import Argument, LuaScript
from lucius.backoff import doubled

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FIRST_BACKOFF_SECONDS = 0.2

Ask = Callable[[LuaScript, Sequence[str], Sequence[Argument]], Any]


class ClaimRenewer:
    """Calls `renew` at least every third of the idle time, and sooner after it failed.

    `renew` gets a connection that only this thread uses.
    """

    def __init__(
        self,
        url: str,
        call_seconds: float,
        idle_seconds: float,
        renew: Callable[[Ask], None],
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
        self._renew = renew
        self._chance = chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bus-claim-renewer", daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        return self._over.is_set()

    def renew(self) -> None:
        """Renew the claims once."""
        self._renew(self._ask)

    def stop(self) -> None:
        self._over.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        failures = 0
        while not self._over.wait(self._pause(failures)):
            try:
                self.renew()
                failures = 0
            except (RedisError, OSError) as error:
                failures += 1
                log.warning("can't renew claims on messages", reason=f"{type(error).__name__}: {error}")
        self._client.close()

    def _pause(self, failures: int) -> float:
        if failures:
            ceiling = doubled(failures, FIRST_BACKOFF_SECONDS, self._idle_seconds / 12)
        else:
            ceiling = self._idle_seconds / 3
        return ceiling * (0.75 + 0.25 * self._chance())

    def _ask(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        return self._client.register_script(script.text)(keys=keys, args=arguments)
