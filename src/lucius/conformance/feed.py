"""How directives reach the service under test.

A `Feed` is all that the cases know of a bus. Over `local:` the service pulls from the kit's own server; over
`redis://` the kit publishes, and sees what is taken.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from lucius.conformance.book import Attempt
from lucius.conformance.directives import soon
from lucius.conformance.model import Misuse
from lucius.contract import PullRequest


class Parcel(Struct, frozen=True, eq=False):
    """What is on its way to the service: a directive of ours, or with no attempt behind it something else.

    Two copies of one directive are two parcels.
    """

    message: Any
    attempt: Attempt | None = None


class Feed(Protocol):
    url: str
    """LUCIUS_BUS_URL of the service."""
    pulled_over_http: bool
    """Whether there are requests to be seen, and to be answered otherwise than asked for."""

    async def open(self) -> None: ...

    def send(self, parcel: Parcel) -> None:
        """On its way; the book is told when it has been handed over."""

    def waiting(self) -> int:
        """How much has not been handed over."""

    def asked_since(self, at: float) -> bool:
        """Whether the service has come for directives, where no request tells it."""

    def surprise(self) -> BaseException | None:
        """What went wrong in here, and is nobody's fault but the kit's."""

    async def close(self) -> None: ...


class LocalFeed:
    """A queue that pulls empty. The server asks it; `on_hand_over` hears what left."""

    url = "local:"
    pulled_over_http = True

    def __init__(self, on_hand_over: Callable[[Attempt], None]) -> None:
        self._queue: list[Parcel] = []
        self._arrived = asyncio.Event()
        self._on_hand_over = on_hand_over

    def send(self, parcel: Parcel) -> None:
        self._queue.append(parcel)
        self._arrived.set()

    def waiting(self) -> int:
        """How much has not been handed over."""
        return len(self._queue)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def asked_since(self, at: float) -> bool:
        return False  # the server knows

    def surprise(self) -> BaseException | None:
        return None

    async def arrival(self, seconds: float) -> None:
        """Until something is there, or so long."""
        self._arrived.clear()
        if self._queue:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return

    def take(self, wanted: PullRequest) -> list[Any]:
        """At most `max` messages, oldest first, of the lanes asked for; they count as handed over."""
        taken = [parcel for parcel in self._queue if _fits(parcel, wanted.lanes)][: wanted.max]
        self._queue = [parcel for parcel in self._queue if parcel not in taken]
        for parcel in taken:
            if parcel.attempt is not None:
                stamp(parcel.attempt)
                self._on_hand_over(parcel.attempt)
        return [parcel.message for parcel in taken]


def _fits(parcel: Parcel, lanes: list[int] | None) -> bool:
    return lanes is None or parcel.attempt is None or parcel.attempt.directive["lane"] in lanes


def stamp(attempt: Attempt) -> None:
    """The ACK deadline runs from the first hand-over; a message that comes again is the same message."""
    if not attempt.handed_over:
        attempt.directive["ack_deadline"] = soon(attempt.ack_seconds)


def check_bus(url: str, service: str | None) -> None:
    """Raises Misuse for a bus the kit can't feed."""
    scheme = url.partition(":")[0]
    if scheme not in ("local", "redis", "rediss", "unix"):
        raise Misuse(f"the kit feeds services over local: and redis://, not over {scheme}:")
    if scheme != "local" and not service:
        raise Misuse(f"over {scheme}: nobody tells which service it is: say --service")
