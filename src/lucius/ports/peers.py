"""The other processes on the same ledger: what their commits mean for this one, and whether any of them is at work."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from lucius.core.model import Instant, Millis

ANY_LANE = -1
NEAR_MS: Millis = 2_500
"""A deadline so near may come before somebody looks by himself: a little more than the pause between two looks."""
MOST_STRETCH = 4.0


class Wake(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became durable elsewhere, so far as somebody here may wait for it.

    `changed` are jobs that go on, `ended` those that do not. `ready` are services and lanes with rows that nobody has
    taken, `picked_up` services that can be given more. `due` are deadlines that come before anybody would look by
    himself. With `protocols`, some of those have changed. `told` are letters that the jobs' workflows will hear of: who
    works on one may tell it sooner.
    """

    ready: tuple[tuple[str, int], ...] = ()
    picked_up: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    due: tuple[Instant, ...] = ()
    protocols: bool = False
    told: tuple[str, ...] = ()


class Door(Struct, frozen=True):
    """`since` when there was always somebody who took callbacks. While it is closed, an instant to come."""

    since: Instant = 0
    is_closed: bool = False


class Presence(Protocol):
    """Whether somebody looked after the deadlines all along. What nobody watched must not be held against services."""

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        """Note that an engine is at work; since when there was always one, with no gap longer than that."""

    async def serve(self, serves: Callable[[], bool]) -> None:
        """Services can speak to this process, for as long as that is true."""

    def door(self, now: Instant) -> Door:
        """Whether services can speak to anybody, as of the last tick."""

    async def at_work(self, now: Instant, gap_ms: Millis) -> Instant:
        """Since when there were always both, for one who minds deadlines that no engine looks at: nothing is noted."""

    async def last_tick(self) -> Instant | None:
        """When an engine was at work last, for those who run none; None if there never was one."""

    def stretch(self) -> float:
        """How many times rarer each of the processes that are there may look than one alone would have to.

        At most MOST_STRETCH.
        """


class SharedSecrets(Protocol):
    """What processes sign with that must believe each other."""

    async def secret(self, name: str, made: str) -> str:
        """The secret of that name: the one that was there, or else the one just made."""
