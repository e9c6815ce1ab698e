"""Reads the dead-letter stream for the engines, which form a consumer group of their own."""

from collections.abc import Sequence

import structlog

from lucius.adapters.bus.redis.address import parse
from lucius.adapters.bus.redis.connection import CALL_SECONDS
from lucius.adapters.bus.redis.consumer_group import ConsumerGroup, EntryPosition, Message
from lucius.ports.bus import DeadLetter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

GROUP = "lucius"
ANY_NUMBER = 2**31  # dead letters are delivered until they are settled


class RedisDeadLetters:
    def __init__(self, url: str, call_seconds: float = CALL_SECONDS) -> None:
        address = parse(url)
        self._stream = address.dead
        self.group = ConsumerGroup(
            address.url,
            [address.dead],
            GROUP,
            idle_seconds=address.idle_seconds,
            deliveries=ANY_NUMBER,
            dead=address.dead,
            call_seconds=call_seconds,
        )

    async def take(self, limit: int, wait_seconds: float) -> list[DeadLetter]:
        return [_to_dead_letter(message) for message in await self.group.take(limit, wait_seconds)]

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        await self.group.settle([EntryPosition(self._stream, letter.entry_id) for letter in letters])

    def let_go(self, letters: Sequence[DeadLetter]) -> None:
        self.group.stop_renewing(EntryPosition(self._stream, letter.entry_id) for letter in letters)

    async def close(self) -> None:
        await self.group.close()


def _to_dead_letter(message: Message) -> DeadLetter:
    """Convert a message of any writer; missing and malformed fields get their empty values."""
    fields = {name: value.decode(errors="replace") for name, value in message.fields.items()}
    return DeadLetter(
        entry_id=message.place.entry,
        reason=fields.get("reason", "UNKNOWN"),
        deliveries=_number(fields.get("deliveries")),
        job_id=fields.get("job_id", ""),
        step_id=fields.get("step_id", ""),
        tenant_id=fields.get("tenant_id", ""),
        attempt_no=_number(fields.get("attempt_no")),
        lease_id=fields.get("lease_id", ""),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0
