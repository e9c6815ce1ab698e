"""A service's consumer: takes directives of its lanes and keeps them from others while they are worked on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from lucius.adapters.bus.redis.address import parse
from lucius.adapters.bus.redis.connection import CALL_SECONDS
from lucius.adapters.bus.redis.consumer_group import ConsumerGroup, EntryPosition, Message
from lucius.contract import Directive

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Ending = Callable[[Iterable[EntryPosition]], Awaitable[list[bool]]]

_decode = msgspec.json.Decoder(Directive).decode


class _Key(NamedTuple):
    """Identity of a directive: a message published twice is one directive, settled once."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str


class RedisConsumer:
    """Pulls a service's directives. Raises ValueError for an invalid URL."""

    gives_once = False

    def __init__(
        self,
        url: str,
        service: str,
        lanes: Iterable[int] | None = None,
        layout: str = "shared",
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        address = parse(url)
        self.group = ConsumerGroup(
            address.url,
            address.streams(service, lanes, layout),
            service,
            idle_seconds=address.idle_seconds,
            deliveries=address.deliveries,
            dead=address.dead,
            call_seconds=call_seconds,
        )
        self._places: dict[_Key, list[EntryPosition]] = {}

    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        messages = await self.group.take(max_directives, max(wait_seconds, 0.0))
        try:
            read = [(message.place, await self._read(message)) for message in messages]
        except asyncio.CancelledError:
            self.group.let_go(message.place for message in messages)
            raise
        for place, directive in read:
            if directive is not None:
                self._places.setdefault(_key(directive), []).append(place)
        return [directive for _, directive in read if directive is not None]

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        return await self._end(directives, self.group.settle)

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        return await self._end(directives, self.group.give_back)

    async def _end(self, directives: Sequence[Directive], end: Ending) -> list[bool]:
        """End the known deliveries of `directives` with `end`; return which directives were still ours.

        A delivery of the same directive that arrives meanwhile is not ended.
        """
        wanted = {_key(directive): list(self._places.get(_key(directive), ())) for directive in directives}
        places = [place for some in wanted.values() for place in some]
        ours = dict(zip(places, await end(places), strict=True))
        for key, some in wanted.items():
            left = [place for place in self._places.get(key, ()) if place not in some]
            if left:
                self._places[key] = left
            else:
                self._places.pop(key, None)
        return [any(ours[place] for place in wanted[_key(directive)]) for directive in directives]

    async def close(self) -> None:
        await self.group.close()

    async def _read(self, message: Message) -> Directive | None:
        try:
            return _decode(message.fields.get("directive", b""))
        except msgspec.DecodeError as error:
            log.error("unreadable directive dead-lettered", stream=message.place.stream, reason=str(error))
            await self.group.dead_letter(message.place, "UNREADABLE")
            return None


def _key(directive: Directive) -> _Key:
    return _Key(directive.jobId, directive.stepId, directive.attempt_no, directive.lease_id)
