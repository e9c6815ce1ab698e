"""Feeds, which deliver directives to the service under test.

A `Feed` hides the bus from the cases. Over `local:` the service pulls from the kit's own server; over
`redis://` the kit publishes, and observes what is consumed.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from lucius.conformance.attempt_log import PlayedAttempt
from lucius.conformance.directives import timestamp_in
from lucius.contract import PullRequest


class QueuedMessage(Struct, frozen=True, eq=False):
    """A message for the service: an attempt's directive, or other content if there is no attempt.

    Each copy of a directive is a message of its own.
    """

    content: Any
    attempt: PlayedAttempt | None = None


class Feed(Protocol):
    url: str
    """LUCIUS_BUS_URL of the service."""
    pulled_over_http: bool
    """True if the kit can see pull requests and answer them abnormally."""

    async def open(self) -> None: ...

    def send(self, queued: QueuedMessage) -> None:
        """Send a message; its hand-over is recorded in the attempt log."""

    def waiting(self) -> int:
        """Return the number of messages not yet handed over."""

    def asked_since(self, at: float) -> bool:
        """Return whether the service has consumed from the bus since `at`; False where pull requests show it."""

    def internal_error(self) -> BaseException | None:
        """Return an internal error of the kit, if any."""

    async def close(self) -> None: ...


class LocalFeed:
    """Queue behind the kit's pull route. `on_hand_over` is called with each attempt handed over."""

    url = "local:"
    pulled_over_http = True

    def __init__(self, on_hand_over: Callable[[PlayedAttempt], None]) -> None:
        self._queue: list[QueuedMessage] = []
        self._arrived = asyncio.Event()
        self._on_hand_over = on_hand_over

    def send(self, queued: QueuedMessage) -> None:
        self._queue.append(queued)
        self._arrived.set()

    def waiting(self) -> int:
        return len(self._queue)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def asked_since(self, at: float) -> bool:
        return False  # the server records pull requests

    def internal_error(self) -> BaseException | None:
        return None

    async def arrival(self, seconds: float) -> None:
        """Wait until a message is queued, for at most `seconds`."""
        self._arrived.clear()
        if self._queue:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return

    def take(self, wanted: PullRequest) -> list[Any]:
        """Hand over and return at most `max` messages of the wanted lanes, oldest first."""
        taken = [queued for queued in self._queue if _fits(queued, wanted.lanes)][: wanted.max]
        self._queue = [queued for queued in self._queue if queued not in taken]
        for queued in taken:
            if queued.attempt is not None:
                stamp(queued.attempt)
                self._on_hand_over(queued.attempt)
        return [queued.content for queued in taken]


def _fits(queued: QueuedMessage, lanes: list[int] | None) -> bool:
    return lanes is None or queued.attempt is None or queued.attempt.directive["lane"] in lanes


def stamp(attempt: PlayedAttempt) -> None:
    """Set the ACK deadline at the first hand-over; a repeated message stays unchanged."""
    if not attempt.handed_over:
        attempt.directive["ack_deadline"] = timestamp_in(attempt.ack_seconds)
