"""One consumer of a consumer group on several streams: takes, settles and gives back messages."""

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog
from redis.exceptions import ResponseError

from lucius.adapters.bus.redis import scripts
from lucius.adapters.bus.redis.claim_renewer import Ask, ClaimRenewer
from lucius.adapters.bus.redis.connection import CALL_SECONDS, LuaScript, RedisConnection
from lucius.ports.errors import BusDown, OutcomeUnknown

log: structlog.stdlib.BoundLogger = structlog.get_logger()

GONE_SECONDS = 3600.0
TIDY_SECONDS = 600.0
MAX_BLOCK_SECONDS = 60.0
NEVER = 2**53
MAX_LOST_ENTRIES = 10_000


class EntryPosition(NamedTuple):
    stream: str
    entry: str


class Message(NamedTuple):
    place: EntryPosition
    fields: dict[str, bytes]


class ConsumerGroup:
    """Uses two connections, to settle while a read blocks, and a third in a thread that renews claims."""

    def __init__(
        self,
        url: str,
        streams: Sequence[str],
        group: str,
        *,
        idle_seconds: float,
        deliveries: int,
        dead: str,
        call_seconds: float = CALL_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._streams = list(streams)
        self._group = group
        self._me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._idle_seconds = idle_seconds
        self._deliveries = deliveries
        self._dead = dead
        self._chance = chance
        self._url = url
        self._call_seconds = call_seconds
        self._reading = RedisConnection(url, call_seconds)
        self._commands = RedisConnection(url, call_seconds)
        self._at_work: set[EntryPosition] = set()
        self._first = 0
        self._lost_some = False
        self._claim_at: float | None = None
        self._tidy_at: float | None = None
        self._renewer: ClaimRenewer | None = None

    @property
    def consumer_name(self) -> str:
        """Name of this consumer in its group, as XINFO CONSUMERS lists it."""
        return self._me

    @property
    def is_renewing(self) -> bool:
        """True from the first `take` until the claims are no longer renewed."""
        return self._renewer is not None and not self._renewer.is_stopped

    def stop_renewer(self) -> None:
        """Stop renewing the claims, as if this process were dead: others claim its messages after the idle time."""
        if self._renewer is not None:
            self._renewer.stop()

    def renew_claims(self) -> None:
        """Renew the claims now, in the calling thread. Raises RuntimeError before the first `take`."""
        if self._renewer is None:
            raise RuntimeError("nothing was taken yet")
        self._renewer.renew()

    async def take(self, limit: int, wait_seconds: float) -> list[Message]:
        """Take up to `limit` messages, first those of dead consumers; wait up to `wait_seconds` for some.

        Raises BusDown and then takes nothing: messages in a lost answer are found by the next call.
        """
        if self._renewer is None:
            self._renewer = ClaimRenewer(
                self._url, self._call_seconds, self._idle_seconds, self._renew_claims, self._chance
            )
        deadline = _now() + wait_seconds
        try:
            found = await self._look(limit)
            while not found and (left := deadline - _now()) > 0:
                found = await self._wait(limit, left) or await self._look(limit)
        except (BusDown, asyncio.CancelledError) as cut_off:
            self._lost_some = True
            if isinstance(cut_off, BusDown):
                self._claim_at = None
            raise
        self._at_work.update(message.place for message in found)
        return found

    async def settle(self, places: Iterable[EntryPosition]) -> list[bool]:
        """Settle messages; return which of them were ours until now. Raises BusDown."""
        wanted = list(places)
        answers = await self._run_for(scripts.SETTLE, wanted)
        self._at_work.difference_update(wanted)
        return answers

    async def give_back(self, places: Iterable[EntryPosition]) -> list[bool]:
        """Requeue messages for other consumers, also those lost in answers that never arrived.

        Returns which of `places` were ours. Raises BusDown.
        """
        wanted = list(places)
        answers = await self._run_for(scripts.GIVE_BACK, wanted)
        self._at_work.difference_update(wanted)
        await self._give_back_lost()
        return answers

    def let_go(self, places: Iterable[EntryPosition]) -> None:
        """Treat the messages as not taken: the next `take` finds them."""
        self._at_work.difference_update(places)
        self._lost_some = True

    def stop_renewing(self, places: Iterable[EntryPosition]) -> None:
        """Stop renewing the claims on the messages, so that other consumers claim them after the idle time."""
        self._at_work.difference_update(places)

    async def dead_letter(self, place: EntryPosition, reason: str) -> None:
        """Move a message to the dead letters; if Redis can't be reached, it is delivered again."""
        keys = [place.stream, self._dead]
        try:
            await self._commands.run(scripts.DEAD_LETTER, keys, self._group, self._me, place.entry, reason)
        except BusDown as down:
            log.warning("message could not be dead-lettered and will be redelivered", reason=str(down))
            self._lost_some = True
        self._at_work.discard(place)

    async def close(self) -> None:
        """Disconnect and, if nothing is held, remove this consumer from the group.

        Messages at work can be claimed after the idle time; those lost in an answer are requeued at once.
        """
        renewer, self._renewer = self._renewer, None
        if renewer is not None:
            renewer.stop()
            await asyncio.to_thread(renewer.join, self._call_seconds)
        await self._reading.close()
        try:
            if renewer is not None:
                await self._give_back_lost()
                await self._commands.run(scripts.FORGET_GONE, self._streams, self._group, self._me, NEVER)
        except BusDown as down:
            log.info("disconnected without leaving the consumer group", reason=str(down))
        finally:
            await self._commands.close()

    async def _give_back_lost(self) -> None:
        if self._lost_some:
            at_work = self._named(self._at_work)
            arguments = (self._group, self._me, MAX_LOST_ENTRIES, *at_work)
            lost = self._new_messages(await self._commands.run(scripts.FIND_LOST, self._streams, *arguments))
            await self._run_for(scripts.GIVE_BACK, [message.place for message in lost])

    async def _look(self, limit: int) -> list[Message]:
        found: list[Message] = []
        if self._lost_some:
            at_work = self._named(self._at_work)
            found += self._new_messages(await self._run(scripts.FIND_LOST, self._streams, limit, *at_work))
            self._lost_some = len(found) == limit
        if self._may_claim() and len(found) < limit:
            keys, idle = [*self._rotated_streams(), self._dead], round(self._idle_seconds * 1000)
            found += self._new_messages(
                await self._run(scripts.CLAIM, keys, limit - len(found), idle, self._deliveries)
            )
        if len(found) < limit:
            found += self._new_messages(await self._run(scripts.TAKE, self._rotated_streams(), limit - len(found)))
            self._first = (self._first + 1) % len(self._streams)
        return found

    async def _wait(self, limit: int, seconds: float) -> list[Message]:
        """Wait until something arrives, or it is time to claim messages of dead consumers."""
        seconds = min(seconds, MAX_BLOCK_SECONDS, max(self._until_claim(), 0.001))
        each = max(1, limit // len(self._streams))  # COUNT applies to each stream
        newest = [">"] * len(self._streams)
        read = ("XREADGROUP", "GROUP", self._group, self._me, "COUNT", each, "BLOCK", max(1, round(seconds * 1000)))
        try:
            (answer,) = await self._reading.ask([(*read, "STREAMS", *self._streams, *newest)], wait_seconds=seconds)
        except OutcomeUnknown as lost:
            raise BusDown(str(lost)) from lost
        if isinstance(answer, ResponseError):
            if str(answer).startswith("NOGROUP"):
                return []  # stream or group was deleted: the next look creates it
            raise BusDown(f"Redis: {answer}")
        found = self._new_messages([[stream, *entry] for stream, entries in answer or () for entry in entries])
        if len(found) > limit:
            await self._run_for(scripts.GIVE_BACK, [message.place for message in found[limit:]])
        return found[:limit]

    def _new_messages(self, raw: Iterable[Sequence[Any]]) -> list[Message]:
        """Return the messages that are not at work here: after a long silence we may claim our own."""
        found: list[Message] = []
        for stream, entry, fields in raw:
            place = EntryPosition(stream.decode(), entry.decode())
            if place not in self._at_work:
                names = (name.decode(errors="replace") for name in fields[::2])
                found.append(Message(place, dict(zip(names, fields[1::2], strict=True))))
        return found

    def _rotated_streams(self) -> list[str]:
        """Return the streams, each being the first in turn."""
        return self._streams[self._first :] + self._streams[: self._first]

    def _may_claim(self) -> bool:
        """Return whether to claim now.

        Never right after an outage, so that running consumers can touch theirs first.
        """
        if self._claim_at is None:
            self._claim_at = _now() + self._pause()
            return False
        if _now() < self._claim_at:
            return False
        self._claim_at = _now() + self._pause()
        return True

    def _until_claim(self) -> float:
        return 0.0 if self._claim_at is None else self._claim_at - _now()

    def _pause(self) -> float:
        return self._idle_seconds / 3 * (0.75 + 0.25 * self._chance())

    def _renew_claims(self, ask: Ask) -> None:
        """Renew the claims on messages at work and drop those that were lost.

        Runs in the renewer's thread: a blocked event loop does not change the messages at work.
        """
        places = list(self._at_work)
        if places:
            arguments = (self._group, self._me, *self._named(places))
            ours = ask(scripts.RENEW, self._streams, arguments)
            lost = [place for place, still in zip(places, ours, strict=True) if not still and place in self._at_work]
            if lost:
                self._at_work.difference_update(lost)
                log.warning("messages were claimed by others or deleted", messages=len(lost))
        self._tidy(ask)

    def _tidy(self, ask: Ask) -> None:
        now = time.monotonic()
        if self._tidy_at is None:
            self._tidy_at = now + TIDY_SECONDS * self._chance()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_SECONDS * (0.5 + self._chance())
            gone = round(max(GONE_SECONDS, 10 * self._idle_seconds) * 1000)
            ask(scripts.FORGET_GONE, self._streams, (self._group, "", gone))

    async def _run(self, script: LuaScript, keys: Sequence[str], *arguments: str | int) -> list[Any]:
        answer: list[Any] = await self._reading.run(script, keys, self._group, self._me, *arguments)
        return answer

    async def _run_for(self, script: LuaScript, places: Sequence[EntryPosition]) -> list[bool]:
        if not places:
            return []
        named = self._named(places)
        answers = await self._commands.run(script, self._streams, self._group, self._me, *named)
        return [bool(answer) for answer in answers or ()]

    def _named(self, places: Iterable[EntryPosition]) -> list[str | int]:
        return [part for place in places for part in (self._streams.index(place.stream) + 1, place.entry)]


def _now() -> float:
    return asyncio.get_running_loop().time()
