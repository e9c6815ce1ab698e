"""Delivery of directives to services.

A push bus has a Publisher that the relay feeds. A pull bus (`local:`) has none: services poll, and the ledger's
outbox is the queue. Services see only a Consumer in both cases. A bus that redelivers the messages of a dead consumer
moves those that can't be processed to DeadLetters.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from lucius.contract import Directive


class Publisher(Protocol):
    async def publish(self, topic: str, directive: Directive) -> None:
        """Return once the bus has confirmed. Raises BusDown, MessageRefused or OutcomeUnknown."""

    async def ping(self) -> None:
        """Return if the bus answers. Raises BusDown."""

    async def close(self) -> None: ...


class Consumer(Protocol):
    gives_once: bool
    """True if a message is delivered at most once: one that was given out is never redelivered."""

    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        """Return directives for this consumer's service and lanes; wait up to `wait_seconds` for the first one.

        Raises BusDown.
        """

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        """Confirm directives returned by `pull`, so that they are not redelivered; return for each whether it was ours.

        Raises BusDown, and may have confirmed them all the same; a second call then returns False for them.
        """

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        """Return directives that were not begun to the bus, for other consumers to take at once.

        Also returns what a cancelled `pull` may have taken. Returns for each directive if it could be given back.
        Raises BusDown.
        """

    async def close(self) -> None: ...


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that the bus no longer delivers. Fields that the message did not contain are empty."""

    entry_id: str
    reason: str
    deliveries: int = 0
    job_id: str = ""
    step_id: str = ""
    tenant_id: str = ""
    attempt_no: int = 0
    lease_id: str = ""


class DeadLetters(Protocol):
    """Dead letters, each delivered to one reader, and redelivered to another if that one dies."""

    async def take(self, limit: int, wait_seconds: float) -> list[DeadLetter]:
        """Return dead letters; wait up to `wait_seconds` for the first one. Raises BusDown."""

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        """Remove processed dead letters. Raises BusDown."""

    def let_go(self, letters: Sequence[DeadLetter]) -> None:
        """Release unprocessed dead letters: after a while they are delivered again, possibly to this reader."""

    async def close(self) -> None: ...
