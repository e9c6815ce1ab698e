"""The relay: a hanging publish blocks no other, and a claim is settled only when no process can be working on it."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import Directive
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import Ack, HandOverStarted
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import OutboxStatus, StepStatus
from lucius.core.protocol.definition import StepSpec
from lucius.engine.embedded import relay as relay_module
from lucius.engine.embedded.relay import Relay
from lucius.ports.errors import BusDown, LedgerCorrupt, LedgerDown, LimitReached
from lucius.ports.outbox import PendingQuery
from lucius.usecases.handover import slow_start
from tests.simulation.clock import in_virtual_time
from tests.support.engine import Engine

TIMEOUT = 5.0


def task(service: str = "ocr") -> StepSpec:
    return StepSpec(step_id="work", step_type="T", service=service)


class Bus(MemoryBus):
    """Hangs on configured messages and records the order of the others."""

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


class Taking:
    """An outbox whose reads take as long as a test wants."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.given_back: list[str] = []
        self._pending = engine.store.outbox.pending
        monkeypatch.setattr(engine.store.outbox, "pending", self._slowly)
        monkeypatch.setattr(engine.store.outbox, "put_back", self._note)

    async def _slowly(self, query: PendingQuery) -> list[OutboxRow]:
        rows = await self._pending(query)
        self.began.set()
        await self.go_on.wait()
        return rows

    async def _note(self, rows: Collection[OutboxRow]) -> None:
        self.given_back += [row.job_id for row in rows]


def relay_of(engine: Engine, bus: Bus, *, shared: bool = False, parallel: int = 32, **options: Any) -> Relay:
    return Relay(
        outbox=engine.store.outbox,
        engine=engine.jobs,
        handover=engine.bus_handover,
        holds=engine.row_holds,
        publisher=bus,
        notifier=engine.notifier,
        clock=engine.clock,
        publish_timeout=TIMEOUT,
        shared=shared,
        parallel=parallel,
        **{"retry_interval": 0.02, "jitter": lambda: 0.0, **options},
    )


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    async def turns() -> None:
        while True:
            try:
                await relay.run_once()
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
        await relay.run_once()


async def until_published(bus: Bus, n: int) -> None:
    async with asyncio.timeout(5):
        while len(bus.published) < n:
            bus.news.clear()
            await bus.news.wait()


async def submit(engine: Engine, tenant_id: str, n: int, service: str = "ocr") -> None:
    for i in range(n):
        await engine.submit(task(service), job_id=f"{tenant_id}-{i}", tenant_id=tenant_id)


async def claimed(engine: Engine) -> list[str]:
    return [row.job_id for row in await engine.store.outbox.pending(PendingQuery(limit=9, now=2**60, claimed=True))]


class TestPublishing:
    async def test_hanging_publish_delays_no_other(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 150)
        bus.hangs = {"acme-0", "acme-70"}
        async with running(relay_of(engine, bus, parallel=3)):
            await until_published(bus, 148)
            await engine.submit(task(), job_id="later")
            await until_published(bus, 149)
        assert bus.published[-1].jobId == "later"

    @in_virtual_time
    async def test_concurrent_publishes_are_limited(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 20)
        bus.hangs = {f"acme-{i}" for i in range(4)}
        async with running(relay_of(engine, bus, parallel=4)):
            await asyncio.sleep(0.1)
            assert bus.published == []
            assert len(await claimed(engine)) == 4

    async def test_short_queue_of_one_tenant_is_published_among_a_long_queue_of_another(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "long", 300)
        await submit(engine, "short", 2)
        async with running(relay_of(engine, bus)):
            await until_published(bus, 302)
        order = [directive.tenant_id for directive in bus.published]
        assert order.index("short") <= 2
        assert max(i for i, tenant_id in enumerate(order) if tenant_id == "short") <= 4

    async def test_service_at_its_cap_gets_no_directive_until_it_acknowledges(self) -> None:
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

    @in_virtual_time
    async def test_rows_behind_the_first_cap_refusal_are_not_tried(self) -> None:
        engine, bus = Engine(max_unacked=2), Bus()
        guard, refusals = engine.store.tables.guard, list[Decision]()

        def counting(decision: Decision) -> None:
            try:
                guard(decision)
            except LimitReached:
                refusals.append(decision)
                raise

        engine.store.tables.guard = counting  # type: ignore[method-assign]
        await submit(engine, "acme", 8)
        async with running(relay_of(engine, bus, parallel=1)):
            await until_published(bus, 2)
            await asyncio.sleep(0.1)
        assert len(refusals) == 1

    async def test_stop_returns_rows_whose_publish_has_not_begun(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 6)
        bus.hangs = {"acme-0"}
        relay = relay_of(engine, bus, parallel=1)
        await relay.start_ready()
        await relay.stop(0.01)
        assert len(await engine.row_holds.take("ocr", 9)) == 5

    async def test_stop_returns_rows_that_are_being_claimed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 6)
        relay = relay_of(engine, bus)
        taking = Taking(engine, monkeypatch)
        turn = asyncio.create_task(relay.run_once())
        await taking.began.wait()
        turn.cancel()
        stopping = asyncio.create_task(relay.stop(5))
        await asyncio.wait({turn})
        taking.go_on.set()
        await stopping
        assert len(taking.given_back) == 6
        assert bus.published == []

    async def test_stop_does_not_exceed_its_grace_for_a_hanging_claim(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = Engine()
        await submit(engine, "acme", 1)
        relay = relay_of(engine, Bus())
        taking = Taking(engine, monkeypatch)
        turn = asyncio.create_task(relay.run_once())
        await taking.began.wait()
        turn.cancel()
        async with asyncio.timeout(2):
            await relay.stop(0.01)


class TestOutages:
    @in_virtual_time
    async def test_bus_outage_uses_no_attempts_and_publishing_resumes(self) -> None:
        engine, bus = Engine(), Bus()
        await submit(engine, "acme", 40)
        bus.trouble = BusDown("away")
        async with running(relay_of(engine, bus)):
            await asyncio.sleep(0.1)
            bus.trouble = None
            await until_published(bus, 40)
        assert {directive.attempt_no for directive in bus.published} == {1}

    async def test_retries_against_a_bus_that_stays_down_back_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Engine(), Bus()
        relay = relay_of(engine, bus, retry_interval=1.0, jitter=lambda: 1.0)
        await submit(engine, "acme", 1)
        bus.trouble = BusDown("away")
        sleep, pauses = asyncio.sleep, list[float]()

        async def note(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        async def tried() -> None:
            await relay.start_ready()
            await asyncio.wait(relay._running)
            await relay.run_once()

        monkeypatch.setattr(asyncio, "sleep", note)
        for _ in range(5):
            await tried()
        assert pauses == [1.5, 3, TIMEOUT, TIMEOUT, TIMEOUT]
        bus.trouble = None
        await tried()
        await submit(engine, "other", 1)
        bus.trouble = BusDown("away again")
        await tried()
        assert pauses[5:] == [1.5]

    @pytest.mark.parametrize("method", ["pending", "commit"])
    async def test_ledger_outage_fails_the_turn_and_restarts_the_slow_start(
        self, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, bus = Engine(), Bus()
        relay = relay_of(engine, bus)
        for _ in range(10):
            await relay.start_ready()
        assert relay.ramp.window > slow_start.INITIAL_WINDOW
        await submit(engine, "acme", 1)

        async def away(*_: object) -> None:
            raise LedgerDown("no connection")

        with monkeypatch.context() as patched:
            patched.setattr(engine.ledger if method == "commit" else engine.store.outbox, method, away)
            with pytest.raises(LedgerDown):
                await turns(relay, 3)
        assert relay.ramp.window == slow_start.INITIAL_WINDOW
        async with running(relay):
            await until_published(bus, 1)

    @in_virtual_time
    async def test_claim_is_settled_later_if_the_ledger_goes_down_after_the_publish(self) -> None:
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
        """Return an engine whose ledger has the claim of an earlier process."""
        engine = Engine()
        await submit(engine, "acme", 1)
        attempt = (await engine.step("work", "acme-0")).attempt
        await engine.feed(HandOverStarted("work", attempt.attempt_no, attempt.lease_id), job_id="acme-0")
        engine.clock.advance(1)
        return engine

    async def test_sole_relay_settles_an_older_claim_at_once(self) -> None:
        engine = await self.left_behind()
        await relay_of(engine, Bus()).settle_claims()
        assert await claimed(engine) == []

    async def test_relay_on_a_shared_ledger_settles_an_older_claim_only_after_the_publish_timeout(self) -> None:
        engine = await self.left_behind()
        relay = relay_of(engine, Bus(), shared=True)
        await relay.settle_claims()
        assert await claimed(engine) == ["acme-0"]
        engine.clock.advance(2 * TIMEOUT)
        await relay.settle_claims()
        assert await claimed(engine) == []
        assert (await engine.step("work", "acme-0")).status is StepStatus.INITIATED


class TestClaimsAfterAnOutage:
    """While the ledger was down, an owner could not record that its claimed row was never published."""

    async def unreturned_claim(self, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> tuple[Engine, Relay]:
        """Return an engine with a claim that its owner could not give back, after a long outage of the ledger."""
        engine, bus = Engine(sweep_interval=0.2), Bus()
        relay = relay_of(engine, bus, shared=shared, at_work_since=engine.sweeper.at_work_since)
        await engine.sweeper.sweep()
        await submit(engine, "acme", 1)
        (row,) = await engine.bus_handover.take_rows(1)
        commit = engine.ledger.commit

        async def kept_and_lost(decision: Decision) -> None:
            await commit(decision)
            raise LedgerDown("the answer was lost")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", kept_and_lost)
            with pytest.raises(LedgerDown):
                await engine.bus_handover.publish(row, bus, 1)
        engine.clock.advance(10 * TIMEOUT)
        return engine, relay

    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("ticked", [True, False])
    async def test_claim_after_an_outage_is_left_to_its_owner(
        self, shared: bool, ticked: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, relay = await self.unreturned_claim(monkeypatch, shared=shared)
        if ticked:
            await engine.sweeper.sweep()
        await relay.settle_claims()
        assert await claimed(engine) == ["acme-0"]
        await engine.bus_handover.release_claims()
        step = await engine.step("work", "acme-0")
        assert (step.status, step.attempt.claimed_at) == (StepStatus.DISPATCHING, None)

    async def test_claim_that_its_owner_never_returns_is_settled_one_period_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, relay = await self.unreturned_claim(monkeypatch, shared=True)
        for _ in range(round(4 * TIMEOUT)):
            await engine.sweeper.sweep()
            await relay.settle_claims()
            assert await claimed(engine) == ["acme-0"]
            engine.clock.advance(0.5)
        await engine.sweeper.sweep()
        await relay.settle_claims()
        assert await claimed(engine) == []
        assert (await engine.step("work", "acme-0")).status is StepStatus.INITIATED


class TestClaimsThatCannotBeSettled:
    """A job can't be read or decided, for example by a replica older than the one that wrote it."""

    async def left_behind(self, *job_ids: str) -> Engine:
        engine = Engine()
        for job_id in job_ids:
            await engine.submit(task(), job_id=job_id)
            attempt = (await engine.step("work", job_id)).attempt
            await engine.feed(HandOverStarted("work", attempt.attempt_no, attempt.lease_id), job_id=job_id)
            engine.clock.advance(0.001)
        engine.clock.advance(10 * TIMEOUT)
        return engine

    def spoil(self, engine: Engine, *job_ids: str) -> list[str]:
        """Make every load of these jobs fail; return the list that records the loads."""
        load, looks = engine.ledger.load, list[str]()

        async def spoilt(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
            if job_id in job_ids:
                looks.append(job_id)
                raise LedgerCorrupt(f"{job_id} can't be read")
            return await load(job_id, step_ids, fresh)

        engine.ledger.load = spoilt  # type: ignore[method-assign]
        return looks

    async def test_unreadable_claim_does_not_block_the_next(self) -> None:
        engine = await self.left_behind("bad", "good")
        self.spoil(engine, "bad")
        await relay_of(engine, Bus(), shared=True).settle_claims()
        assert await claimed(engine) == ["bad"]
        assert (await engine.step("work", "good")).status is StepStatus.INITIATED

    async def test_more_unreadable_claims_than_one_batch_do_not_block_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(relay_module, "BATCH_ROWS", 2)
        engine = await self.left_behind("bad-1", "bad-2", "bad-3", "good")
        self.spoil(engine, "bad-1", "bad-2", "bad-3")
        await relay_of(engine, Bus(), shared=True).settle_claims()
        assert await claimed(engine) == ["bad-1", "bad-2", "bad-3"]

    async def test_unreadable_claim_is_retried_with_backoff_and_counted(self) -> None:
        engine = await self.left_behind("bad")
        looks, failures = self.spoil(engine, "bad"), list[str]()
        relay = relay_of(engine, Bus(), shared=True, on_failure=failures.append)
        for _ in range(100):
            await relay.settle_claims()
            engine.clock.advance(10)
        assert 4 <= len(looks) <= 8
        assert failures == ["claims"] * len(looks)

    async def test_claim_is_settled_once_its_job_is_readable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = await self.left_behind("bad")
        relay = relay_of(engine, Bus(), shared=True)
        with monkeypatch.context() as patched:
            patched.setattr(engine.ledger, "load", engine.ledger.load)
            self.spoil(engine, "bad")
            await relay.settle_claims()
        engine.clock.advance(60)
        await relay.settle_claims()
        assert await claimed(engine) == []

    async def test_ledger_outage_during_settling_fails_the_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = await self.left_behind("one")

        async def away(*_: object) -> None:
            raise LedgerDown("no connection")

        monkeypatch.setattr(engine.ledger, "commit", away)
        with pytest.raises(LedgerDown):
            await relay_of(engine, Bus(), shared=True).settle_claims()
