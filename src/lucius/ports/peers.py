"""Other processes on the same ledger: wake-ups from their commits, and liveness of engines and callback APIs."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from lucius.core.model.records import Instant, Millis

ANY_LANE = -1
NEAR_DEADLINE_MS: Millis = 2_500
"""Deadlines nearer than this are announced to other processes: slightly more than the pause between two sweeps."""
MAX_SWEEP_BACKOFF = 4.0


class Wake(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Wake-up about commits of other processes, for what may be awaited in this one.

    `changed` are jobs that go on, `ended` jobs that do not. `ready` are services and lanes with unclaimed rows,
    `picked_up` services that can be given more directives. `due` are deadlines earlier than the next regular sweep.
    `protocols` is True if protocols have changed. `inbox_ids` are ids of inbox messages that the jobs' workflows will
    receive: a process that works on one of these jobs may deliver them sooner.
    """

    ready: tuple[tuple[str, int], ...] = ()
    picked_up: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    due: tuple[Instant, ...] = ()
    protocols: bool = False
    inbox_ids: tuple[str, ...] = ()


class CallbackAvailability(Struct, frozen=True):
    """Since when a callback API was always reachable. While none is, `since` lies in the future."""

    since: Instant = 0
    is_unavailable: bool = False


class EngineLiveness(Protocol):
    """Whether an engine handled deadlines all the time. Services must not be blamed for what no engine observed."""

    async def record_tick(self, now: Instant, gap_ms: Millis) -> Instant:
        """Record that an engine is running; return since when one always was, without a gap longer than `gap_ms`."""

    async def advertise(self, serves: Callable[[], bool]) -> None:
        """Advertise that services can call back to this process for as long as `serves()` is true."""

    def callback_availability(self, now: Instant) -> CallbackAvailability:
        """Return whether services can reach a callback API, as of the last tick."""

    async def working_since(self, now: Instant, gap_ms: Millis) -> Instant:
        """Return since when an engine and a callback API were always available; record nothing.

        For a caller that handles deadlines which no engine looks at.
        """

    async def last_tick(self) -> Instant | None:
        """Return when an engine ran last, for processes without one; None if none ever did."""

    def poll_backoff(self) -> float:
        """Return the factor by which each running process may poll more rarely than a single one would have to.

        At most MAX_SWEEP_BACKOFF.
        """


class SharedSecrets(Protocol):
    """Signing secrets that all processes must share."""

    async def secret(self, name: str, made: str) -> str:
        """Return the stored secret of that name; store and return `made` if there is none."""
