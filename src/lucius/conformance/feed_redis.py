"""Feed over a real `redis://` bus: publishes as the relay does, and observes what is consumed.

Each case has streams of its own, by a prefix that the service reads from LUCIUS_BUS_URL. A directive counts as handed
over when it has been delivered to a consumer of the service's group.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from lucius.conformance.attempt_log import PlayedAttempt, now
from lucius.conformance.feed import QueuedMessage, stamp
from lucius.conformance.model import Misuse

LANES = range(16)
POLL_SECONDS = 0.02
REDIS_TIMEOUT_SECONDS = 5.0
UNPUBLISHED_ENTRY = (2**63, 0)
IDS = {"jobId": "job_id", "stepId": "step_id", "tenant_id": "tenant_id", "lease_id": "lease_id"}


class _Sent(Struct, eq=False):
    queued: QueuedMessage
    stream: str
    entry: tuple[int, int] = UNPUBLISHED_ENTRY


class RedisFeed:
    pulled_over_http = False

    def __init__(self, url: str, service: str, on_hand_over: Callable[[PlayedAttempt], None]) -> None:
        self._prefix = f"lucius-conformance-{secrets.token_hex(4)}:"
        self.url = _with_prefix(url, self._prefix)
        self._server = _with_prefix(url, None)
        self._service = service
        self._on_hand_over = on_hand_over
        self._unsent: list[QueuedMessage] = []
        self._sent: list[_Sent] = []
        self._active_at = 0.0
        self._redis: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self) -> None:
        from redis.asyncio import Redis  # noqa: PLC0415 - an extra

        self._redis = Redis.from_url(self._server, decode_responses=True, socket_timeout=REDIS_TIMEOUT_SECONDS)
        await self._redis.ping()
        self._watching = asyncio.create_task(self._watch_forever())

    async def close(self) -> None:
        self._closing = True
        if self._watching is not None:
            await asyncio.wait({self._watching})  # it ends by itself: cancelling a call would break the connection
        if self._redis is not None:
            await self._redis.delete(*map(self._stream, LANES), f"{self._prefix}dead")
            await self._redis.aclose()

    def send(self, queued: QueuedMessage) -> None:
        self._unsent.append(queued)

    def waiting(self) -> int:
        return len(self._unsent) + len(self._sent)

    def asked_since(self, at: float) -> bool:
        return self._active_at >= at

    def was_taken(self, attempt: PlayedAttempt) -> None:
        """Count an attempt as handed over, since a callback about it arrived before its delivery was observed."""
        taken = next((sent for sent in self._sent if sent.queued.attempt is attempt), None)
        if taken is not None:
            self._sent.remove(taken)
            self._on_hand_over(attempt)

    def internal_error(self) -> BaseException | None:
        ended = self._watching is not None and self._watching.done() and not self._watching.cancelled()
        return self._watching.exception() if self._watching is not None and ended else None

    async def _watch_forever(self) -> None:
        while not self._closing:
            await self._publish()
            await self._read_consumers()
            await self._read_deliveries()
            await asyncio.sleep(POLL_SECONDS)

    async def _publish(self) -> None:
        while self._unsent:
            queued = self._unsent[0]
            if queued.attempt is not None:
                stamp(queued.attempt)
            stream = self._stream(queued.attempt.directive["lane"] if queued.attempt is not None else 0)
            sent = _Sent(queued, stream)
            self._sent.append(sent)  # first: a callback about it may arrive before XADD answers
            del self._unsent[0]
            sent.entry = _entry(await self._redis.xadd(stream, _fields(queued.content)))

    async def _read_consumers(self) -> None:
        asked = [("XINFO", "CONSUMERS", self._stream(lane), self._service) for lane in LANES]
        for consumers in await self._ask(asked):
            for consumer in consumers:
                self._active_at = max(self._active_at, now() - consumer["idle"] / 1000)

    async def _read_deliveries(self) -> None:
        streams = list(dict.fromkeys(sent.stream for sent in self._sent))
        answers = await self._ask([("XINFO", "GROUPS", stream) for stream in streams])
        taken = {
            stream: _entry(group["last-delivered-id"])
            for stream, groups in zip(streams, answers, strict=True)
            for group in groups
            if group["name"] == self._service
        }
        over = [sent for sent in self._sent if sent.stream in taken and sent.entry <= taken[sent.stream]]
        self._sent = [sent for sent in self._sent if sent not in over]
        for attempt in (sent.queued.attempt for sent in over):
            if attempt is not None:
                self._on_hand_over(attempt)

    async def _ask(self, commands: Sequence[tuple[str, ...]]) -> list[list[dict[str, Any]]]:
        """Run commands in one pipeline; return their answers, empty for a stream or group that does not exist yet."""
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers = await pipeline.execute(raise_on_error=False) if commands else []
        return [[] if isinstance(answer, Exception) else [_as_dict(item) for item in answer] for answer in answers]

    def _stream(self, lane: int) -> str:
        return f"{self._prefix}global-bus-p{lane}:{self._service}"


def check_redis() -> None:
    """Raise Misuse if the redis package is not installed."""
    try:
        import redis.asyncio  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise Misuse("redis:// needs the extra: pip install 'lucius[redis]'") from None


def _with_prefix(url: str, prefix: str | None) -> str:
    """Return the URL with this stream prefix; with None, without the parameters that the client library rejects."""
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("prefix", "idle", "deliveries")]
    query = [*kept, ("prefix", prefix)] if prefix else kept
    return urlunsplit(parts._replace(query=urlencode(query)))


def _fields(message: Any) -> dict[str, Any]:
    ids = {field: str(message.get(name, "")) for name, field in IDS.items()} if isinstance(message, dict) else {}
    number = message.get("attempt_no", "") if isinstance(message, dict) else ""
    return {**ids, "attempt_no": str(number), "directive": json.dumps(message)}


def _entry(text: str) -> tuple[int, int]:
    first, _, second = text.partition("-")
    return int(first), int(second)


def _as_dict(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
