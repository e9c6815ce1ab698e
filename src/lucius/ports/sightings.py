"""Sightings of platform services: which of them pull directives or call back, and since when none did."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from lucius.core.model.records import Instant, Millis

MAX_INSTANCES = 100
"""Instances of one service that are stored and returned, the last seen first."""
MAX_SERVICES = 1_000
MAX_SIGHTINGS = 5_000
"""Sightings in one response. The last of each service come first, so that no service hides another one."""
MAX_COUNTED_JOBS = 20_000
"""Live jobs that are looked at to count the attempts that services work on."""
INSTANCE_TTL_MS: Millis = 24 * 3600 * 1000
"""An instance not seen for this long is deleted, unless it is the one of its service that pulled last."""

SERVICE_TTL_MS: Millis = 30 * INSTANCE_TTL_MS
"""A service not seen for this long, and without pending work, is deleted."""


class Sender(NamedTuple):
    """A process as the headers of its request name it, with the version it runs; each is empty if they do not."""

    instance: str = ""
    agent: str = ""


class Sighting(Struct, frozen=True, kw_only=True):
    """When an instance of a service was seen last. `instance` and `agent` are as it reports them, or empty."""

    service: str
    instance: str = ""
    agent: str = ""
    last_seen_at: Instant
    last_pull_at: Instant | None = None


class ServiceSightings(Protocol):
    """Sightings of services, shared by the replicas. Jobs do not depend on this data."""

    async def record_sightings(self, seen: Sequence[Sighting]) -> None:
        """Keep these beside what is known; of two for one instance, the later instants count.

        Of each service the MAX_INSTANCES that were seen last are kept, and the one that pulled last.
        """

    async def sightings(self, service: str | None = None) -> list[Sighting]:
        """Return the sightings of one service or of all, the last seen first.

        Of each service the instance that was seen last and the one that pulled last are always among them.
        """

    async def forget_services(self, before: Instant, except_services: Collection[str]) -> None:
        """Delete all sightings of services that were last seen before an instant, except of these."""

    async def working_steps(self) -> dict[str, int]:
        """Count the attempts each service works on: picked up and not ended. Reads up to MAX_COUNTED_JOBS live jobs."""


def merged(old: Sighting | None, new: Sighting) -> Sighting:
    """Join two sightings of one instance."""
    if old is None:
        return new
    pulls = [at for at in (old.last_pull_at, new.last_pull_at) if at is not None]
    return Sighting(
        service=new.service,
        instance=new.instance,
        agent=new.agent or old.agent,
        last_seen_at=max(old.last_seen_at, new.last_seen_at),
        last_pull_at=max(pulls, default=None),
    )
