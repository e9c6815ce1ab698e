"""How a directive leaves us, and how a service gets it.

A push bus has a Publisher that the relay feeds. A pull bus (`local:`) has none: services ask, and the ledger's
outbox is the queue. Services see only a Consumer, whichever it is. A bus that gives out a message again when its
consumer died puts aside what nobody can take: DeadLetters.
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
    """Whether nobody ever gets a message again that somebody was given."""

    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        """Directives for this consumer's service and lanes; waits for the first one, up to `wait_seconds`.

        Raises BusDown.
        """

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        """Done with these, which `pull` gave: nobody is to get them again. For each, whether it was still ours.

        Raises BusDown, and may have done it all the same; asked again, it then says that they are not ours.
        """

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        """Not begun, and we shall not: for others to take, at once. So is what a pull that was cut off may have taken.
        For each, whether it could be. Raises BusDown."""

    async def close(self) -> None: ...


class DeadLetter(Struct, frozen=True, kw_only=True):
    """What a message on the bus was about that nobody will get any more. Empty where it did not say."""

    letter_id: str
    reason: str
    deliveries: int = 0
    job_id: str = ""
    step_id: str = ""
    tenant_id: str = ""
    attempt_no: int = 0
    lease_id: str = ""


class DeadLetters(Protocol):
    """Each letter goes to one of those who ask; should it die with it, to another."""

    async def take(self, max_letters: int, wait_seconds: float) -> list[DeadLetter]:
        """Waits for the first one, up to `wait_seconds`. Raises BusDown."""

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        """Raises BusDown."""

    def let_go(self, letters: Sequence[DeadLetter]) -> None:
        """Not done with these, and not at it: after a while they go to whoever asks, be it us."""

    async def close(self) -> None: ...
