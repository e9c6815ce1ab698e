"""No attempt ends because we could not be spoken to; and none is excused for longer than that."""

import pytest
from msgspec.structs import replace

from lucius.adapters.ledger_memory import MemoryLedger
from lucius.core.decide import decide_all
from lucius.core.decision import Decision, Defaults, Env, JobView
from lucius.core.inputs import Ack, DeadlinePassed, HandedOver, Input, Start
from lucius.core.model import Instant, JobStatus
from lucius.core.protocol import Protocol, StepSpec
from lucius.engine.presence import LonePresence
from lucius.engine.temporal.absence import AWAY_MS, Absence
from lucius.engine.temporal.wire import projection
from lucius.service.jobs import Jobs
from tests.conformance.builders import PROTOCOL, accept, protocol
from tests.support.clock import ManualClock

ACK_MS, LEASE_MS, TICK_MS = 30_000, 60_000, 200
ENV = Env(
    new_id=iter(f"lease-{n}" for n in range(1_000)).__next__, jitter=lambda: 0.5, defaults=Defaults(lease_ms=LEASE_MS)
)


class World:
    """A job whose first step is with its service; the engine ticks as time passes, unless it is away."""

    def __init__(self, skew_ms: int = 0) -> None:
        """Temporal's clock is so far ahead of ours."""
        self.skew_ms = skew_ms
        self.ledger, self.clock, self.back_at = MemoryLedger(), ManualClock(), 0
        self.presence = LonePresence(self.clock.now())
        self.absence = Absence(Jobs(self.ledger, self.clock, ENV), self.presence, self.clock, lambda: self.back_at)

    async def begin(self, *inputs: Ack, pinned: Protocol = PROTOCOL) -> "World":
        await self.ledger.commit(accept("j1", pinned=pinned, status=JobStatus.QUEUED, created_at=self.now()))
        await self.decide(Start())
        lease_id = (await self.view()).steps["ocr"].attempt.lease_id
        await self.decide(HandedOver("ocr", 1, lease_id), *(replace(one, lease_id=lease_id) for one in inputs))
        return self

    def now(self) -> Instant:
        """As Temporal says."""
        return self.clock.now() + self.skew_ms

    async def view(self) -> JobView:
        view = await self.ledger.load("j1", ["ocr", "embedding"])
        assert view is not None
        return view

    async def decide(self, *inputs: Input) -> Decision:
        decision = decide_all(await self.view(), inputs, self.now(), ENV)
        await self.ledger.commit(decision)
        return decision

    async def pass_by(self, milliseconds: int) -> None:
        for _ in range(milliseconds // TICK_MS):
            self.clock.advance(TICK_MS / 1000)
            await self.presence.ticked(self.clock.now(), 1_000)

    async def timed_out(self) -> Decision:
        """As a workflow decides that knows of no absence."""
        return decide_all(await self.view(), [DeadlinePassed()], self.now(), ENV)

    async def excused(self) -> Instant:
        decision = await self.timed_out()
        assert decision.attempts or any(step.attempt.outcome for step in decision.steps), "it has not timed out"
        return await self.absence.excuses(projection(decision, decision.outbox, ()))


async def test_one_who_was_silent_while_we_listened_is_not_excused() -> None:
    world = await World().begin()
    await world.pass_by(ACK_MS)
    assert await world.excused() == 0


@pytest.mark.parametrize("said", [(), (Ack(step_id="ocr", attempt_no=1, lease_id=""),)], ids=["ack", "lease"])
async def test_one_who_may_have_spoken_to_a_closed_door_is(said: tuple[Ack, ...]) -> None:
    """The engine ticks again before the clock rings, so nobody is late."""
    world = await World().begin(*said)
    world.clock.advance(((LEASE_MS if said else ACK_MS) - 2_000) / 1000)
    await world.pass_by(2_000)
    back_at = world.clock.now() - 2_000 + TICK_MS
    assert await world.excused() == back_at
    extended = await world.decide(DeadlinePassed(back_at))
    assert [event.type for event in extended.events] == ["DEADLINE_EXTENDED"]
    await world.pass_by(LEASE_MS if said else ACK_MS)
    assert await world.excused() == 0, "a full period since"


async def test_so_is_one_whose_clock_rings_before_the_engine_ticks_again() -> None:
    world = await World().begin()
    world.clock.advance(ACK_MS / 1000)
    assert await world.excused() == world.clock.now()


async def test_so_is_one_who_could_not_be_heard_because_temporal_was_away() -> None:
    world = await World().begin()
    await world.pass_by(ACK_MS)
    world.back_at = world.clock.now() - 100
    assert await world.excused() == world.back_at


async def test_so_is_one_whose_end_could_not_be_written_down_in_time() -> None:
    world = await World().begin()
    await world.pass_by(ACK_MS)
    decision = await world.timed_out()
    await world.pass_by(AWAY_MS + TICK_MS)
    found = await world.absence.excuses(projection(decision, decision.outbox, ()), AWAY_MS + TICK_MS)
    assert found == world.clock.now()


async def test_not_one_that_was_handed_over_since() -> None:
    world = World()
    world.clock.advance(60)
    await world.presence.ticked(world.clock.now(), 1_000)
    world.back_at = world.clock.now()
    await world.pass_by(TICK_MS)
    await world.begin()
    await world.pass_by(ACK_MS)
    assert await world.excused() == 0


async def test_what_does_not_end_by_time_is_no_matter_of_absence() -> None:
    world = await World().begin()
    world.clock.advance(60)
    acked = decide_all(
        await world.view(),
        [Ack(step_id="ocr", attempt_no=1, lease_id=(await world.view()).steps["ocr"].attempt.lease_id)],
        world.clock.now(),
        ENV,
    )
    assert await world.absence.excuses(projection(acked, acked.outbox, ())) == 0


async def test_a_time_that_nobody_may_exceed_is_kept_all_the_same() -> None:
    slow = StepSpec(step_id="ocr", step_type="OCR", service="ocr", timeout_ms=20_000)
    world = await World().begin(Ack(step_id="ocr", attempt_no=1, lease_id=""), pinned=protocol(steps=(slow,)))
    world.clock.advance(25)
    assert await world.excused() == 0


async def test_what_is_written_down_already_is_no_longer_asked_about() -> None:
    """Its answer was lost, so it is tried again: the ledger knows that it has it, and nobody decides it anew."""
    world = await World().begin()
    await world.pass_by(ACK_MS)
    decision = await world.timed_out()
    await world.ledger.commit(decision)
    assert await world.absence.excuses(projection(decision, decision.outbox, ())) == 0


@pytest.mark.parametrize("skew_ms", [-7_000, -400, 400, 7_000])
async def test_temporals_clock_need_not_be_ours(skew_ms: int) -> None:
    """A job has the one, our absence the other."""
    world = await World(skew_ms).begin()
    await world.pass_by(ACK_MS)
    assert await world.excused() == 0
    world.back_at = world.clock.now() - 100
    assert await world.excused() == world.now() - 100
