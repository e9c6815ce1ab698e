"""Readiness of this process: whether it should receive work, and if not, why. Reports are at most about 1 s old."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, assert_never

import structlog

from lucius.contract import Check
from lucius.core.model.records import Instant, Millis
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.config import ConfigSource
from lucius.ports.engine import EngineHealth
from lucius.ports.errors import BusDown, LedgerError
from lucius.ports.ledger import Ledger
from lucius.ports.peers import EngineLiveness

log = structlog.get_logger(__name__)

PROBE_TIMEOUT_SECONDS = 1.0
PROBE_CACHE_SECONDS = 1.0
MAX_TICK_AGE_MS: Millis = 10_000

Probe = Callable[[], Awaitable[Check]]


class Role(StrEnum):
    """The parts of a control plane that a process runs."""

    WHOLE = "api and engine"
    API = "api"
    ENGINE = "engine"
    WORKER = "temporal worker"


class Loops(Protocol):
    """The background loops that drive jobs in this process."""

    @property
    def running(self) -> bool: ...

    def troubles(self) -> Mapping[str, str]:
        """Return the loops that make no progress, each with its problem."""


class Protocols(Protocol):
    def list(self) -> Sequence[Any]: ...

    def problems(self) -> Sequence[Any]: ...


class Readiness:
    """Readiness report. Failed `required` checks make the process not ready.

    `informational` checks are only reported: work accepted while they fail is queued, not lost.
    """

    def __init__(
        self, required: Mapping[str, Probe], informational: Mapping[str, Probe], draining: Callable[[], bool]
    ) -> None:
        self._required = frozenset(required)
        self._draining = draining
        self._probes = {**required, **informational}

    async def check(self) -> tuple[bool, dict[str, Check]]:
        results = await asyncio.gather(*(probe() for probe in self._probes.values()))
        checks = dict(zip(self._probes, results, strict=True))
        if self._draining():
            checks["draining"] = Check(ok=False, detail="this process is stopping")
        ready = not self._draining() and all(checks[name].ok for name in self._required)
        return ready, checks


class CachedProbe:
    """Caches a probe of an external system, so that frequent requests cause no load.

    One probe runs at a time, and fails after PROBE_TIMEOUT_SECONDS; its answer is kept for PROBE_CACHE_SECONDS.
    """

    def __init__(self, probe: Probe, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._monotonic = monotonic
        self._running: asyncio.Task[Check] | None = None
        self._cached: Check | None = None
        self._cached_at = 0.0

    async def __call__(self) -> Check:
        if self._cached is not None and self._monotonic() - self._cached_at < PROBE_CACHE_SECONDS:
            return self._cached
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(self._running)

    async def _run(self) -> Check:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                result = await self._probe()
        except TimeoutError:
            result = Check(ok=False, detail=f"no answer within {PROBE_TIMEOUT_SECONDS:g} s")
        if not result.ok and (self._cached is None or self._cached.ok):
            log.warning("readiness check failed", reason=result.detail)
        self._cached, self._cached_at = result, self._monotonic()
        return result


def readiness_of(
    role: Role,
    *,
    ledger: Ledger,
    engine_health: Callable[[], EngineHealth],
    publisher: Publisher | None,
    protocols: Protocols,
    loops: Loops,
    liveness: EngineLiveness | None,
    clock: Clock,
    draining: Callable[[], bool],
    config: ConfigSource,
) -> Readiness:
    """Return the readiness checks of a role.

    An API may accept work while the bus or the engine is down, because it is queued; an engine without a bus makes no
    progress.
    """
    required: dict[str, Probe] = {
        "ledger": CachedProbe(ledger_answers(ledger, lambda: engine_health().write_refusal)),
        "protocols": protocols_loaded(protocols),
    }
    bus, turning = {"bus": CachedProbe(bus_answers(publisher))}, {"loops": loops_progress(loops.troubles)}
    temporal = {"temporal": temporal_answers(engine_health)} if engine_health().outage is not None else {}
    configured = {"config": config_is_current(config)}
    informational: dict[str, Probe] = {**configured, **bus, **temporal}
    match role:
        case Role.WHOLE:
            return Readiness(
                {**required, "engine": engine_runs(lambda: loops.running)}, {**turning, **informational}, draining
            )
        case Role.API:
            remote_engine = {"engine": CachedProbe(engine_ticks(liveness, clock))} if liveness is not None else {}
            return Readiness(required, {**remote_engine, **informational}, draining)
        case Role.ENGINE:
            running = {"engine": engine_runs(lambda: loops.running)}
            return Readiness({**required, **running, **turning, **bus}, configured, draining)
        case Role.WORKER:
            running = {"engine": engine_runs(lambda: engine_health().is_worker_running)}
            working = {"loops": loops_progress(lambda: engine_health().worker_troubles)}
            return Readiness({**required, **running, **working, **bus}, configured, draining)
        case _:
            assert_never(role)


def ledger_answers(ledger: Ledger, refused: Callable[[], LedgerError | None]) -> Probe:
    """Return a probe of the ledger; `refused` returns a recent write failure, which reading cannot reveal."""

    async def probe() -> Check:
        try:
            await ledger.due(0, 1)
            failure: LedgerError | None = refused()
        except LedgerError as error:
            failure = error
        if failure is None:
            return Check(ok=True)
        log.debug("ledger unavailable", reason=str(failure))  # not in the answer: may name hosts and paths
        return Check(ok=False, detail=f"the ledger cannot be used right now ({type(failure).__name__})")

    return probe


def bus_answers(publisher: Publisher | None) -> Probe:
    async def probe() -> Check:
        if publisher is None:
            return Check(ok=True, detail="services pull")
        try:
            await publisher.ping()
        except BusDown as error:
            log.debug("bus unavailable", reason=str(error))
            return Check(ok=False, detail="the bus is down: directives are queued in the outbox")
        return Check(ok=True)

    return probe


def protocols_loaded(protocols: Protocols) -> Probe:
    async def probe() -> Check:
        loaded, refused = len(protocols.list()), len(protocols.problems())
        return Check(
            ok=loaded > 0, detail=f"{loaded} loaded" + (f", {refused} refused: see the log" if refused else "")
        )

    return probe


def config_is_current(config: ConfigSource) -> Probe:
    """Return a probe that fails while an older configuration is used.

    It must never make a process unready: all replicas read the same file, and one typo would take down all of them.
    """

    async def probe() -> Check:
        if not config.problems():
            return Check(ok=True)
        return Check(ok=False, detail="the config file has a fault, so an older version is used: see the log")

    return probe


def engine_runs(is_running: Callable[[], bool]) -> Probe:
    async def probe() -> Check:
        return Check(ok=True) if is_running() else Check(ok=False, detail="the engine is not running")

    return probe


def loops_progress(troubles: Callable[[], Mapping[str, str]]) -> Probe:
    async def probe() -> Check:
        found = troubles()
        return Check(ok=not found, detail="; ".join(f"{name}: {result}" for name, result in found.items()))

    return probe


def temporal_answers(engine_health: Callable[[], EngineHealth]) -> Probe:
    """Return a probe of Temporal; work accepted while it is down is queued."""

    async def probe() -> Check:
        if reason := engine_health().outage:
            log.debug("Temporal unavailable", reason=reason)  # not in the answer: may name hosts
            return Check(ok=False, detail="Temporal does not answer: jobs are queued")
        return Check(ok=True)

    return probe


def engine_ticks(liveness: EngineLiveness, clock: Clock) -> Probe:
    """Return a probe of engines in other processes, for a process that runs none."""

    async def probe() -> Check:
        try:
            last: Instant | None = await liveness.last_tick()
        except LedgerError as error:
            return Check(ok=False, detail=f"the ledger cannot be used right now ({type(error).__name__})")
        if last is None:
            return Check(ok=False, detail="no engine has run yet: start `lucius reconciler`")
        age = clock.now() - last
        detail = f"an engine last ticked {max(0, age) / 1000:.1f} s ago"
        return Check(ok=age <= MAX_TICK_AGE_MS, detail=detail)

    return probe
