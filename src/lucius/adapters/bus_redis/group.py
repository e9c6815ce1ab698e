"""One consumer of one group on some streams: what it is given, what it is at, and what it lets go of."""

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

from lucius.adapters.bus_redis import scripts
from lucius.adapters.bus_redis.line import CALL_SECONDS, Line, Script
from lucius.adapters.bus_redis.touching import Ask, Touching
from lucius.ports.errors import BusDown, OutcomeUnknown

log: structlog.stdlib.BoundLogger = structlog.get_logger()

GONE_SECONDS = 3600.0
TIDY_SECONDS = 600.0
LONGEST_BLOCK = 60.0
NEVER = 2**53
MOST_LOST = 10_000


class Place(NamedTuple):
    stream: str
    entry: str


class Message(NamedTuple):
    place: Place
    fields: dict[str, bytes]


class Group:
    """Two connections: one may wait in a read while the other says what we are done with. A thread, with its own, says
    what we are at."""

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
        self._reading = Line(url, call_seconds)
        self._telling = Line(url, call_seconds)
        self._at_work: set[Place] = set()
        self._first = 0
        self._lost_some = False
        self._claim_at: float | None = None
        self._tidy_at: float | None = None
        self._touching: Touching | None = None

    async def take(self, limit: int, wait_seconds: float) -> list[Message]:
        """At most so many; those that others died with first. Raises BusDown, and then has taken nothing: what it was
        given before is found by the next that asks."""
        if self._touching is None:
            self._touching = Touching(self._url, self._call_seconds, self._idle_seconds, self._touch, self._chance)
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

    async def settle(self, places: Iterable[Place]) -> list[bool]:
        """Which of them were ours until now. Raises BusDown."""
        asked = list(places)
        answers = await self._about(scripts.SETTLE, asked)
        self._at_work.difference_update(asked)
        return answers

    async def give_back(self, places: Iterable[Place]) -> list[bool]:
        """For others, at once; and what we were given in answers that we never got. Which of them were ours. Raises
        BusDown."""
        asked = list(places)
        answers = await self._about(scripts.GIVE_BACK, asked)
        self._at_work.difference_update(asked)
        await self._give_back_lost()
        return answers

    def let_go(self, places: Iterable[Place]) -> None:
        """They were not taken after all: the next that asks finds them."""
        self._at_work.difference_update(places)
        self._lost_some = True

    def leave(self, places: Iterable[Place]) -> None:
        """For whoever claims what nobody has touched for a while."""
        self._at_work.difference_update(places)

    async def bury(self, place: Place, reason: str) -> None:
        """If that can't be just now, it comes again."""
        keys = [place.stream, self._dead]
        try:
            await self._telling.run(scripts.BURY, keys, self._group, self._me, place.entry, reason)
        except BusDown as down:
            log.warning("a message could not be put aside, it comes again", reason=str(down))
            self._lost_some = True
        self._at_work.discard(place)

    async def close(self) -> None:
        """What we are at is another's after a while; what we never got to know of, at once. Who holds nothing leaves no
        trace."""
        touching, self._touching = self._touching, None
        if touching is not None:
            touching.stop()
            await asyncio.to_thread(touching.join, self._call_seconds)
        await self._reading.close()
        try:
            if touching is not None:
                await self._give_back_lost()
                await self._telling.run(scripts.FORGET_GONE, self._streams, self._group, self._me, NEVER)
        except BusDown as down:
            log.info("left without taking leave of the bus", reason=str(down))
        finally:
            await self._telling.close()

    async def _give_back_lost(self) -> None:
        if self._lost_some:
            at_work = self._named(self._at_work)
            arguments = (self._group, self._me, MOST_LOST, *at_work)
            lost = self._news(await self._telling.run(scripts.FIND_LOST, self._streams, *arguments))
            await self._about(scripts.GIVE_BACK, [message.place for message in lost])

    async def _look(self, limit: int) -> list[Message]:
        found: list[Message] = []
        if self._lost_some:
            at_work = self._named(self._at_work)
            found += self._news(await self._run(scripts.FIND_LOST, self._streams, limit, *at_work))
            self._lost_some = len(found) == limit
        if self._may_claim() and len(found) < limit:
            keys, idle = [*self._turned(), self._dead], round(self._idle_seconds * 1000)
            found += self._news(await self._run(scripts.CLAIM, keys, limit - len(found), idle, self._deliveries))
        if len(found) < limit:
            found += self._news(await self._run(scripts.TAKE, self._turned(), limit - len(found)))
            self._first = (self._first + 1) % len(self._streams)
        return found

    async def _wait(self, limit: int, seconds: float) -> list[Message]:
        """Until something comes, or it is time to look for what others died with."""
        seconds = min(seconds, LONGEST_BLOCK, max(self._until_claim(), 0.001))
        each = max(1, limit // len(self._streams))  # it counts by stream
        newest = [">"] * len(self._streams)
        read = ("XREADGROUP", "GROUP", self._group, self._me, "COUNT", each, "BLOCK", max(1, round(seconds * 1000)))
        try:
            (answer,) = await self._reading.ask([(*read, "STREAMS", *self._streams, *newest)], wait_seconds=seconds)
        except OutcomeUnknown as lost:
            raise BusDown(str(lost)) from lost
        if isinstance(answer, ResponseError):
            if str(answer).startswith("NOGROUP"):
                return []  # wiped, or deleted under us: the next look makes it anew
            raise BusDown(f"Redis: {answer}")
        found = self._news([[stream, *entry] for stream, entries in answer or () for entry in entries])
        if len(found) > limit:
            await self._about(scripts.GIVE_BACK, [message.place for message in found[limit:]])
        return found[:limit]

    def _news(self, raw: Iterable[Sequence[Any]]) -> list[Message]:
        """Without those that we are at: should nobody have heard from us for a while, we may claim from ourselves."""
        found: list[Message] = []
        for stream, entry, fields in raw:
            place = Place(stream.decode(), entry.decode())
            if place not in self._at_work:
                names = (name.decode(errors="replace") for name in fields[::2])
                found.append(Message(place, dict(zip(names, fields[1::2], strict=True))))
        return found

    def _turned(self) -> list[str]:
        """Each stream has its turn to be the first."""
        return self._streams[self._first :] + self._streams[: self._first]

    def _may_claim(self) -> bool:
        """Not at once after an outage: those who live must have had the time to say so."""
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

    def _touch(self, ask: Ask) -> None:
        """In the thread: the event loop may stand still, and then changes nothing of what we are at."""
        places = list(self._at_work)
        if places:
            arguments = (self._group, self._me, *self._named(places))
            ours = ask(scripts.TOUCH, self._streams, arguments)
            lost = [place for place, still in zip(places, ours, strict=True) if not still and place in self._at_work]
            if lost:
                self._at_work.difference_update(lost)
                log.warning("messages went to others, or are gone", messages=len(lost))
        self._tidy(ask)

    def _tidy(self, ask: Ask) -> None:
        now = time.monotonic()
        if self._tidy_at is None:
            self._tidy_at = now + TIDY_SECONDS * self._chance()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_SECONDS * (0.5 + self._chance())
            gone = round(max(GONE_SECONDS, 10 * self._idle_seconds) * 1000)
            ask(scripts.FORGET_GONE, self._streams, (self._group, "", gone))

    async def _run(self, script: Script, keys: Sequence[str], *arguments: str | int) -> list[Any]:
        answer: list[Any] = await self._reading.run(script, keys, self._group, self._me, *arguments)
        return answer

    async def _about(self, script: Script, places: Sequence[Place]) -> list[bool]:
        if not places:
            return []
        named = self._named(places)
        answers = await self._telling.run(script, self._streams, self._group, self._me, *named)
        return [bool(answer) for answer in answers or ()]

    def _named(self, places: Iterable[Place]) -> list[str | int]:
        return [part for place in places for part in (self._streams.index(place.stream) + 1, place.entry)]


def _now() -> float:
    return asyncio.get_running_loop().time()
