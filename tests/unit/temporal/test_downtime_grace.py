"""No attempt times out because Lucius was unreachable, and the grace lasts no longer than that."""

import pytest
from msgspec.structs import replace

from lucius.adapters.ledger.memory.store import open_memory
from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Decision, Defaults, Env, JobSnapshot
from lucius.core.model.inputs import Ack, DeadlinePassed, HandedOver, Input, Start
from lucius.core.model.records import Instant
from lucius.core.model.statuses import JobStatus
from lucius.core.protocol.definition import ProtocolDefinition, StepSpec
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.liveness import SingleProcessLiveness
from lucius.engine.temporal.downtime_grace import AWAY_MS, DowntimeGrace
from lucius.engine.temporal.messages import make_projection
from tests.conformance.builders import PROTOCOL, accept, protocol
from tests.support.clock import ManualClock

ACK_MS, LEASE_MS, TICK_MS = 30_000, 60_000, 200
ENV = Env(
    new_id=iter(f"lease-{n}" for n in range(1_000)).__next__, jitter=lambda: 0.5, defaults=Defaults(lease_ms=LEASE_MS)
)


class World:
    """A job whose first step is with its service; the engine ticks as time passes, unless it is away."""

    def __init__(self, skew_ms: int = 0) -> None:
        """Create the job; Temporal's clock is `skew_ms` ahead of Lucius's."""
        self.skew_ms = skew_ms
        self.ledger, self.clock, self.back_at = open_memory().ledger, ManualClock(), 0
        self.liveness = SingleProcessLiveness(self.clock.now())
        self.absence = DowntimeGrace(
            EmbeddedEngine(self.ledger, self.clock, ENV), self.liveness, self.clock, lambda: self.back_at
        )

    async def begin(self, *inputs: Ack, pinned: ProtocolDefinition = PROTOCOL) -> "World":
        await self.ledger.commit(accept("j1", pinned=pinned, status=JobStatus.QUEUED, created_at=self.now()))
        await self.decide(Start())
        lease_id = (await self.view()).steps["ocr"].attempt.lease_id
        await self.decide(HandedOver("ocr", 1, lease_id), *(replace(one, lease_id=lease_id) for one in inputs))
        return self

    def now(self) -> Instant:
        """Return Temporal's time."""
        return self.clock.now() + self.skew_ms

    async def view(self) -> JobSnapshot:
        view = await self.ledger.load("j1", ["ocr", "embedding"])
        assert view is not None
        return view

    async def decide(self, *inputs: Input) -> Decision:
        decision = decide_all(await self.view(), inputs, self.now(), ENV)
        await self.ledger.commit(decision)
        return decision

    async def advance_ticking(self, milliseconds: int) -> None:
        for _ in range(milliseconds // TICK_MS):
            self.clock.advance(TICK_MS / 1000)
            await self.liveness.record_tick(self.clock.now(), 1_000)

    async def timed_out(self) -> Decision:
        """Return the decision of a workflow that does not know of the absence."""
        return decide_all(await self.view(), [DeadlinePassed()], self.now(), ENV)

    async def excused(self) -> Instant:
        decision = await self.timed_out()
        assert decision.attempts or any(step.attempt.outcome for step in decision.steps), "it has not timed out"
        return await self.absence.downtime_end(make_projection(decision, decision.outbox, ()))


async def test_timeout_without_downtime_gets_no_grace() -> None:
    world = await World().begin()
    await world.advance_ticking(ACK_MS)
    assert await world.excused() == 0


@pytest.mark.parametrize("said", [(), (Ack(step_id="ocr", attempt_no=1, lease_id=""),)], ids=["ack", "lease"])
async def test_timeout_after_api_downtime_gets_grace(said: tuple[Ack, ...]) -> None:
    """The engine ticks again before the deadline, so no service is late."""
    world = await World().begin(*said)
    world.clock.advance(((LEASE_MS if said else ACK_MS) - 2_000) / 1000)
    await world.advance_ticking(2_000)
    back_at = world.clock.now() - 2_000 + TICK_MS
    assert await world.excused() == back_at
    extended = await world.decide(DeadlinePassed(back_at))
    assert [event.type for event in extended.events] == ["DEADLINE_EXTENDED"]
    await world.advance_ticking(LEASE_MS if said else ACK_MS)
    assert await world.excused() == 0, "a full period since"


async def test_timeout_before_the_first_tick_after_downtime_gets_grace() -> None:
    world = await World().begin()
    world.clock.advance(ACK_MS / 1000)
    assert await world.excused() == world.clock.now()


async def test_timeout_after_temporal_downtime_gets_grace() -> None:
    world = await World().begin()
    await world.advance_ticking(ACK_MS)
    world.back_at = world.clock.now() - 100
    assert await world.excused() == world.back_at


async def test_timeout_that_could_not_be_committed_gets_grace() -> None:
    world = await World().begin()
    await world.advance_ticking(ACK_MS)
    decision = await world.timed_out()
    await world.advance_ticking(AWAY_MS + TICK_MS)
    found = await world.absence.downtime_end(make_projection(decision, decision.outbox, ()), AWAY_MS + TICK_MS)
    assert found == world.clock.now()


async def test_attempt_handed_over_after_downtime_gets_no_grace() -> None:
    world = World()
    world.clock.advance(60)
    await world.liveness.record_tick(world.clock.now(), 1_000)
    world.back_at = world.clock.now()
    await world.advance_ticking(TICK_MS)
    await world.begin()
    await world.advance_ticking(ACK_MS)
    assert await world.excused() == 0


async def test_other_ends_get_no_grace() -> None:
    world = await World().begin()
    world.clock.advance(60)
    acked = decide_all(
        await world.view(),
        [Ack(step_id="ocr", attempt_no=1, lease_id=(await world.view()).steps["ocr"].attempt.lease_id)],
        world.clock.now(),
        ENV,
    )
    assert await world.absence.downtime_end(make_projection(acked, acked.outbox, ())) == 0


async def test_hard_timeout_gets_no_grace() -> None:
    slow = StepSpec(step_id="ocr", step_type="OCR", service="ocr", timeout_ms=20_000)
    world = await World().begin(Ack(step_id="ocr", attempt_no=1, lease_id=""), pinned=protocol(steps=(slow,)))
    world.clock.advance(25)
    assert await world.excused() == 0


async def test_committed_timeout_gets_no_grace() -> None:
    """The answer was lost, so the activity is retried: the ledger finds the decision and does not decide again."""
    world = await World().begin()
    await world.advance_ticking(ACK_MS)
    decision = await world.timed_out()
    await world.ledger.commit(decision)
    assert await world.absence.downtime_end(make_projection(decision, decision.outbox, ())) == 0


@pytest.mark.parametrize("skew_ms", [-7_000, -400, 400, 7_000])
async def test_clocks_of_temporal_and_process_may_differ(skew_ms: int) -> None:
    """Job deadlines use Temporal's clock, absences use Lucius's."""
    world = await World(skew_ms).begin()
    await world.advance_ticking(ACK_MS)
    assert await world.excused() == 0
    world.back_at = world.clock.now() - 100
    assert await world.excused() == world.now() - 100
