"""Readiness: what each role must have, and that asking for it is cheap and always answered."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from lucius.adapters.bus_memory import MemoryBus
from lucius.adapters.ledger_memory import MemoryLedger
from lucius.contract import Check
from lucius.core.model import Instant, Millis
from lucius.observability import readiness
from lucius.observability.readiness import Kept, Role, readiness_of
from lucius.ports.errors import LedgerDown, LedgerError, LedgerFull
from lucius.ports.peers import Door
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


class Others:
    def __init__(self, last: Instant | None) -> None:
        self.last = last
        self.failure: LedgerError | None = None

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        raise AssertionError("whoever asks runs no engine")

    at_work = ticked

    async def serve(self, serves: Callable[[], bool]) -> None:
        raise AssertionError("readiness is only asked about")

    def door(self, now: Instant) -> Door:
        raise AssertionError("whoever asks runs no engine")

    def stretch(self) -> float:
        return 1.0

    async def last_tick(self) -> Instant | None:
        if self.failure is not None:
            raise self.failure
        return self.last


class Disk(MemoryLedger):
    """A ledger that can be out of reach, or answer late."""

    failure: Exception | None = None
    asked = 0
    gate: asyncio.Event | None = None

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return []


class Scene:
    """A process of some role, and all that it may lack."""

    def __init__(self, role: Role) -> None:
        self.ledger, self.bus, self.loops, self.catalog = Disk(), MemoryBus(), Loops(), Catalog()
        self.clock = ManualClock()
        self.others = Others(self.clock.now())
        self.draining = False
        self.refused: LedgerError | None = None
        self.readiness = readiness_of(
            role,
            ledger=self.ledger,
            refused=lambda: self.refused,
            publisher=self.bus,
            protocols=self.catalog,
            engine=self.loops,
            presence=self.others,
            clock=self.clock,
            draining=lambda: self.draining,
        )

    async def look(self) -> tuple[bool, list[str]]:
        """Whether it is ready, and what is wrong."""
        ready, checks = await self.readiness.look()
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
    scene.loops.wrong = {"relay": "every turn failed for 9 s"}


def no_engine_anywhere(scene: Scene) -> None:
    scene.others.last = scene.clock.now() - readiness.TICKED_LATELY_MS - 1


def no_engine_ever(scene: Scene) -> None:
    scene.others.last = None


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
    (Role.API, no_engine_ever, True, ["engine"]),
    (Role.API, asked_to_stop, False, ["draining"]),
    (Role.ENGINE, no_ledger, False, ["ledger"]),
    (Role.ENGINE, no_space, False, ["ledger"]),
    (Role.ENGINE, no_bus, False, ["bus"]),
    (Role.ENGINE, no_engine, False, ["engine"]),
    (Role.ENGINE, failing_loop, False, ["loops"]),
]


@pytest.mark.parametrize("role", Role)
async def test_a_process_that_has_all_it_needs_is_ready(role: Role) -> None:
    assert await Scene(role).look() == (True, [])


@pytest.mark.parametrize(("role", "trouble", "ready", "wrong"), CASES)
async def test_each_role_needs_what_its_work_needs(role: Role, trouble: Trouble, ready: bool, wrong: list[str]) -> None:
    scene = Scene(role)
    trouble(scene)
    assert await scene.look() == (ready, wrong)


async def test_what_can_not_be_looked_up_is_wrong_as_well() -> None:
    scene = Scene(Role.API)
    no_ledger(scene)
    scene.others.failure = LedgerDown("postgresql://user:secret@db is away")
    assert await scene.look() == (False, ["ledger", "engine"])


async def test_what_is_wrong_is_said_without_what_only_the_log_may_know() -> None:
    scene = Scene(Role.WHOLE)
    no_ledger(scene)
    no_bus(scene)
    scene.catalog.refused = ["broken.yaml"]
    _, checks = await scene.readiness.look()
    assert checks["ledger"].detail == "the ledger cannot be used right now (LedgerDown)"
    assert checks["bus"].detail == "the bus is down: directives wait in the outbox"
    assert checks["protocols"] == Check(ok=True, detail="2 loaded, 1 refused: see the log")


async def test_an_engine_elsewhere_is_known_by_its_last_tick() -> None:
    scene = Scene(Role.API)
    scene.clock.advance(4.2)
    _, checks = await scene.readiness.look()
    assert checks["engine"] == Check(ok=True, detail="an engine last looked after the jobs 4.2 s ago")


class TestKept:
    async def test_whoever_asks_often_is_no_load(self) -> None:
        now, said = [0.0], [Check(ok=True)]
        probe = Counted(said)
        kept = Kept(probe, lambda: now[0])
        assert [await kept() for _ in range(5)] == [Check(ok=True)] * 5
        assert probe.asked == 1
        now[0] += readiness.KEEPS_FOR
        said[0] = Check(ok=False, detail="away")
        assert await kept() == Check(ok=False, detail="away")
        assert probe.asked == 2

    async def test_those_who_ask_together_share_one_answer(self) -> None:
        probe = Counted([Check(ok=True)])
        kept = Kept(probe)
        await asyncio.gather(*(kept() for _ in range(5)))
        assert probe.asked == 1

    async def test_no_answer_is_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readiness, "ANSWERS_WITHIN", 0.02)
        scene = Scene(Role.WHOLE)
        scene.ledger.gate = asyncio.Event()
        ready, checks = await asyncio.wait_for(scene.readiness.look(), 5)
        assert (ready, checks["ledger"].detail) == (False, "no answer within 0.02 s")

    async def test_who_hangs_up_takes_nobody_elses_answer_away(self) -> None:
        scene = Scene(Role.WHOLE)
        scene.ledger.gate = asyncio.Event()
        impatient, patient = asyncio.create_task(scene.look()), asyncio.create_task(scene.look())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        scene.ledger.gate.set()
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
