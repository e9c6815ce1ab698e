"""`redis://` gate: a key for each counter that is at its cap, with the limit as its value and a short life of its own.

There is one connection, and one round trip at a time: whatever is asked or said during it goes together in the next.
Nobody waits for a connection, nor longer than a moment for an answer.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import structlog
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from lucius.core.inputs import Cap
from lucius.ports.gates import MARK_SECONDS

log: structlog.stdlib.BoundLogger = structlog.get_logger()

WAIT_SECONDS = 0.05
CONNECT_SECONDS = 2.0
CALL_SECONDS = 1.0
PAUSE_SECONDS = 1.0
MOST_NAMES = 10_000
UNMARKED = -1  # below every limit


class _Batch:
    """What goes to the server in one round trip. The answer is there in any case, if only that nothing is marked."""

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}
        self.shut: dict[str, int] = {}
        self.freed: dict[str, None] = {}
        self.answer: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    def settle(self, marks: dict[str, int]) -> None:
        if not self.answer.done():
            self.answer.set_result(marks)

    def commands(self, prefix: str) -> list[tuple[str | int, ...]]:
        """A mark goes before what frees its counter: a job too many at the ledger costs little. The question last."""
        life = round(MARK_SECONDS * 1000)
        commands: list[tuple[str | int, ...]] = [
            ("SET", prefix + name, limit, "PX", life) for name, limit in self.shut.items()
        ]
        commands += [("DEL", *(prefix + name for name in self.freed))] if self.freed else []
        commands += [("MGET", *(prefix + name for name in self.asked))] if self.asked else []
        return commands


class RedisGate:
    """Raises ValueError for a URL that can't be one, with nothing secret in it. Connects in its first turn."""

    def __init__(self, url: str, wait_seconds: float = WAIT_SECONDS, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pool, self._prefix = _parse(url)
        self._wait_seconds = wait_seconds
        self._pause_seconds = pause_seconds
        self._connection: Any = None
        self._answers = False
        self._too_slow = False
        self._missed = False
        self._news = asyncio.Event()
        self._next = _Batch()

    async def full(self, caps: Sequence[Cap]) -> Cap | None:
        if not self._answers:
            return None
        batch = self._next
        batch.asked.update((cap.counter, None) for cap in caps)
        self._news.set()
        await asyncio.wait((batch.answer,), timeout=self._wait_seconds)
        if not batch.answer.done():  # not by the clock: if it is we who are slow, the answer has come meanwhile
            self._too_slow, self._answers = True, False
            return None
        marks = batch.answer.result()
        return next((cap for cap in caps if cap.limit <= marks.get(cap.counter, UNMARKED)), None)

    def shut(self, cap: Cap) -> None:
        if self._answers and len(self._next.shut) < MOST_NAMES:
            self._next.shut[cap.counter] = cap.limit
            self._news.set()

    def reopen(self, counters: Iterable[str]) -> None:
        """What is dropped here, for want of a server or of room, ends by itself with its mark."""
        if self._answers and len(self._next.freed) < MOST_NAMES:
            self._next.freed.update((counter, None) for counter in counters)
            self._news.set()

    async def turn(self) -> None:
        try:
            if self._connection is None:
                await self._connect()
            self._answers = True
            await self._news.wait()
            await self._carry()
        except (RedisError, OSError) as error:
            await self._pause(f"{type(error).__name__}: {error}")
        else:
            if self._too_slow:
                await self._pause("it answers too slowly")

    async def close(self) -> None:
        self._answers = False
        self._next.settle({})
        await self._drop()

    async def _connect(self) -> None:
        connection = self._pool.make_connection()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()
                await connection.send_command("PING", check_health=False)
                await connection.read_response()
        except BaseException:
            await _hang_up(connection)
            raise
        self._connection = connection
        if self._missed:
            log.info("the admission gate is back")
            self._missed = False

    async def _carry(self) -> None:
        self._news.clear()
        batch, self._next = self._next, _Batch()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answers = await self._ask(batch.commands(self._prefix))
            if batch.asked:
                batch.settle(_marks(batch.asked, answers[-1]))
        except BaseException:
            await self._drop()  # an answer that still comes must not be taken for another's
            raise
        finally:
            batch.settle({})

    async def _ask(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        if not commands:
            return []
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        return [await self._connection.read_response() for _ in commands]

    async def _pause(self, why: str) -> None:
        """Until then all is left to the ledger, and what would have waited here is let through."""
        self._answers = self._too_slow = False
        self._next.settle({})
        self._next = _Batch()
        if not self._missed:
            log.warning("no admission gate for now, the ledger decides alone", reason=why)
            self._missed = True
        await asyncio.sleep(self._pause_seconds * random.uniform(0.5, 1.0))

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _hang_up(connection)


async def _hang_up(connection: Any) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


def _marks(names: Iterable[str], values: Iterable[bytes | None]) -> dict[str, int]:
    """What is no limit was written by somebody else, and marks nothing."""
    found = zip(names, values, strict=True)
    return {name: int(value) for name, value in found if value is not None and value.isdigit()}


def _parse(url: str) -> tuple[Any, str]:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "lucius:")
    pool: Any = ConnectionPool.from_url(
        urlunsplit(parts._replace(query=urlencode(query))),
        socket_timeout=None,  # a whole round trip has its time, here
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        pool.make_connection()
    except TypeError:
        raise ValueError(f"a Redis URL takes no such options: {', '.join(query)}") from None
    return pool, f"{prefix}gate:"
