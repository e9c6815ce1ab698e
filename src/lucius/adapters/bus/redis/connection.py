"""A Redis connection that knows whether a request may have been sent before it broke."""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from lucius.ports.errors import BusDown, OutcomeUnknown

CONNECT_SECONDS = 2.0
CALL_SECONDS = 3.0
FRESH_SECONDS = 1.0  # idle for longer, it may have broken unnoticed

Argument = bytes | str | int | float
Command = Sequence[Argument]


class LuaScript:
    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisConnection:
    """Connects on first use and reconnects when needed. Calls run one at a time."""

    def __init__(self, url: str, call_seconds: float = CALL_SECONDS) -> None:
        self._pool: Any = ConnectionPool.from_url(
            url,
            socket_connect_timeout=min(CONNECT_SECONDS, call_seconds),
            socket_timeout=None,  # `ask` limits the whole call
            retry=Retry(NoBackoff(), 0),  # callers decide whether to repeat a call
            protocol=2,
        )
        self._call_seconds = call_seconds
        self._connection: Any = None
        self._used = 0.0
        self._turn = asyncio.Lock()

    async def ask(self, commands: Sequence[Command], wait_seconds: float = 0.0) -> list[Any]:
        """Send `commands` and return an answer to each, a ResponseError where Redis refused one.

        Raises BusDown if nothing was sent, OutcomeUnknown if something may have been.
        """
        async with self._turn:
            connection = await self._ready()
            try:
                async with asyncio.timeout(wait_seconds + self._call_seconds):
                    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                    answers = [await _answer(connection) for _ in commands]
            except (RedisError, OSError) as error:
                await self._drop()
                raise OutcomeUnknown(f"Redis: {type(error).__name__}: {error}") from error
            except BaseException:  # cancelled: a late answer must not be read as the next command's
                await self._drop()
                raise
            self._used = _now()
            if any(isinstance(answer, ReadOnlyError) for answer in answers):
                await self._drop()  # no longer the primary: reconnecting finds the new one
            return answers

    async def run(self, script: LuaScript, keys: Sequence[str], *arguments: Argument) -> Any:
        """Run a script and return its answer. Raises BusDown for any failure: a script may be run again."""
        try:
            (answer,) = await self.ask([("EVALSHA", script.sha, len(keys), *keys, *arguments)])
            if isinstance(answer, NoScriptError):
                (answer,) = await self.ask([("EVAL", script.text, len(keys), *keys, *arguments)])
        except OutcomeUnknown as lost:
            raise BusDown(str(lost)) from lost
        if isinstance(answer, ResponseError):
            raise BusDown(f"Redis: {answer}")
        return answer

    async def close(self) -> None:
        await self._drop()

    async def _ready(self) -> Any:
        """Return a connection that has answered recently. Raises BusDown."""
        if self._connection is not None and await self._is_broken(self._connection):
            await self._drop()
        if self._connection is not None and _now() - self._used > FRESH_SECONDS:
            with suppress(BusDown):
                await self._reach(self._connection)
        if self._connection is None:
            self._connection = self._pool.make_connection()
            await self._reach(self._connection)
        return self._connection

    async def _is_broken(self, connection: Any) -> bool:
        """Return whether the peer has closed the connection or sent something unrequested."""
        await asyncio.sleep(0)  # let the loop read what has arrived
        try:
            return bool(await connection.can_read())
        except (RedisError, OSError):
            return True

    async def _reach(self, connection: Any) -> None:
        """Connect and check with PING that the server is not still loading its data. Raises BusDown."""
        try:
            async with asyncio.timeout(self._call_seconds):
                await connection.connect()
                await connection.send_command("PING", check_health=False)
                await _answer(connection)
        except (RedisError, OSError) as error:
            await self._drop()
            raise BusDown(f"Redis: {type(error).__name__}: {error}") from error
        except BaseException:
            await self._drop()
            raise

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _now() -> float:
    return asyncio.get_running_loop().time()
