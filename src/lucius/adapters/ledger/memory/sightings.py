"""Sightings of services, kept in a dictionary."""

from collections.abc import Collection, Sequence
from itertools import islice

from lucius.adapters.ledger.memory.tables import MemoryTables
from lucius.core.model.records import Instant
from lucius.core.model.statuses import StepStatus
from lucius.ports.sightings import INSTANCE_TTL_MS, MAX_COUNTED_JOBS, MAX_INSTANCES, MAX_SIGHTINGS, Sighting, merged


class MemorySightings:
    """Implements ServiceSightings."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self._sightings: dict[tuple[str, str], Sighting] = {}

    async def record_sightings(self, seen: Sequence[Sighting]) -> None:
        for sighting in seen:
            key = sighting.service, sighting.instance
            self._sightings[key] = merged(self._sightings.get(key), sighting)
            self._forget(sighting.service, sighting.last_seen_at - INSTANCE_TTL_MS)
        for service in {sighting.service for sighting in seen}:
            kept = {one.instance for _, one in self._ranked(service)}
            for key in [key for key in self._sightings if key[0] == service and key[1] not in kept]:
                del self._sightings[key]

    def _forget(self, service: str, before: Instant) -> None:
        mine = [seen for seen in self._sightings.values() if seen.service == service]
        last_pull = max((seen.last_pull_at or 0 for seen in mine), default=0)
        for seen in mine:
            if seen.last_seen_at < before and (seen.last_pull_at is None or seen.last_pull_at < last_pull):
                del self._sightings[seen.service, seen.instance]

    async def forget_services(self, before: Instant, except_services: Collection[str]) -> None:
        kept = {seen.service for seen in self._sightings.values() if seen.last_seen_at >= before} | {*except_services}
        self._sightings = {key: seen for key, seen in self._sightings.items() if seen.service in kept}

    async def sightings(self, service: str | None = None) -> list[Sighting]:
        names = {name for name, _ in self._sightings} if service is None else {service}
        ranked = [one for name in names for one in self._ranked(name)]
        first = sorted(ranked, key=lambda one: (one[0], -one[1].last_seen_at))[:MAX_SIGHTINGS]
        return sorted((seen for _, seen in first), key=lambda seen: -seen.last_seen_at)

    async def working_steps(self) -> dict[str, int]:
        working: dict[str, int] = {}
        for record in islice(self._tables.live.values(), MAX_COUNTED_JOBS):
            for step in record.steps.values():
                if step.status is StepStatus.PROCESSING:
                    working[step.service] = working.get(step.service, 0) + 1
        return working

    def _ranked(self, service: str) -> list[tuple[int, Sighting]]:
        """Return the instances of a service to keep: the last seen from rank 1 on; the last that pulled has rank 1."""
        mine = [seen for (name, _), seen in self._sightings.items() if name == service]
        by_seen = sorted(mine, key=lambda seen: (-seen.last_seen_at, seen.instance))
        pulled = [seen for seen in mine if seen.last_pull_at is not None]
        last = min(pulled, key=lambda seen: (-(seen.last_pull_at or 0), seen.instance), default=None)
        ranked = [(1 if seen is last else rank, seen) for rank, seen in enumerate(by_seen, start=1)]
        return [(rank, seen) for rank, seen in ranked if rank <= MAX_INSTANCES]
