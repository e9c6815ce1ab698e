"""Publishes directives to streams, with all that wait in one round trip."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import structlog
from redis.exceptions import ResponseError

from lucius.adapters.bus.redis import scripts
from lucius.adapters.bus.redis.address import parse
from lucius.adapters.bus.redis.connection import CALL_SECONDS, Command, RedisConnection
from lucius.contract import Directive
from lucius.ports.errors import BusDown, BusError, MessageRefused, OutcomeUnknown

MAX_BYTES = 64 * 1024 * 1024
MAX_BATCH_MESSAGES = 256
MAX_WAITING_MESSAGES = 4_000
TRIM_BATCH_MESSAGES = 256
LATE_SECONDS = 60.0

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_encode = msgspec.json.Encoder().encode


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class _Outgoing(NamedTuple):
    stream: str
    service: str
    command: Command
    outcome: asyncio.Future[None]


class RedisPublisher:
    """Publishes directives; connects on first use and reconnects when needed. Raises ValueError for an invalid URL."""

    def __init__(
        self,
        url: str,
        call_seconds: float = CALL_SECONDS,
        max_bytes: int = MAX_BYTES,
        max_waiting: int = MAX_WAITING_MESSAGES,
        late_seconds: float = LATE_SECONDS,
        now: Callable[[], int] = _wall_ms,
    ) -> None:
        """Delete late directives from streams with more than `max_waiting` undelivered ones.

        Late are those whose ACK deadline passed `late_seconds` ago. `now` returns the time that deadlines are in, in
        milliseconds.
        """
        self._address = parse(url)
        self._line = RedisConnection(self._address.url, call_seconds)
        self._most_bytes = max_bytes
        self._most_waiting = max_waiting
        self._late_ms = round(late_seconds * 1000)
        self._now = now
        self._since_trim: Counter[str] = Counter()
        self._waiting: deque[_Outgoing] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def publish(self, topic: str, directive: Directive) -> None:
        body = _encode(directive)
        if len(body) > self._most_bytes:
            raise MessageRefused(f"{directive.message_id} has {len(body)} bytes, more than {self._most_bytes}")
        stream = self._address.stream(topic, directive.service)
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outgoing = _Outgoing(stream, directive.service, _command(stream, directive, body), outcome)
        self._waiting.append(outgoing)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await outgoing.outcome

    async def ping(self) -> None:
        try:
            (answer,) = await self._line.ask([("PING",)])
        except OutcomeUnknown as lost:
            raise BusDown(str(lost)) from lost
        if isinstance(answer, ResponseError):
            raise BusDown(f"Redis: {answer}")

    async def close(self) -> None:
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._line.close()

    async def _write(self) -> None:
        """Send what is queued, also directives whose publisher was cancelled: they count as handed over."""
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH_MESSAGES))]
                for outgoing, answer in zip(batch, await self._send(batch), strict=True):
                    _tell(outgoing.outcome, answer)
                await self._trim(batch)
        finally:
            self._writing = None

    async def _trim(self, batch: list[_Outgoing]) -> None:
        """Delete late directives of services that are away, whose attempts end while new ones arrive.

        Looks at a stream only once in a while: every 128 messages, or half of `max_waiting` if that is less.
        """
        services = {outgoing.stream: outgoing.service for outgoing in batch}
        self._since_trim.update(outgoing.stream for outgoing in batch)
        for stream, service in services.items():
            if self._since_trim[stream] < min(TRIM_BATCH_MESSAGES, self._most_waiting) // 2:
                continue
            del self._since_trim[stream]
            try:
                before = self._now() - self._late_ms
                arguments = (service, self._most_waiting, before, TRIM_BATCH_MESSAGES + MAX_BATCH_MESSAGES)
                gone = await self._line.run(scripts.TRIM, [stream], *arguments)
            except BusDown as down:
                log.warning("stream could not be trimmed", stream=stream, reason=str(down))
                return
            if gone:
                log.warning("late directives were deleted from the bus", stream=stream, directives=gone)

    async def _send(self, batch: list[_Outgoing]) -> list[Any]:
        try:
            return await self._line.ask([outgoing.command for outgoing in batch])
        except (BusDown, OutcomeUnknown) as error:
            return [error] * len(batch)


def _command(stream: str, directive: Directive, body: bytes) -> Command:
    """Return the XADD command of a directive.

    Ids are also fields of their own, to identify a directive that can't be read; the deadline is one for trimming.
    """
    return (
        *("XADD", stream, "*"),
        *("job_id", directive.jobId, "step_id", directive.stepId, "tenant_id", directive.tenant_id),
        *("attempt_no", directive.attempt_no, "lease_id", directive.lease_id),
        *("ack_deadline_ms", round(datetime.fromisoformat(directive.ack_deadline).timestamp() * 1000)),
        *("directive", body),
    )


def _tell(outcome: asyncio.Future[None], answer: Any) -> None:
    if outcome.done():  # the publisher was cancelled
        return
    match answer:
        case BusError():
            outcome.set_exception(type(answer)(str(answer)))  # one exception per caller: it holds a traceback
        case ResponseError():
            outcome.set_exception((MessageRefused if _is_about_the_message(answer) else BusDown)(f"Redis: {answer}"))
        case _:
            outcome.set_result(None)


def _is_about_the_message(error: ResponseError) -> bool:
    """Return whether Redis refused the message itself; other errors are the server's (memory, read-only, rights).

    The client library has classes for the codes it knows, and leaves other codes in the text.
    """
    code = str(error).partition(" ")[0]
    return type(error) is ResponseError and (code == "WRONGTYPE" or not code.isupper())
