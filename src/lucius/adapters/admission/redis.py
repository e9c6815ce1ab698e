"""`redis://` admission cache: one key for each counter at its cap, with the limit as its value and a short expiry.

One connection carries one round trip at a time; what is requested meanwhile is batched into the next. Callers never
wait for a connection, and only briefly for an answer.
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

from lucius.core.model.inputs import Cap
from lucius.ports.admission import MARK_SECONDS

log: structlog.stdlib.BoundLogger = structlog.get_logger()

WAIT_SECONDS = 0.05
CONNECT_SECONDS = 2.0
CALL_SECONDS = 1.0
PAUSE_SECONDS = 1.0
MAX_QUEUED_MARKS = 10_000
UNMARKED = -1  # below every limit


class _Batch:
    """Commands of one round trip. `answer` is always settled, without marks if the round trip fails."""

    def __init__(self) -> None:
        self.queried: dict[str, None] = {}
        self.marked: dict[str, int] = {}
        self.unmarked: dict[str, None] = {}
        self.answer: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    def settle(self, marks: dict[str, int]) -> None:
        if not self.answer.done():
            self.answer.set_result(marks)

    def commands(self, prefix: str) -> list[tuple[str | int, ...]]:
        """Return the commands: set marks, delete freed ones, then read.

        A mark that is both set and freed is deleted: one job too many at the ledger costs little.
        """
        life = round(MARK_SECONDS * 1000)
        commands: list[tuple[str | int, ...]] = [
            ("SET", prefix + name, limit, "PX", life) for name, limit in self.marked.items()
        ]
        commands += [("DEL", *(prefix + name for name in self.unmarked))] if self.unmarked else []
        commands += [("MGET", *(prefix + name for name in self.queried))] if self.queried else []
        return commands


class RedisAdmissionCache:
    """Admission cache on Redis; connects at the first `run_once`.

    Raises ValueError for an invalid URL, with no secret in the message.
    """

    def __init__(self, url: str, wait_seconds: float = WAIT_SECONDS, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pool, self._prefix = _parse(url)
        self.wait_seconds = wait_seconds
        self.pause_seconds = pause_seconds
        self._connection: Any = None
        self._answers = False
        self._too_slow = False
        self._was_unavailable = False
        self._has_commands = asyncio.Event()
        self._next = _Batch()

    @property
    def is_available(self) -> bool:
        """True while the server answers in time; otherwise the cache knows nothing."""
        return self._answers

    @property
    def is_in_outage(self) -> bool:
        """True from a failure until the next connection or answer."""
        return self._was_unavailable

    @property
    def queued_marks(self) -> int:
        """Number of marks to set in the next round trip."""
        return len(self._next.marked)

    @property
    def queued_removals(self) -> int:
        """Number of marks to delete in the next round trip."""
        return len(self._next.unmarked)

    async def full(self, caps: Sequence[Cap]) -> Cap | None:
        if not self._answers:
            return None
        batch = self._next
        batch.queried.update((cap.counter, None) for cap in caps)
        self._has_commands.set()
        await asyncio.wait((batch.answer,), timeout=self.wait_seconds)
        if not batch.answer.done():  # check the future, not the clock: if this process was slow, the answer is here
            self._too_slow, self._answers = True, False
            return None
        marks = batch.answer.result()
        return next((cap for cap in caps if cap.limit <= marks.get(cap.counter, UNMARKED)), None)

    def mark(self, cap: Cap) -> None:
        if self._answers and len(self._next.marked) < MAX_QUEUED_MARKS:
            self._next.marked[cap.counter] = cap.limit
            self._has_commands.set()

    def unmark(self, counters: Iterable[str]) -> None:
        """Delete the marks of `counters`. What is dropped, without a server or over the limit, expires by itself."""
        if self._answers and len(self._next.unmarked) < MAX_QUEUED_MARKS:
            self._next.unmarked.update((counter, None) for counter in counters)
            self._has_commands.set()

    async def run_once(self) -> None:
        try:
            if self._connection is None:
                await self._connect()
            self._answers = True
            await self._has_commands.wait()
            await self._send_batch()
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
            await _disconnect(connection)
            raise
        self._connection = connection
        if self._was_unavailable:
            log.info("the admission cache is available again")
            self._was_unavailable = False

    async def _send_batch(self) -> None:
        self._has_commands.clear()
        batch, self._next = self._next, _Batch()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answers = await self._ask(batch.commands(self._prefix))
            if batch.queried:
                batch.settle(_marks(batch.queried, answers[-1]))
        except BaseException:
            await self._drop()  # a late answer must not be read as the next command's
            raise
        finally:
            batch.settle({})

    async def _ask(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        if not commands:
            return []
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        return [await self._connection.read_response() for _ in commands]

    async def _pause(self, why: str) -> None:
        """Bypass the cache for a while: waiting callers are let through and the ledger decides alone."""
        self._answers = self._too_slow = False
        self._next.settle({})
        self._next = _Batch()
        if not self._was_unavailable:
            log.warning("admission cache unavailable, the ledger decides alone", reason=why)
            self._was_unavailable = True
        await asyncio.sleep(self.pause_seconds * random.uniform(0.5, 1.0))

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _disconnect(connection)


async def _disconnect(connection: Any) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


def _marks(names: Iterable[str], values: Iterable[bytes | None]) -> dict[str, int]:
    """Return the marked limits by counter; values that are not numbers were written by others and are ignored."""
    found = zip(names, values, strict=True)
    return {name: int(value) for name, value in found if value is not None and value.isdigit()}


def _parse(url: str) -> tuple[Any, str]:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "lucius:")
    pool: Any = ConnectionPool.from_url(
        urlunsplit(parts._replace(query=urlencode(query))),
        socket_timeout=None,  # `_send_batch` limits the whole round trip
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        pool.make_connection()
    except TypeError:
        raise ValueError(f"a Redis URL takes no such options: {', '.join(query)}") from None
    return pool, f"{prefix}gate:"
