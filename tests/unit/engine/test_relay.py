"""The relay: what hangs holds up nobody else, and a claim is settled only when nobody can be at it any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lucius.adapters.bus_memory import MemoryBus
from lucius.contract import Directive
from lucius.core.decision import Decision
from lucius.core.inputs import Ack, HandOverStarted
from lucius.core.model import OutboxStatus, StepStatus
from lucius.core.protocol import StepSpec
from lucius.engine.relay import Relay
from lucius.ports.errors import BusDown, LedgerDown, LimitReached
from lucius.ports.ledger import PendingQuery
from lucius.service import ramp
from tests.support.engine import Engine

TIMEOUT = 5.0


def task(service: str = "ocr") -> StepSpec:
    return StepSpec(step_id="work", step_type="T", service=service)


class Bus(MemoryBus):
    """Hangs on what it is told to, and remembers the order of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs: set[str] = set()
        self.published: list[Directive] = []
        self.trouble: Exception | None = None
        self.news = asyncio.Event()

    async def publish(self, topic: str, directive: Directive) -> None:
        if directive.jobId in self.hangs:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble
        self.published.append(directive)
        self.news.set()


def relay_of(engine: Engine, bus: Bus, *, shared: bool = False, parallel: int = 32) -> Relay:
    return Relay(
        outbox=engine.ledger,
        jobs=engine.jobs,
        dispatcher=engine.dispatcher,
        publisher=bus,
        hub=engine.hub,
        clock=engine.clock,
        retry_interval=0.02,
        publish_timeout=TIMEOUT,
        jitter=lambda: 0.0,
        shared=shared,
        parallel=parallel,
    )


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    async def turns() -> None:
        while True:
            try:
                await relay.turn()
            except LedgerDown:
                await asyncio.sleep(0.01)  # as a supervised loop does

    loop = asyncio.create_task(turns())
    try:
        yield
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await relay.stop(0.01)


async def turns(relay: Relay, n: int) -> None:
    for _ in range(n):
        await relay.turn()


async def until_published(bus: Bus, n: int) -> None:
    async with asyncio.timeout(5):
        while len(bus.published) < n:
            bus.news.clear()
            await bus.news.wait()


async def submit(engine: Engine, tenant_id: str, n: int, service: str = "ocr") -> None:
    for i in range(n):
        await engine.submit(task(service), job_id=f"{tenant_id}-{i}", tenant_id=tenant_id)


async def claimed(engine: Engine) -> list[str]:
    return [row.job_id for row in await engine.ledger.pending(PendingQuery(limit=9, now=2**60, claimed=True))]


class TestPublishing:
    async def test_a_publish_that_hangs_holds_up_nothing_but_itself(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 150)
        bus.hangs = {"acme-0", "acme-70"}
        async with running(relay_of(engine, bus, parallel=3)):
            await until_published(bus, 148)
            await engine.submit(task(), job_id="later")
            await until_published(bus, 149)
        assert bus.published[-1].jobId == "later"

    async def test_no_more_are_under_way_than_may_be(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 20)
        bus.hangs = {f"acme-{i}" for i in range(4)}
        async with running(relay_of(engine, bus, parallel=4)):
            await asyncio.sleep(0.1)
            assert bus.published == []
            assert len(await claimed(engine)) == 4

    async def test_tenants_take_turns(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "long", 300)
        await submit(engine, "short", 2)
        async with running(relay_of(engine, bus)):
            await until_published(bus, 302)
        order = [directive.tenant_id for directive in bus.published]
        assert order.index("short") <= 2
        assert max(i for i, tenant_id in enumerate(order) if tenant_id == "short") <= 4

    async def test_a_service_at_its_cap_is_left_alone_until_it_picks_up(self) -> None:
        engine, bus = Engine(max_unacked=3), Bus()
        await submit(engine, "acme", 200, "deaf")
        await submit(engine, "other", 3, "busy")
        async with running(relay_of(engine, bus)):
            await until_published(bus, 6)
            assert sorted(directive.service for directive in bus.published) == ["busy"] * 3 + ["deaf"] * 3
            heard = next(directive for directive in bus.published if directive.service == "deaf")
            ack = Ack(step_id=heard.stepId, attempt_no=heard.attempt_no, lease_id=heard.lease_id)
            await engine.feed(ack, job_id=heard.jobId)
            await until_published(bus, 7)
        assert bus.published[-1].service == "deaf"

    async def test_what_waits_behind_the_first_refusal_is_not_tried(self) -> None:
        engine, bus = Engine(max_unacked=2), Bus()
        guard, refusals = engine.ledger._guard, list[Decision]()

        def counting(decision: Decision) -> None:
            try:
                guard(decision)
            except LimitReached:
                refusals.append(decision)
                raise

        engine.ledger._guard = counting  # type: ignore[method-assign]
        await submit(engine, "acme", 8)
        async with running(relay_of(engine, bus, parallel=1)):
            await until_published(bus, 2)
            await asyncio.sleep(0.1)
        assert len(refusals) == 1

    async def test_stop_gives_back_what_was_not_begun(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 6)
        bus.hangs = {"acme-0"}
        relay = relay_of(engine, bus, parallel=1)
        await relay.start_ready()
        await relay.stop(0.01)
        assert len(await engine.dispatcher.take("ocr", 9)) == 5


class TestOutages:
    async def test_a_bus_that_is_down_burns_nothing_and_is_tried_again(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 40)
        bus.trouble = BusDown("away")
        async with running(relay_of(engine, bus)):
            await asyncio.sleep(0.1)
            bus.trouble = None
            await until_published(bus, 40)
        assert {directive.attempt_no for directive in bus.published} == {1}

    @pytest.mark.parametrize("method", ["pending", "commit"])
    async def test_a_ledger_that_is_down_fails_the_turn_and_is_taken_up_slowly(
        self, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, bus = Engine(), Bus()
        relay = relay_of(engine, bus)
        for _ in range(10):
            await relay.start_ready()
        assert relay._ramp.window > ramp.FIRST
        await submit(engine, "acme", 1)

        async def away(*_: object) -> None:
            raise LedgerDown("no connection")

        with monkeypatch.context() as patched:
            patched.setattr(engine.ledger, method, away)
            with pytest.raises(LedgerDown):
                await turns(relay, 3)
        assert relay._ramp.window == ramp.FIRST
        async with running(relay):
            await until_published(bus, 1)

    async def test_a_ledger_that_goes_down_after_the_publish_leaves_the_claim_to_be_settled(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 1)
        relay, commit = relay_of(engine, bus), engine.ledger.commit

        async def fail_reports(decision: Decision) -> None:
            if any(row.status is not OutboxStatus.PENDING for row in decision.outbox):
                raise LedgerDown("no connection")
            await commit(decision)

        engine.ledger.commit = fail_reports  # type: ignore[method-assign]
        async with running(relay):
            await until_published(bus, 1)
            await asyncio.sleep(0.05)
        engine.ledger.commit = commit  # type: ignore[method-assign]
        assert len(bus.published) == 1
        assert await claimed(engine) == ["acme-0"]
        engine.clock.advance(2 * TIMEOUT + 1)
        await relay.settle_claims()
        assert (await engine.step("work", "acme-0")).status is StepStatus.INITIATED


class TestClaims:
    async def left_behind(self) -> Engine:
        """An engine whose ledger has the claim of a process that came before."""
        engine = Engine()
        await submit(engine, "acme", 1)
        attempt = (await engine.step("work", "acme-0")).attempt
        await engine.feed(HandOverStarted("work", attempt.attempt_no, attempt.lease_id), job_id="acme-0")
        engine.clock.advance(1)
        return engine

    async def test_where_nobody_else_relays_an_older_claim_is_a_dead_one(self) -> None:
        engine = await self.left_behind()
        await relay_of(engine, Bus()).settle_claims()
        assert await claimed(engine) == []

    async def test_on_a_shared_ledger_it_may_be_another_replicas_and_alive(self) -> None:
        engine = await self.left_behind()
        relay = relay_of(engine, Bus(), shared=True)
        await relay.settle_claims()
        assert await claimed(engine) == ["acme-0"]
        engine.clock.advance(2 * TIMEOUT)
        await relay.settle_claims()
        assert await claimed(engine) == []
        assert (await engine.step("work", "acme-0")).status is StepStatus.INITIATED
