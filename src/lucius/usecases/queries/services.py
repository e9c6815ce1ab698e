"""Registry of platform services: which of them pull or call back, what they work on and what waits for them.

Pulls, callbacks and heartbeats are noted in memory and written to the ledger every few seconds, so that replicas share
them and no request waits for it. What this process has noted counts at once.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

import structlog
from msgspec import Struct
from msgspec.structs import replace

from lucius.contract import ServiceInstance, ServiceList, ServiceView
from lucius.core.decide.explain import clock_time
from lucius.core.model.counters import PENDING, UNACKED, pending_by_lane, unacked_by_service
from lucius.core.model.records import Instant, Millis
from lucius.core.protocol.definition import ENGINE_SERVICES
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerError
from lucius.ports.readers import JobReader, Oldest
from lucius.ports.sightings import (
    MAX_INSTANCES,
    MAX_SERVICES,
    SERVICE_TTL_MS,
    ServiceSightings,
    Sighting,
    merged,
)
from lucius.usecases.timestamps import timestamp, timestamp_or_none

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 10.0
MAX_UNWRITTEN_SIGHTINGS = 1_000
MAX_LABEL_CHARS = 128
NO_SERVICE = ""
"""The service of a parallel or map step, which is PROCESSING while its inner steps run."""
CACHE_MS: Millis = 2_000
FORGET_INTERVAL_MS: Millis = 3_600_000
ABSENT_AFTER_MS: Millis = 120_000
"""A service that pulls is seen at least once a minute, and other replicas learn of it some seconds later."""


class _Waiting(Struct, frozen=True):
    """Cached sightings and oldest waiting steps."""

    at: Instant
    sightings: dict[str, list[Sighting]]
    oldest: Mapping[str, Oldest]


class _Working(Struct, frozen=True):
    """Cached count of steps in progress."""

    at: Instant
    steps: Mapping[str, int]


class ServiceRegistry:
    """Records what services do, and answers queries about them."""

    def __init__(self, store: ServiceSightings, jobs: JobReader, clock: Clock, *, is_push_bus: bool = False) -> None:
        """With `is_push_bus`, services get directives from a bus: callbacks are the only sign of them."""
        self._store = store
        self._jobs = jobs
        self._clock = clock
        self._is_push_bus = is_push_bus
        self._unwritten: dict[tuple[str, str], Sighting] = {}
        self._instances: Counter[str] = Counter()
        self._writing: dict[tuple[str, str], Sighting] = {}
        self._flushing = asyncio.Lock()
        self._flushes = 0
        self._known: _Waiting | None = None
        self._working: _Working | None = None
        self._met: set[str] = set()
        self._first_seen = asyncio.Event()
        self._forgotten_at: Instant | None = None

    def note_pull(self, service: str, instance: str = "", agent: str = "") -> None:
        """Note that an instance of a service pulls now."""
        now = self._clock.now()
        name, agent = _printable(instance), _printable(agent)
        self._note(Sighting(service=service, instance=name, agent=agent, last_seen_at=now, last_pull_at=now))

    def note_callback(self, service: str, instance: str = "", agent: str = "") -> None:
        """Note that a callback was applied, the only sign of services that are busy or take directives from a bus."""
        if service not in ENGINE_SERVICES:
            name, agent = _printable(instance), _printable(agent)
            self._note(Sighting(service=service, instance=name, agent=agent, last_seen_at=self._clock.now()))

    def _note(self, seen: Sighting) -> None:
        if not self._has_room(seen):  # note the service without the instance
            seen = replace(seen, instance="", agent="")
        key = seen.service, seen.instance
        known = self._unwritten.get(key)
        if known is not None:
            self._unwritten[key] = merged(known, seen)
        elif len(self._unwritten) < MAX_UNWRITTEN_SIGHTINGS + MAX_SERVICES:
            self._unwritten[key] = seen
            self._instances[seen.service] += 1
        if seen.service not in self._met and len(self._met) < MAX_SERVICES:
            self._met.add(seen.service)
            self._first_seen.set()

    def _has_room(self, seen: Sighting) -> bool:
        """Return True if an instance is noted by name: many instances of one service must not hide other services."""
        if (seen.service, seen.instance) in self._unwritten:
            return True
        return self._instances[seen.service] < MAX_INSTANCES and len(self._unwritten) < MAX_UNWRITTEN_SIGHTINGS

    async def run_once(self) -> None:
        """Write what was noted, every few seconds; a service that was not seen here before is written at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._first_seen.wait()
        self._first_seen.clear()
        await self.flush()
        await self.forget_idle()

    async def flush(self) -> None:
        """Write what was noted; keep it for the next time if the ledger fails."""
        async with self._flushing:
            self._writing, self._unwritten = self._unwritten, {}
            self._instances.clear()
            noted = list(self._writing.values())
            try:
                if noted:
                    await self._store.record_sightings(noted)
            except LedgerError as error:
                for seen in noted:
                    self._note(seen)
                log.info("service sightings not written; will retry", sightings=len(noted), reason=str(error))
            finally:
                self._writing = {}
                self._known, self._flushes = None, self._flushes + 1

    async def forget_idle(self) -> None:
        """Delete services that were not seen for a month and that nothing waits for, at most once an hour."""
        now = self._clock.now()
        if self._forgotten_at is not None and now < self._forgotten_at + FORGET_INTERVAL_MS:
            return
        try:
            counters = await self._jobs.counters(UNACKED, PENDING)
            wanted = {*pending_by_lane(counters), *unacked_by_service(counters)}
            await self._store.forget_services(now - SERVICE_TTL_MS, wanted)
        except LedgerError as error:
            log.info("idle services not deleted; will retry", reason=str(error))
            return
        self._known, self._forgotten_at = None, now

    def _noted(self) -> list[Sighting]:
        """Return what the ledger may not have yet."""
        return [*self._writing.values(), *self._unwritten.values()]

    async def describe_unseen(self, services: Iterable[str]) -> Mapping[str, str]:
        """Return those of the services that have never pulled nor called back, each with a sentence that says so."""
        unseen = set(services) - (await self._waiting()).sightings.keys()
        return {service: self._describe_never(service) for service in unseen}

    async def describe_absence(self, service: str, *, counts: bool = True) -> str | None:
        """Return since when no instance has pulled, or that the service is busy; None if one has pulled recently.

        On a push bus, callbacks count instead of pulls. A service with as many steps as it can take does not pull.
        Without `counts`, the number of its steps is left out, because they are of all tenants.
        """
        seen = (await self._waiting()).sightings.get(service, [])
        now = self._clock.now()
        last_seen = _last_seen(seen) if seen else None
        last = last_seen if self._is_push_bus else _last_pull(seen)
        if _is_recent(last, now):
            return None
        if at_work := (await self._working_steps()).get(service, 0):
            return _describe_busy(service, at_work if counts else None, last_seen, now)
        if _is_recent(last_seen, now):
            return None
        if last is None:
            return self._describe_never(service)
        return f"no service has {self._verb} for {service} since {clock_time(last, now)}"

    def _describe_never(self, service: str) -> str:
        return f"no service has ever {self._verb} for {service}"

    @property
    def _verb(self) -> str:
        return "called back" if self._is_push_bus else "pulled"

    async def _working_steps(self) -> Mapping[str, int]:
        """Return how many steps each service works on, counted at most every two seconds."""
        now, known = self._clock.now(), self._working
        if known is None or not known.at <= now < known.at + CACHE_MS:
            known = self._working = _Working(now, await self._store.working_steps())
        return known.steps

    async def oldest_waiting(self, service: str) -> tuple[Instant, str] | None:
        """Return since when the oldest step not handed over waits for the service, with a note; None without one."""
        oldest = (await self._waiting()).oldest.get(service)
        if oldest is None:
            return None
        since = clock_time(oldest.at, self._clock.now())
        return oldest.at, f"the oldest step queued for {service} waits since {since}"

    async def services(self) -> ServiceList:
        """Return every service that was seen, or has something to do, of all tenants.

        Beyond MAX_SERVICES, services that have something to do come first, then those seen last.
        """
        counters = await self._jobs.counters(UNACKED, PENDING)
        pending = {name: sum(lanes.values()) for name, lanes in pending_by_lane(counters).items()}
        unacked, working = unacked_by_service(counters), await self._store.working_steps()
        known, now = await self._waiting(), self._clock.now()
        busy = {name for counts in (pending, unacked, working) for name, n in counts.items() if n}
        names = {*known.sightings, *known.oldest, *pending, *unacked, *working} - ENGINE_SERVICES - {NO_SERVICE}
        shown = sorted(names, key=lambda name: (name not in busy, -_last_seen(known.sightings.get(name, ())), name))
        views = [
            _view(
                name,
                known.sightings.get(name, []),
                known.oldest.get(name),
                now,
                at_work=working.get(name, 0),
                unacked=unacked.get(name, 0),
                backlog=pending.get(name, 0),
            )
            for name in sorted(shown[:MAX_SERVICES])
        ]
        return ServiceList(services=views, services_omitted=len(names) - len(views))

    async def _waiting(self) -> _Waiting:
        """Return sightings and oldest steps, read at most every two seconds; own notes are always added."""
        now, known = self._clock.now(), self._known
        noted, flushes = (
            self._noted(),
            self._flushes,
        )  # taken before the query: notes that are written during it count too
        if known is None or not known.at <= now < known.at + CACHE_MS:
            by_service: dict[str, list[Sighting]] = {}
            for seen in await self._store.sightings():
                by_service.setdefault(seen.service, []).append(seen)
            known = _Waiting(now, by_service, await self._jobs.backlog(now))
            if flushes == self._flushes:
                self._known = known
        joined = {name: list(found) for name, found in known.sightings.items()}
        for seen in noted:
            others = [one for one in joined.get(seen.service, []) if one.instance != seen.instance]
            same = next((one for one in joined.get(seen.service, []) if one.instance == seen.instance), None)
            joined[seen.service] = [merged(same, seen), *others]
        return _Waiting(known.at, joined, known.oldest)


def _view(
    service: str, seen: list[Sighting], oldest: Oldest | None, now: Instant, *, at_work: int, unacked: int, backlog: int
) -> ServiceView:
    newest = sorted(seen, key=lambda one: -_instance_seen_at(one))
    return ServiceView(
        service=service,
        last_pull_at=timestamp_or_none(_last_pull(seen)),
        last_seen_at=timestamp(_last_seen(seen)) if seen else None,
        at_work=at_work,
        unacked=unacked,
        backlog=backlog,
        oldest_waiting_at=timestamp(oldest.at) if oldest else None,
        oldest_waiting_seconds=max(0, now - oldest.at) / 1000 if oldest else None,
        instances=[
            ServiceInstance(
                instance=one.instance,
                agent=one.agent,
                last_seen_at=timestamp(_instance_seen_at(one)),
                last_pull_at=timestamp_or_none(one.last_pull_at),
            )
            for one in newest[:MAX_INSTANCES]
            if one.instance or one.agent
        ],
    )


def _instance_seen_at(seen: Sighting) -> Instant:
    """Return when the instance itself was seen; one without a name at its last pull, as others call back unnamed."""
    return seen.last_seen_at if seen.instance or seen.last_pull_at is None else seen.last_pull_at


def _last_pull(seen: Iterable[Sighting]) -> Instant | None:
    return max((one.last_pull_at for one in seen if one.last_pull_at is not None), default=None)


def _last_seen(seen: Iterable[Sighting]) -> Instant:
    return max((one.last_seen_at for one in seen), default=0)


def _is_recent(at: Instant | None, now: Instant) -> bool:
    return at is not None and now - at <= ABSENT_AFTER_MS


def _describe_busy(service: str, at_work: int | None, last_seen: Instant | None, now: Instant) -> str:
    steps = "" if at_work is None else " with 1 step" if at_work == 1 else f" with {at_work} steps"
    busy = f"service {service} is busy{steps}"
    if last_seen is None or _is_recent(last_seen, now):
        return busy
    return f"{busy}, and was seen last at {clock_time(last_seen, now)}"


def _printable(text: str) -> str:
    """Return untrusted text for tables and terminals: only printable characters, at most MAX_LABEL_CHARS."""
    shown = text[:MAX_LABEL_CHARS]
    return shown if shown.isprintable() else "".join(char for char in shown if char.isprintable())
