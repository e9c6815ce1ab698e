"""Idempotency store for a service's processes on any number of hosts, in Redis or a compatible server.

One value per attempt: the holder of its claim, which expires with the claim, or its RESULT, which expires with the
retention. Each call is one script and one round trip, regardless of the number of attempts.

A claim whose answer was lost may still have been made. The store therefore remembers the claims it was granted: a
claim under its own name that it does not remember counts as new.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError

from lucius.worker.idempotency import (
    MAX_FINISHED_ATTEMPTS,
    NEW,
    RETENTION_SECONDS,
    RUNNING,
    AttemptKey,
    ClaimOutcome,
    Finished,
    StoreDown,
)

CALL_SECONDS = 3.0
CONNECT_SECONDS = 2.0
MAX_CONNECTIONS = 16
PREFIX = b"{lucius}:attempt:"  # the hash tag in braces keeps the attempts of one call on one cluster node

_HOLDER = b"c"
_RESULT = b"r"

_CLAIM = """
    local found = {}
    for i, key in ipairs(KEYS) do
        local value = redis.call('GET', key)
        local unknown = value == ARGV[1] and ARGV[i + 2] == '0'
        if not value or unknown then redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
        found[i] = value or ''
    end
    return found
"""
_RENEW = """
    for _, key in ipairs(KEYS) do
        local value = redis.call('GETRANGE', key, 0, #ARGV[1] - 1)
        local longer = redis.call('PTTL', key) < tonumber(ARGV[2])
        if value == '' or (value == ARGV[1] and longer) then redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
    end
"""
_FINISH = """
    if redis.call('GETRANGE', KEYS[1], 0, 0) == 'r' then return redis.call('GET', KEYS[1]) end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
"""
_RELEASE = """
    if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

_encode = msgspec.json.Encoder().encode


class RedisIdempotency:
    """Idempotency store in Redis. Connects on first use and reconnects as needed."""

    def __init__(self, url: str, retention: float = RETENTION_SECONDS, call_seconds: float = CALL_SECONDS) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=call_seconds,
            socket_connect_timeout=min(CONNECT_SECONDS, call_seconds),
            socket_timeout=call_seconds,
            retry=Retry(NoBackoff(), 1),  # a connection broken by a restart is noticed only when it is used
            retry_on_error=[ReadOnlyError],  # after a failover: find the new primary
        )
        self._redis = Redis.from_pool(pool)
        self._call_seconds = call_seconds
        self._retention = retention
        self._owner = _HOLDER + secrets.token_hex(8).encode()
        self._held: dict[AttemptKey, None] = {}
        self._claiming: set[AttemptKey] = set()
        self._claim = self._redis.register_script(_CLAIM)
        self._renew = self._redis.register_script(_RENEW)
        self._finish = self._redis.register_script(_FINISH)
        self._release = self._redis.register_script(_RELEASE)

    async def claim(self, keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
        asked = [key for key in dict.fromkeys(keys) if key not in self._claiming]
        self._claiming.update(asked)
        try:
            known = [int(key in self._held) for key in asked]
            found = await self._call(self._claim, asked, self._owner, _ms(seconds), *known)
        finally:
            self._claiming.difference_update(asked)
        standings = {key: self._standing(key, value) for key, value in zip(asked, found, strict=True)}
        # A key that comes twice in one call, or in two concurrent ones, is new only once.
        return [standings.pop(key, RUNNING) for key in keys]

    async def renew(self, keys: Sequence[AttemptKey], seconds: float) -> None:
        if keys:
            await self._call(self._renew, keys, self._owner, _ms(seconds))

    async def finish(self, key: AttemptKey, result: bytes) -> bytes:
        kept: bytes | None = await self._call(self._finish, [key], _RESULT + result, _ms(self._retention))
        self._held.pop(key, None)
        return result if kept is None else kept[1:]

    async def release(self, key: AttemptKey) -> None:
        await self._call(self._release, [key], self._owner)
        self._held.pop(key, None)

    async def close(self) -> None:
        await self._redis.aclose()

    def _standing(self, key: AttemptKey, value: bytes) -> ClaimOutcome:
        if value.startswith(_RESULT):
            return Finished(value[1:])
        if value and value != self._owner:
            return RUNNING
        if value and key in self._held:
            return RUNNING
        self._held[key] = None
        if len(self._held) > MAX_FINISHED_ATTEMPTS:  # left by attempts not finished because the store was down
            del self._held[next(iter(self._held))]
        return NEW

    async def _call(self, script: Any, keys: Sequence[AttemptKey], *arguments: bytes | int) -> Any:
        try:
            async with asyncio.timeout(self._call_seconds):
                return await script(keys=[PREFIX + _encode(key) for key in keys], args=arguments)
        except (RedisError, OSError) as error:  # a timeout is an OSError too
            raise StoreDown(f"idempotency store: {type(error).__name__}: {error}") from error


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
