"""Readiness: the needs of each role; the check is cheap and always answers."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.adapters.config.file import ConfigFile
from lucius.adapters.ledger.memory.ledger import MemoryLedger
from lucius.adapters.ledger.memory.tables import MemoryTables
from lucius.contract import Check
from lucius.core.model.records import Instant, Millis
from lucius.observability import readiness
from lucius.observability.readiness import CachedProbe, Role, readiness_of
from lucius.ports.engine import EngineHealth
from lucius.ports.errors import LedgerDown, LedgerError, LedgerFull
from lucius.ports.peers import CallbackAvailability
from lucius.ports.store import BlockedTime, StoreHooks
from tests.support.clock import ManualClock


class Loops:
    def __init__(self) -> None:
        self.running = True
        self.wrong: dict[str, str] = {}

    def troubles(self) -> dict[str, str]:
        return self.wrong


class Catalog:
    def __init__(self) -> None:
        self.loaded = ["OCR", "SIS"]
        self.refused: list[str] = []

    def list(self) -> Sequence[str]:
        return self.loaded

    def problems(self) -> Sequence[str]:
        return self.refused


class OtherEngines:
    def __init__(self, last: Instant | None) -> None:
        self.last = last
        self.failure: LedgerError | None = None

    async def record_tick(self, now: Instant, gap_ms: Millis) -> Instant:
        raise AssertionError("this process runs no engine")

    working_since = record_tick

    async def advertise(self, serves: Callable[[], bool]) -> None:
        raise AssertionError("a readiness check advertises nothing")

    def callback_availability(self, now: Instant) -> CallbackAvailability:
        raise AssertionError("this process runs no engine")

    def poll_backoff(self) -> float:
        return 1.0

    async def last_tick(self) -> Instant | None:
        if self.failure is not None:
            raise self.failure
        return self.last


class Disk(MemoryLedger):
    """A ledger that can be unreachable or slow."""

    failure: Exception | None = None
    asked = 0
    blocked_until: asyncio.Event | None = None

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        self.asked += 1
        if self.blocked_until is not None:
            await self.blocked_until.wait()
        if self.failure is not None:
            raise self.failure
        return []


class Scene:
    """A process of some role, and everything that it may lack."""

    def __init__(self, role: Role, outage: str | None = None) -> None:
        self.outage = outage
        self.ledger, self.bus, self.loops, self.catalog = (
            Disk(MemoryTables(), StoreHooks(), BlockedTime()),
            MemoryBus(),
            Loops(),
            Catalog(),
        )
        self.clock = ManualClock()
        self.other_engines = OtherEngines(self.clock.now())
        self.draining = False
        self.refused: LedgerFull | None = None
        self.readiness = readiness_of(
            role,
            ledger=self.ledger,
            engine_health=self.engine_health,
            publisher=self.bus,
            protocols=self.catalog,
            loops=self.loops,
            liveness=self.other_engines,
            clock=self.clock,
            draining=lambda: self.draining,
            config=ConfigFile(None),
        )

    def engine_health(self) -> EngineHealth:
        return EngineHealth(
            write_refusal=self.refused,
            outage=self.outage,
            is_worker_running=self.loops.running,
            worker_troubles=self.loops.wrong,
        )

    async def check(self) -> tuple[bool, list[str]]:
        """Return whether the process is ready, and the names of failed checks."""
        ready, checks = await self.readiness.check()
        return ready, [name for name, check in checks.items() if not check.ok]


def no_ledger(scene: Scene) -> None:
    scene.ledger.failure = LedgerDown("postgresql://user:secret@db is away")


def no_space(scene: Scene) -> None:
    scene.refused = LedgerFull("no space left")


def no_bus(scene: Scene) -> None:
    scene.bus.down = True


def no_protocols(scene: Scene) -> None:
    scene.catalog.loaded = []


def no_engine(scene: Scene) -> None:
    scene.loops.running = False


def failing_loop(scene: Scene) -> None:
    scene.loops.wrong = {"relay": "every iteration failed for 9 s"}


def no_engine_anywhere(scene: Scene) -> None:
    scene.other_engines.last = scene.clock.now() - readiness.MAX_TICK_AGE_MS - 1


def no_engine_so_far(scene: Scene) -> None:
    scene.other_engines.last = None


def asked_to_stop(scene: Scene) -> None:
    scene.draining = True


Trouble = Callable[[Scene], None]
CASES: list[tuple[Role, Trouble, bool, list[str]]] = [
    (Role.WHOLE, no_ledger, False, ["ledger"]),
    (Role.WHOLE, no_space, False, ["ledger"]),
    (Role.WHOLE, no_protocols, False, ["protocols"]),
    (Role.WHOLE, no_engine, False, ["engine"]),
    (Role.WHOLE, failing_loop, True, ["loops"]),
    (Role.WHOLE, no_bus, True, ["bus"]),
    (Role.WHOLE, asked_to_stop, False, ["draining"]),
    (Role.API, no_ledger, False, ["ledger"]),
    (Role.API, no_space, False, ["ledger"]),
    (Role.API, no_bus, True, ["bus"]),
    (Role.API, no_engine, True, []),
    (Role.API, no_engine_anywhere, True, ["engine"]),
    (Role.API, no_engine_so_far, True, ["engine"]),
    (Role.API, asked_to_stop, False, ["draining"]),
    (Role.ENGINE, no_ledger, False, ["ledger"]),
    (Role.ENGINE, no_space, False, ["ledger"]),
    (Role.ENGINE, no_bus, False, ["bus"]),
    (Role.ENGINE, no_engine, False, ["engine"]),
    (Role.ENGINE, failing_loop, False, ["loops"]),
    (Role.WORKER, no_engine, False, ["engine"]),
    (Role.WORKER, failing_loop, False, ["loops"]),
    (Role.WORKER, no_space, False, ["ledger"]),
]


@pytest.mark.parametrize("role", Role)
async def test_process_with_all_dependencies_is_ready(role: Role) -> None:
    assert await Scene(role).check() == (True, [])


@pytest.mark.parametrize(("role", "trouble", "ready", "wrong"), CASES)
async def test_missing_dependency_makes_only_the_roles_that_need_it_unready(
    role: Role, trouble: Trouble, ready: bool, wrong: list[str]
) -> None:
    scene = Scene(role)
    trouble(scene)
    assert await scene.check() == (ready, wrong)


async def test_check_that_cannot_be_evaluated_counts_as_failed() -> None:
    scene = Scene(Role.API)
    no_ledger(scene)
    scene.other_engines.failure = LedgerDown("postgresql://user:secret@db is away")
    assert await scene.check() == (False, ["ledger", "engine"])


async def test_failed_checks_are_described_without_internal_details() -> None:
    scene = Scene(Role.WHOLE)
    no_ledger(scene)
    no_bus(scene)
    scene.catalog.refused = ["broken.yaml"]
    _, checks = await scene.readiness.check()
    assert checks["ledger"].detail == "the ledger cannot be used right now (LedgerDown)"
    assert checks["bus"].detail == "the bus is down: directives are queued in the outbox"
    assert checks["protocols"] == Check(ok=True, detail="2 loaded, 1 refused: see the log")


async def test_engine_in_another_process_is_known_by_its_last_tick() -> None:
    scene = Scene(Role.API)
    scene.clock.advance(4.2)
    _, checks = await scene.readiness.check()
    assert checks["engine"] == Check(ok=True, detail="an engine last ticked 4.2 s ago")


class TestCachedCheck:
    async def test_frequent_checks_are_answered_from_the_cache(self) -> None:
        now, said = [0.0], [Check(ok=True)]
        probe = Counted(said)
        cached = CachedProbe(probe, lambda: now[0])
        assert [await cached() for _ in range(5)] == [Check(ok=True)] * 5
        assert probe.asked == 1
        now[0] += readiness.PROBE_CACHE_SECONDS
        said[0] = Check(ok=False, detail="away")
        assert await cached() == Check(ok=False, detail="away")
        assert probe.asked == 2

    async def test_concurrent_checks_share_one_answer(self) -> None:
        probe = Counted([Check(ok=True)])
        cached = CachedProbe(probe)
        await asyncio.gather(*(cached() for _ in range(5)))
        assert probe.asked == 1

    async def test_check_without_an_answer_in_time_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readiness, "PROBE_TIMEOUT_SECONDS", 0.02)
        scene = Scene(Role.WHOLE)
        scene.ledger.blocked_until = asyncio.Event()
        ready, checks = await asyncio.wait_for(scene.readiness.check(), 5)
        assert (ready, checks["ledger"].detail) == (False, "no answer within 0.02 s")

    async def test_cancelled_check_does_not_cancel_a_concurrent_one(self) -> None:
        scene = Scene(Role.WHOLE)
        scene.ledger.blocked_until = asyncio.Event()
        impatient, patient = asyncio.create_task(scene.check()), asyncio.create_task(scene.check())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        scene.ledger.blocked_until.set()
        assert await asyncio.wait_for(patient, 5) == (True, [])
        assert scene.ledger.asked == 1


class Counted:
    def __init__(self, said: list[Check]) -> None:
        self.said = said
        self.asked = 0

    async def __call__(self) -> Check:
        self.asked += 1
        await asyncio.sleep(0)
        return self.said[0]


async def test_outage_of_the_engines_server_is_reported_without_its_reason_and_costs_no_readiness() -> None:
    scene = Scene(Role.WHOLE, outage="db-7 refused the connection")
    ready, checks = await scene.readiness.check()
    assert ready
    assert checks["temporal"] == Check(ok=False, detail="Temporal does not answer: jobs are queued")


async def test_engine_without_a_server_has_no_check_of_one() -> None:
    _, checks = await Scene(Role.WHOLE).readiness.check()
    assert "temporal" not in checks
