"""Pulls: who gets what under a service's cap, and what becomes of rows that were taken for nothing."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence

import pytest
from structlog.testing import capture_logs

from lucius.adapters.bus_memory import MemoryBus
from lucius.contract import Directive
from lucius.core.decision import Decision, JobView
from lucius.core.inputs import Ack, HandOverStarted
from lucius.core.model import OutboxRow, StepStatus
from lucius.core.protocol import StepSpec
from lucius.ports.errors import BusDown, ForeignEngine, LedgerBusy, LedgerCorrupt, LedgerDown, LedgerFull, LimitReached
from lucius.ports.ledger import PendingQuery
from lucius.service import dispatch, ramp
from lucius.service.errors import RejectCode, Rejected
from tests.support.engine import WITHIN, Engine

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


class TestAfterAnOutage:
    @pytest.fixture
    async def engine(self, monkeypatch: pytest.MonkeyPatch) -> Watched:
        monkeypatch.setattr(ramp, "STEP_SECONDS", 0.05)
        engine = Watched()
        await engine.jobs_of("a", 200)
        engine.down = True
        with pytest.raises(LedgerDown):
            await engine.pull(100)
        engine.down = False
        return engine

    async def test_pulls_get_few_at_first_and_soon_all(self, engine: Watched) -> None:
        began = asyncio.get_running_loop().time()
        assert [len(await engine.pull(100, wait_seconds=5)) for _ in range(5)] == [8, 16, 32, 64, 80]
        assert asyncio.get_running_loop().time() - began >= 4 * 0.05

    async def test_asking_more_often_brings_no_more(self, engine: Watched) -> None:
        assert [len(await engine.pull(5)) for _ in range(4)] == [5, 3, 0, 0]

    async def test_nor_do_many_who_ask_at_once(self, engine: Watched) -> None:
        assert sum(map(len, await asyncio.gather(*(engine.pull(5) for _ in range(20))))) == 8
        assert all(await asyncio.gather(*(engine.pull(5, wait_seconds=5) for _ in range(20))))

    async def test_who_hangs_up_meanwhile_gets_nothing(self, engine: Watched) -> None:
        assert len(await engine.pull(100)) == 8
        gone = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(engine.dispatcher.pull("ocr", 100, 5, None, lambda: gone))
        await asyncio.sleep(0)
        gone.set_result(None)
        assert await waiting == []

    async def test_one_that_was_itself_away_gives_what_it_is_asked_for(self) -> None:
        """Services ask for as much as they can do: only those who can't know of each other must be held back."""
        engine = Watched()
        await engine.jobs_of("a", 50)
        assert len(await engine.pull(100)) == 50


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

    @pytest.mark.parametrize("trouble", [LedgerCorrupt("unreadable"), TypeError("of another version")])
    async def test_one_that_cannot_be_given_back_holds_up_no_other(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 2)
        rows = await engine.dispatcher.take(None, 2)
        commit, load = engine.ledger.commit, engine.ledger.load

        async def kept_and_lost(decision: Decision) -> None:
            await commit(decision)
            raise LedgerDown("the answer was lost")

        async def spoilt(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
            if job_id == rows[0].job_id:
                raise trouble
            return await load(job_id, step_ids, fresh)

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", kept_and_lost)
            for row in rows:
                with pytest.raises(LedgerDown):
                    await engine.dispatcher.publish(row, bus, 1)
        with monkeypatch.context() as broken:
            broken.setattr(engine.ledger, "load", spoilt)
            await engine.dispatcher.release_claims()
        assert await self.claimed(engine) == [rows[0].job_id]
        engine.clock.advance(60)
        await engine.dispatcher.release_claims()
        assert await self.claimed(engine) == []

    @pytest.mark.parametrize(
        ("trouble", "level"),
        [
            (LedgerFull("no space"), "warning"),
            (LedgerBusy("held"), "warning"),
            (LedgerDown("away too"), "warning"),
            (LedgerCorrupt("unreadable"), "error"),
        ],
    )
    async def test_one_is_given_back_later_whatever_kept_it(
        self, trouble: Exception, level: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And who reads the log can tell an outage, which passes, from what wants somebody's attention."""
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.dispatcher.take(None, 1)

        commit = engine.ledger.commit

        async def fail(decision: Decision) -> None:
            raise trouble

        async def down(topic: str, directive: Directive) -> None:
            monkeypatch.setattr(engine.ledger, "commit", fail)
            raise BusDown("away")

        monkeypatch.setattr(bus, "publish", down)
        with capture_logs() as logs, pytest.raises(BusDown):
            await engine.dispatcher.publish(row, bus, 1)
        assert [(said["log_level"], "exc_info" in said) for said in logs] == [(level, level == "error")]
        monkeypatch.setattr(engine.ledger, "commit", commit)
        await engine.dispatcher.release_claims()
        assert await self.claimed(engine) == []

    async def claimed(self, engine: Watched) -> list[str]:
        rows = await engine.ledger.pending(PendingQuery(limit=9, now=engine.clock.now(), claimed=True))
        return [row.job_id for row in rows]


class TestAJobThatCanNotBeDecidedAbout:
    """Its row is tried now and then, and stands in nobody's way meanwhile."""

    TROUBLE = (LedgerCorrupt("unreadable"), RuntimeError("a bug of ours"), ForeignEngine("driven by another"))

    @staticmethod
    def spoil(engine: Watched, monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> list[str]:
        """Whenever somebody tries it, it is noted."""
        tried, load = list[str](), engine.ledger.load

        async def spoilt(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
            if job_id == "a-0":
                tried.append(job_id)
                raise trouble
            return await load(job_id, step_ids, fresh)

        monkeypatch.setattr(engine.ledger, "load", spoilt)
        return tried

    @staticmethod
    async def try_in_vain(trouble: Exception, attempt: Awaitable[list[Directive] | bool]) -> None:
        """Whoever comes first hears of it, or is given nothing where it is no error of ours."""
        if isinstance(trouble, ForeignEngine):
            assert not await attempt
        else:
            with pytest.raises(type(trouble)):
                await attempt

    @pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
    async def test_keeps_no_pull_from_the_next_one(self, trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = Watched()
        await engine.jobs_of("a", 3)
        tried = self.spoil(engine, monkeypatch, trouble)
        if not isinstance(trouble, ForeignEngine):  # no error of ours: what is behind it is given out at once
            await self.try_in_vain(trouble, engine.pull(1))
        got = [directive.jobId for _ in range(2) for directive in await engine.pull(1)]
        assert (got, await engine.pull(1), len(tried)) == (["a-1", "a-2"], [], 1)

    @pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
    async def test_keeps_no_relay_from_the_next_one(self, trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 3)
        tried = self.spoil(engine, monkeypatch, trouble)
        for job_id in ("a-0", "a-1", "a-2"):
            (row,) = await engine.dispatcher.take(None, 1)
            assert row.job_id == job_id
            publishing = engine.dispatcher.publish(row, bus, 1)
            await (self.try_in_vain(trouble, publishing) if job_id == "a-0" else publishing)
            await engine.dispatcher.put_back([row])
        assert (await engine.dispatcher.take(None, 1), len(tried)) == ([], 1)

    async def test_is_tried_again_after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dispatch, "ASIDE_SECONDS", 0.01)
        engine, trouble = Watched(), LedgerCorrupt("unreadable")
        await engine.jobs_of("a", 1)
        with monkeypatch.context() as patches:
            self.spoil(engine, patches, trouble)
            await self.try_in_vain(trouble, engine.pull(1))
        engine.hub.relay.clear()
        assert [directive.jobId for directive in await engine.pull(1, wait_seconds=WITHIN)] == ["a-0"]
        assert (engine.dispatcher._aside, engine.hub.relay.is_set()) == (set(), True)

    async def test_nor_does_one_whose_directive_can_not_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 2)

        async def fail(*_: object) -> None:
            raise LedgerCorrupt("a step before it is unreadable")

        (row,) = await engine.dispatcher.take(None, 1)
        with monkeypatch.context() as patches:
            patches.setattr(engine.dispatcher, "directive", fail)
            with pytest.raises(LedgerCorrupt):
                await engine.dispatcher.publish(row, bus, 1)
        await engine.dispatcher.put_back([row])
        await engine.dispatcher.release_claims()
        assert [row.job_id for row in await engine.dispatcher.take(None, 9)] == ["a-1"]

    @pytest.mark.parametrize("trouble", [LedgerDown("away"), Rejected(RejectCode.LEDGER_CONTENDED, "too fast")])
    async def test_is_not_one_that_could_not_be_decided_about_just_now(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Watched()
        await engine.jobs_of("a", 1)
        with monkeypatch.context() as patches:
            self.spoil(engine, patches, trouble)
            with pytest.raises(type(trouble)):
                await engine.pull(1)
        assert [directive.jobId for directive in await engine.pull(1)] == ["a-0"]

    async def test_is_one_of_so_many_at_most(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dispatch, "MOST_ASIDE", 2)
        engine = Watched()
        await engine.jobs_of("a", 3)

        async def fail(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
            raise LedgerCorrupt("unreadable")

        with monkeypatch.context() as patches:
            patches.setattr(engine.ledger, "load", fail)
            with pytest.raises(LedgerCorrupt):
                await engine.pull(3)
            assert len(engine.dispatcher._aside) == 2
        assert [directive.jobId for directive in await engine.pull(3)] == ["a-2"]
