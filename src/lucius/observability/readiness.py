"""Whether this process is to be sent work, and why not. Each answer is as true as it was a second ago, at worst."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, assert_never

import structlog

from lucius.contract import Check
from lucius.core.model import Instant, Millis
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.errors import BusDown, LedgerError
from lucius.ports.ledger import Ledger
from lucius.ports.peers import Presence

log = structlog.get_logger(__name__)

ANSWERS_WITHIN = 1.0
KEEPS_FOR = 1.0
TICKED_LATELY_MS: Millis = 10_000

Probe = Callable[[], Awaitable[Check]]


class Role(StrEnum):
    """Which parts of a control plane a process runs."""

    WHOLE = "api and engine"
    API = "api"
    ENGINE = "engine"
    WORKER = "temporal worker"


class Loops(Protocol):
    """What drives jobs in this process."""

    @property
    def running(self) -> bool: ...

    def troubles(self) -> Mapping[str, str]:
        """Loops that get nothing done, and what is wrong."""


class Protocols(Protocol):
    def list(self) -> Sequence[Any]: ...

    def problems(self) -> Sequence[Any]: ...


class Readiness:
    """`required` must be well; `told` is only told, because what is accepted meanwhile waits and is not lost."""

    def __init__(self, required: Mapping[str, Probe], told: Mapping[str, Probe], draining: Callable[[], bool]) -> None:
        self._required = frozenset(required)
        self._draining = draining
        self._probes = {**required, **told}

    async def look(self) -> tuple[bool, dict[str, Check]]:
        said = await asyncio.gather(*(probe() for probe in self._probes.values()))
        checks = dict(zip(self._probes, said, strict=True))
        if self._draining():
            checks["draining"] = Check(ok=False, detail="this process was asked to stop")
        ready = not self._draining() and all(checks[name].ok for name in self._required)
        return ready, checks


class Kept:
    """A probe of something outside: it runs once at a time, answers soon, and is not run again at once, so that
    nobody who asks often is a load."""

    def __init__(self, probe: Probe, steady: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._steady = steady
        self._running: asyncio.Task[Check] | None = None
        self._known: Check | None = None
        self._known_at = 0.0

    async def __call__(self) -> Check:
        if self._known is not None and self._steady() - self._known_at < KEEPS_FOR:
            return self._known
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(self._running)

    async def _run(self) -> Check:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                said = await self._probe()
        except TimeoutError:
            said = Check(ok=False, detail=f"no answer within {ANSWERS_WITHIN:g} s")
        if not said.ok and (self._known is None or self._known.ok):
            log.warning("a readiness check fails", reason=said.detail)
        self._known, self._known_at = said, self._steady()
        return said


def readiness_of(
    role: Role,
    *,
    ledger: Ledger,
    refused: Callable[[], LedgerError | None],
    publisher: Publisher | None,
    protocols: Protocols,
    engine: Loops,
    presence: Presence | None,
    clock: Clock,
    draining: Callable[[], bool],
    away: Callable[[], str] | None = None,
) -> Readiness:
    """An API takes work that then waits for a bus or an engine; an engine without a bus gets nothing done."""
    required: dict[str, Probe] = {
        "ledger": Kept(ledger_answers(ledger, refused)),
        "protocols": protocols_loaded(protocols),
    }
    bus, loops = {"bus": Kept(bus_answers(publisher))}, {"loops": loops_turn(engine)}
    temporal = {"temporal": temporal_answers(away)} if away is not None else {}
    match role:
        case Role.WHOLE:
            return Readiness({**required, "engine": engine_runs(engine)}, {**loops, **bus, **temporal}, draining)
        case Role.API:
            elsewhere = {"engine": Kept(somebody_ticks(presence, clock))} if presence is not None else {}
            return Readiness(required, {**elsewhere, **bus, **temporal}, draining)
        case Role.ENGINE | Role.WORKER:
            return Readiness({**required, "engine": engine_runs(engine), **loops, **bus}, {}, draining)
        case _:
            assert_never(role)


def ledger_answers(ledger: Ledger, refused: Callable[[], LedgerError | None]) -> Probe:
    """`refused` is why it took nothing lately, if that can't be known by asking."""

    async def probe() -> Check:
        try:
            await ledger.due(0, 1)
            failure: LedgerError | None = refused()
        except LedgerError as error:
            failure = error
        if failure is None:
            return Check(ok=True)
        log.debug("the ledger cannot be used", reason=str(failure))  # may name hosts and paths, and anyone may ask
        return Check(ok=False, detail=f"the ledger cannot be used right now ({type(failure).__name__})")

    return probe


def bus_answers(publisher: Publisher | None) -> Probe:
    async def probe() -> Check:
        if publisher is None:
            return Check(ok=True, detail="services pull")
        try:
            await publisher.ping()
        except BusDown as error:
            log.debug("the bus does not answer", reason=str(error))
            return Check(ok=False, detail="the bus is down: directives wait in the outbox")
        return Check(ok=True)

    return probe


def protocols_loaded(protocols: Protocols) -> Probe:
    async def probe() -> Check:
        loaded, refused = len(protocols.list()), len(protocols.problems())
        return Check(
            ok=loaded > 0, detail=f"{loaded} loaded" + (f", {refused} refused: see the log" if refused else "")
        )

    return probe


def engine_runs(loops: Loops) -> Probe:
    async def probe() -> Check:
        return Check(ok=True) if loops.running else Check(ok=False, detail="the engine does not run")

    return probe


def loops_turn(loops: Loops) -> Probe:
    async def probe() -> Check:
        troubles = loops.troubles()
        return Check(ok=not troubles, detail="; ".join(f"{name}: {said}" for name, said in troubles.items()))

    return probe


def temporal_answers(away: Callable[[], str]) -> Probe:
    """What is accepted meanwhile waits."""

    async def probe() -> Check:
        if reason := away():
            log.debug("Temporal does not answer", reason=reason)  # may name hosts, and anyone may ask
            return Check(ok=False, detail="Temporal does not answer: jobs wait")
        return Check(ok=True)

    return probe


def somebody_ticks(presence: Presence, clock: Clock) -> Probe:
    """For a process without an engine: whether there is one elsewhere."""

    async def probe() -> Check:
        try:
            last: Instant | None = await presence.last_tick()
        except LedgerError as error:
            return Check(ok=False, detail=f"the ledger cannot be used right now ({type(error).__name__})")
        if last is None:
            return Check(ok=False, detail="no engine has ever run: start `lucius reconciler`")
        ago = clock.now() - last
        detail = f"an engine last looked after the jobs {max(0, ago) / 1000:.1f} s ago"
        return Check(ok=ago <= TICKED_LATELY_MS, detail=detail)

    return probe
