"""The engine's side of what nobody could take: read by one of the engines, which are a group of their own."""

from collections.abc import Sequence

import structlog

from lucius.adapters.bus_redis.address import parse
from lucius.adapters.bus_redis.group import Group, Message, Place
from lucius.adapters.bus_redis.line import CALL_SECONDS
from lucius.ports.bus import DeadLetter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

GROUP = "lucius"
ANY_NUMBER = 2**31  # a letter is given out until somebody is done with it


class RedisDeadLetters:
    def __init__(self, url: str, call_seconds: float = CALL_SECONDS) -> None:
        address = parse(url)
        self._stream = address.dead
        self._group = Group(
            address.url,
            [address.dead],
            GROUP,
            idle_seconds=address.idle_seconds,
            deliveries=ANY_NUMBER,
            dead=address.dead,
            call_seconds=call_seconds,
        )

    async def take(self, max_letters: int, wait_seconds: float) -> list[DeadLetter]:
        return [_letter(message) for message in await self._group.take(max_letters, wait_seconds)]

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        await self._group.settle([Place(self._stream, letter.letter_id) for letter in letters])

    def let_go(self, letters: Sequence[DeadLetter]) -> None:
        self._group.leave(Place(self._stream, letter.letter_id) for letter in letters)

    async def close(self) -> None:
        await self._group.close()


def _letter(message: Message) -> DeadLetter:
    """Whoever wrote it: a field that is missing or makes no sense is one that it did not say."""
    said = {name: value.decode(errors="replace") for name, value in message.fields.items()}
    return DeadLetter(
        letter_id=message.place.entry,
        reason=said.get("reason", "UNKNOWN"),
        deliveries=_number(said.get("deliveries")),
        job_id=said.get("job_id", ""),
        step_id=said.get("step_id", ""),
        tenant_id=said.get("tenant_id", ""),
        attempt_no=_number(said.get("attempt_no")),
        lease_id=said.get("lease_id", ""),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0
