"""How a directive leaves us, and how a service gets it.

A push bus has a Publisher that the relay feeds. A pull bus (`local:`) has none: services ask, and the ledger's
outbox is the queue. Services see only a Consumer, whichever it is.
"""

from typing import Protocol

from lucius.contract import Directive


class Publisher(Protocol):
    async def publish(self, topic: str, directive: Directive) -> None:
        """Return once the bus has confirmed. Raises BusDown, MessageRefused or OutcomeUnknown."""

    async def close(self) -> None: ...


class Consumer(Protocol):
    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        """Directives for this consumer's service and lanes; waits for the first one, up to `wait_seconds`.

        Raises BusDown.
        """

    async def close(self) -> None: ...
