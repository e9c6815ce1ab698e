"""Pulls: who gets what under a service's cap, and what becomes of rows that were taken for nothing."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

import pytest

from lucius.adapters.bus_memory import MemoryBus
from lucius.contract import Directive
from lucius.core.decision import Decision
from lucius.core.inputs import Ack, HandOverStarted
from lucius.core.model import OutboxRow, StepStatus
from lucius.core.protocol import StepSpec
from lucius.ports.errors import LedgerDown, LimitReached
from lucius.ports.ledger import PendingQuery
from tests.support.engine import Engine

OCR = StepSpec(step_id="ocr", step_type="OCR", service="ocr")


class Watched(Engine):
    """An engine that notes what its ledger is asked for."""

    def __init__(self, max_unacked: int = 1_000) -> None:
        super().__init__(max_unacked=max_unacked)
        self.refused = 0
        self.queries: list[PendingQuery] = []
        self.given_back: list[str] = []
        self.down = False
        self._guard, self._pending = self.ledger._guard, self.ledger.pending
        self.ledger._guard = self._watch_guard  # type: ignore[method-assign]
        self.ledger.pending = self._watch_pending  # type: ignore[method-assign]
        self.ledger.put_back = self._watch_put_back  # type: ignore[method-assign]

    def _watch_guard(self, decision: Decision) -> None:
        try:
            self._guard(decision)
        except LimitReached:
            self.refused += 1
            raise

    async def _watch_pending(self, query: PendingQuery) -> list[OutboxRow]:
        if self.down:
            raise LedgerDown("no connection")
        self.queries.append(query)
        return await self._pending(query)

    async def _watch_put_back(self, rows: Collection[OutboxRow]) -> None:
        if self.down:
            raise LedgerDown("no connection")
        self.given_back += [row.job_id for row in rows]

    async def jobs_of(self, tenant_id: str, n: int) -> None:
        ids = [f"{tenant_id}-{i}" for i in range(n)]
        await asyncio.gather(*(self.submit(OCR, job_id=job_id, tenant_id=tenant_id) for job_id in ids))

    async def pull(self, limit: int, wait_seconds: float = 0) -> list[Directive]:
        return await self.dispatcher.pull("ocr", limit, wait_seconds)

    async def ack(self, directives: Sequence[Directive]) -> None:
        for got in directives:
            await self.feed(Ack(step_id=got.stepId, attempt_no=got.attempt_no, lease_id=got.lease_id), job_id=got.jobId)


def tenants(directives: Sequence[Directive]) -> Counter[str]:
    return Counter(directive.tenant_id for directive in directives)


class TestTheCap:
    async def test_a_long_backlog_under_a_small_cap_leaves_others_their_turn(self) -> None:
        engine = Watched(max_unacked=10)
        await engine.jobs_of("a", 5_000)
        out = await engine.pull(10)
        assert tenants(out) == {"a": 10}
        await engine.jobs_of("b", 1)
        acks = 0
        while "b" not in tenants(out):
            await engine.ack(out[:1])
            acks += 1
            out = [*out[1:], *await engine.pull(10)]
        assert acks <= 2

    async def test_tenants_share_what_a_service_picks_up(self) -> None:
        engine = Watched(max_unacked=10)
        for tenant_id, n in (("a", 200), ("b", 30), ("c", 30)):
            await engine.jobs_of(tenant_id, n)
        seen: Counter[str] = Counter()
        for _ in range(6):
            out = await engine.pull(100)
            seen += tenants(out)
            await engine.ack(out)
        assert seen.total() == 60
        assert max(seen.values()) - min(seen.values()) <= 3  # the first refusals came after they were taken

    async def test_a_service_at_its_cap_is_not_tried_again_and_again(self) -> None:
        engine = Watched(max_unacked=4)
        await engine.jobs_of("a", 50)
        out = await engine.pull(20)
        assert len(out) == 4
        assert engine.refused == 16  # how we learn of it
        for _ in range(5):
            assert await engine.pull(20) == []
        await engine.ack(out[:1])
        assert len(await engine.pull(20)) == 1
        assert engine.refused == 16

    async def test_many_waiting_pulls_do_not_try_for_the_same_room(self) -> None:
        engine = Watched(max_unacked=4)
        await engine.jobs_of("a", 50)
        out = await engine.pull(20)
        learned = engine.refused
        waiting = [asyncio.create_task(engine.pull(20, wait_seconds=0.2)) for _ in range(8)]
        await asyncio.sleep(0.05)
        await engine.ack(out[:2])
        assert sum(map(len, await asyncio.gather(*waiting))) == 2
        assert engine.refused == learned

    async def test_a_pull_that_waits_at_the_cap_is_answered_after_an_ack(self) -> None:
        engine = Watched(max_unacked=2)
        await engine.jobs_of("a", 5)
        out = await engine.pull(5)
        for _ in range(3):
            waiting = asyncio.create_task(engine.pull(5, wait_seconds=5))
            await asyncio.sleep(0.02)
            await engine.ack(out[:1])
            async with asyncio.timeout(2):
                out = [*out[1:], *await waiting]
        assert len(out) == 2


class TestRowsInHand:
    async def test_rows_are_held_while_they_are_handed_over(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 1)
        await engine.pull(1)
        assert engine.queries[-1].hold_ms >= 10_000

    async def test_what_was_not_handed_over_is_given_back_at_once(self) -> None:
        engine = Watched(max_unacked=2)
        await engine.jobs_of("a", 5)
        out = await engine.pull(5)
        assert len(out) == 2
        assert sorted(engine.given_back + [got.jobId for got in out]) == [f"a-{i}" for i in range(5)]

    async def test_what_was_handed_over_is_not(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 5)
        assert len(await engine.pull(5)) == 5
        assert engine.given_back == []

    async def test_one_row_is_never_taken_twice(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 6)
        first, second = await engine.dispatcher.take("ocr", 4), await engine.dispatcher.take(None, 4)
        assert {row.job_id for row in first}.isdisjoint(row.job_id for row in second)
        assert (len(first), len(second)) == (4, 2)
        await engine.dispatcher.put_back(first)
        assert len(await engine.dispatcher.take("ocr", 9)) == 4

    async def test_a_ledger_that_is_down_leaves_them_to_the_end_of_their_hold(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 1)
        rows = await engine.dispatcher.take("ocr", 1)
        engine.down = True
        await engine.dispatcher.put_back(rows)
        engine.down = False
        assert await engine.dispatcher.take("ocr", 1) == rows


async def test_after_an_outage_of_the_ledger_pulls_get_few_at_first_and_soon_all() -> None:
    engine = Watched()
    await engine.jobs_of("a", 200)
    engine.down = True
    with pytest.raises(LedgerDown):
        await engine.pull(100)
    engine.down = False
    assert [len(await engine.pull(100)) for _ in range(5)] == [8, 16, 32, 64, 80]


class TestClaims:
    """The ledger goes away while a row is claimed for the bus: what it kept of that nobody knows at first."""

    async def test_one_on_what_was_never_published_is_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.dispatcher.take(None, 1)
        real = engine.ledger.commit

        async def kept_and_lost(decision: Decision) -> None:
            await real(decision)
            raise LedgerDown("the answer was lost")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", kept_and_lost)
            with pytest.raises(LedgerDown):
                await engine.dispatcher.publish(row, bus, 1)
        assert (await engine.step("ocr", "a-0")).attempt.claimed_at is not None
        assert bus.backlog("ocr") == 0
        await engine.dispatcher.release_claims()
        engine.dispatcher.let_go([row])
        (again,) = await engine.dispatcher.take(None, 1)
        assert await engine.dispatcher.publish(again, bus, 1)
        step = await engine.step("ocr", "a-0")
        assert (step.status, step.attempt.attempt_no, step.tries) == (StepStatus.INITIATED, 1, 1)

    async def test_one_that_was_not_kept_is_nothing_to_give_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.dispatcher.take(None, 1)

        async def lost(decision: Decision) -> None:
            raise LedgerDown("no connection")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", lost)
            with pytest.raises(LedgerDown):
                await engine.dispatcher.publish(row, bus, 1)
        await engine.dispatcher.release_claims()
        assert await engine.dispatcher.publish(row, bus, 1)

    async def test_one_that_another_has_by_now_is_his(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.dispatcher.take(None, 1)

        async def lost(decision: Decision) -> None:
            raise LedgerDown("no connection")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", lost)
            with pytest.raises(LedgerDown):
                await engine.dispatcher.publish(row, bus, 1)
        await engine.feed(HandOverStarted("ocr", row.attempt_no, row.lease_id, by="another"), job_id="a-0")
        await engine.dispatcher.release_claims()
        assert (await engine.step("ocr", "a-0")).attempt.claimed_at is not None
