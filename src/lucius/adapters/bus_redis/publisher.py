"""The relay's side: directives into streams, as many in one round trip as wait at the time."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import structlog
from redis.exceptions import ResponseError

from lucius.adapters.bus_redis import scripts
from lucius.adapters.bus_redis.address import parse
from lucius.adapters.bus_redis.line import CALL_SECONDS, Command, Line
from lucius.contract import Directive
from lucius.ports.errors import BusDown, BusError, MessageRefused, OutcomeUnknown

MOST_BYTES = 64 * 1024 * 1024
MOST_AT_ONCE = 256
MOST_WAITING = 4_000
TRIM_AT_ONCE = 256
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
    """Raises ValueError for a URL that can't be one. Connects when first used, and again whenever it must."""

    def __init__(
        self,
        url: str,
        call_seconds: float = CALL_SECONDS,
        most_bytes: int = MOST_BYTES,
        most_waiting: int = MOST_WAITING,
        late_seconds: float = LATE_SECONDS,
        now: Callable[[], int] = _wall_ms,
    ) -> None:
        """`most_waiting` in a stream that nobody was given; beyond that, those go that are too late by so much, by
        `now`, which is the time that their deadlines are of, in milliseconds."""
        self._address = parse(url)
        self._line = Line(self._address.url, call_seconds)
        self._most_bytes = most_bytes
        self._most_waiting = most_waiting
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
        """Also what its publisher no longer waits for: it counts as handed over."""
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
                for outgoing, answer in zip(batch, await self._send(batch), strict=True):
                    _tell(outgoing.outcome, answer)
                await self._trim(batch)
        finally:
            self._writing = None

    async def _trim(self, batch: list[_Outgoing]) -> None:
        """A service that is away takes nothing out, while its attempts end and new ones come. As seldom as it does."""
        services = {outgoing.stream: outgoing.service for outgoing in batch}
        self._since_trim.update(outgoing.stream for outgoing in batch)
        for stream, service in services.items():
            if self._since_trim[stream] < min(TRIM_AT_ONCE, self._most_waiting) // 2:
                continue
            del self._since_trim[stream]
            try:
                before = self._now() - self._late_ms
                arguments = (service, self._most_waiting, before, TRIM_AT_ONCE + MOST_AT_ONCE)
                gone = await self._line.run(scripts.TRIM, [stream], *arguments)
            except BusDown as down:
                log.warning("a stream could not be trimmed", stream=stream, reason=str(down))
                return
            if gone:
                log.warning("directives that came too late were taken off the bus", stream=stream, directives=gone)

    async def _send(self, batch: list[_Outgoing]) -> list[Any]:
        try:
            return await self._line.ask([outgoing.command for outgoing in batch])
        except (BusDown, OutcomeUnknown) as error:
            return [error] * len(batch)


def _command(stream: str, directive: Directive, body: bytes) -> Command:
    """The ids stand beside the directive, so that one that can't be read is still known for what it is; and so does
    when it will be too late, for who trims."""
    return (
        *("XADD", stream, "*"),
        *("job_id", directive.jobId, "step_id", directive.stepId, "tenant_id", directive.tenant_id),
        *("attempt_no", directive.attempt_no, "lease_id", directive.lease_id),
        *("ack_deadline_ms", round(datetime.fromisoformat(directive.ack_deadline).timestamp() * 1000)),
        *("directive", body),
    )


def _tell(outcome: asyncio.Future[None], answer: Any) -> None:
    if outcome.done():  # its publisher has given up
        return
    match answer:
        case BusError():
            outcome.set_exception(type(answer)(str(answer)))  # each its own: a traceback is kept in it
        case ResponseError():
            outcome.set_exception((MessageRefused if _is_about_the_message(answer) else BusDown)(f"Redis: {answer}"))
        case _:
            outcome.set_result(None)


def _is_about_the_message(error: ResponseError) -> bool:
    """All else is about the server: no memory, read-only, no rights. The client has a class of its own for the codes
    it knows, and leaves those it does not know in the text."""
    code = str(error).partition(" ")[0]
    return type(error) is ResponseError and (code == "WRONGTYPE" or not code.isupper())
