"""Pulls: which tenant gets rows under a service's cap, and what happens to claimed rows that are not handed over."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence

import pytest
from structlog.testing import capture_logs

from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import Directive
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import Ack, HandOverStarted
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import StepSpec
from lucius.ports.errors import BusDown, ForeignEngine, LedgerBusy, LedgerCorrupt, LedgerDown, LedgerFull, LimitReached
from lucius.ports.outbox import PendingQuery
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.handover import dispatcher, slow_start
from tests.simulation.clock import in_virtual_time
from tests.support.engine import WITHIN, Engine

OCR = StepSpec(step_id="ocr", step_type="OCR", service="ocr")


class Watched(Engine):
    """An engine that records the queries to its ledger."""

    def __init__(self, max_unacked: int = 1_000) -> None:
        super().__init__(max_unacked=max_unacked)
        self.refused = 0
        self.queries: list[PendingQuery] = []
        self.given_back: list[str] = []
        self.down = False
        self._guard, self._pending = self.store.tables.guard, self.store.outbox.pending
        self.store.tables.guard = self._watch_guard  # type: ignore[method-assign]
        self.store.outbox.pending = self._watch_pending  # type: ignore[method-assign]
        self.store.outbox.put_back = self._watch_put_back  # type: ignore[method-assign]

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


class TestUnackedCap:
    async def test_long_backlog_under_a_small_cap_does_not_starve_another_tenant(self) -> None:
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

    async def test_tenants_share_the_capacity_of_a_service_evenly(self) -> None:
        engine = Watched(max_unacked=10)
        for tenant_id, n in (("a", 200), ("b", 30), ("c", 30)):
            await engine.jobs_of(tenant_id, n)
        seen: Counter[str] = Counter()
        for _ in range(6):
            out = await engine.pull(100)
            seen += tenants(out)
            await engine.ack(out)
        assert seen.total() == 60
        assert max(seen.values()) - min(seen.values()) <= 3  # the first refusals came after these rows were taken

    async def test_service_at_its_cap_is_not_retried_in_a_loop(self) -> None:
        engine = Watched(max_unacked=4)
        await engine.jobs_of("a", 50)
        out = await engine.pull(20)
        assert len(out) == 4
        assert engine.refused == 16  # the refusals are how the dispatcher learns of the cap
        for _ in range(5):
            assert await engine.pull(20) == []
        await engine.ack(out[:1])
        assert len(await engine.pull(20)) == 1
        assert engine.refused == 16

    @in_virtual_time
    async def test_waiting_pulls_do_not_compete_for_the_same_free_slots(self) -> None:
        engine = Watched(max_unacked=4)
        await engine.jobs_of("a", 50)
        out = await engine.pull(20)
        learned = engine.refused
        waiting = [asyncio.create_task(engine.pull(20, wait_seconds=0.2)) for _ in range(8)]
        await asyncio.sleep(0.05)
        await engine.ack(out[:2])
        assert sum(map(len, await asyncio.gather(*waiting))) == 2
        assert engine.refused == learned

    @in_virtual_time
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


class TestClaimedRows:
    async def test_claimed_rows_are_held_for_at_least_ten_seconds(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 1)
        await engine.pull(1)
        assert engine.queries[-1].hold_ms >= 10_000

    async def test_rows_above_the_cap_are_returned_at_once(self) -> None:
        engine = Watched(max_unacked=2)
        await engine.jobs_of("a", 5)
        out = await engine.pull(5)
        assert len(out) == 2
        assert sorted(engine.given_back + [got.jobId for got in out]) == [f"a-{i}" for i in range(5)]

    async def test_rows_handed_over_are_not_returned(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 5)
        assert len(await engine.pull(5)) == 5
        assert engine.given_back == []

    async def test_claimed_row_is_not_claimed_again_until_returned(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 6)
        first, second = await engine.dispatcher.take("ocr", 4), await engine.dispatcher.take(None, 4)
        assert {row.job_id for row in first}.isdisjoint(row.job_id for row in second)
        assert (len(first), len(second)) == (4, 2)
        await engine.dispatcher.put_back(first)
        assert len(await engine.dispatcher.take("ocr", 9)) == 4

    async def test_rows_that_cannot_be_returned_are_claimed_again_after_their_hold(self) -> None:
        engine = Watched()
        await engine.jobs_of("a", 1)
        rows = await engine.dispatcher.take("ocr", 1)
        engine.down = True
        await engine.dispatcher.put_back(rows)
        engine.down = False
        assert await engine.dispatcher.take("ocr", 1) == rows


class TestAfterAnOutage:
    async def recovered_engine(self) -> Watched:
        """Return an engine with 200 rows, whose ledger has just been down; not a fixture, whose loop has real time."""
        engine = Watched()
        await engine.jobs_of("a", 200)
        engine.down = True
        with pytest.raises(LedgerDown):
            await engine.pull(100)
        engine.down = False
        return engine

    @in_virtual_time
    async def test_pulls_get_few_directives_at_first_and_soon_all(self) -> None:
        engine = await self.recovered_engine()
        began = asyncio.get_running_loop().time()
        assert [len(await engine.pull(100, wait_seconds=5)) for _ in range(5)] == [8, 16, 32, 64, 80]
        assert asyncio.get_running_loop().time() - began == pytest.approx(4 * slow_start.STEP_SECONDS, abs=0.01)

    @in_virtual_time
    async def test_repeated_pulls_get_no_more_directives(self) -> None:
        engine = await self.recovered_engine()
        assert [len(await engine.pull(5)) for _ in range(4)] == [5, 3, 0, 0]

    @in_virtual_time
    async def test_concurrent_pulls_share_one_small_window(self) -> None:
        engine = await self.recovered_engine()
        assert sum(map(len, await asyncio.gather(*(engine.pull(5) for _ in range(20))))) == 8
        assert all(await asyncio.gather(*(engine.pull(5, wait_seconds=5) for _ in range(20))))

    @in_virtual_time
    async def test_pull_disconnected_while_paced_gets_nothing(self) -> None:
        engine = await self.recovered_engine()
        assert len(await engine.pull(100)) == 8
        gone = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(engine.dispatcher.pull("ocr", 100, 5, None, lambda: gone))
        await asyncio.sleep(0)
        gone.set_result(None)
        assert await waiting == []

    async def test_new_process_is_not_paced_without_an_outage(self) -> None:
        """Services ask for as much as they can do: only services that can't know of each other are held back."""
        engine = Watched()
        await engine.jobs_of("a", 50)
        assert len(await engine.pull(100)) == 50


class TestUncertainClaims:
    """The ledger goes down while a row is claimed for the bus: it is unknown at first whether the claim was stored."""

    async def test_claim_on_an_unpublished_row_is_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def test_claim_that_was_never_stored_needs_no_release(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def test_claim_taken_over_by_another_replica_is_not_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
    async def test_claim_that_cannot_be_released_delays_no_other(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 2)
        rows = await engine.dispatcher.take(None, 2)
        commit, load = engine.ledger.commit, engine.ledger.load

        async def kept_and_lost(decision: Decision) -> None:
            await commit(decision)
            raise LedgerDown("the answer was lost")

        async def spoilt(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
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
    async def test_claim_is_released_later_after_any_ledger_error(
        self, trouble: Exception, level: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log level tells an outage, which passes, from an error that needs attention."""
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
        rows = await engine.store.outbox.pending(PendingQuery(limit=9, now=engine.clock.now(), claimed=True))
        return [row.job_id for row in rows]


class TestUndecidableJob:
    """Its row is tried from time to time and does not block other rows."""

    TROUBLE = (LedgerCorrupt("unreadable"), RuntimeError("a bug of ours"), ForeignEngine("driven by another"))

    @staticmethod
    def spoil(engine: Watched, monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> list[str]:
        """Make every attempt on job `a-0` raise `trouble`; return the list that records the attempts."""
        tried, load = list[str](), engine.ledger.load

        async def spoilt(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
            if job_id == "a-0":
                tried.append(job_id)
                raise trouble
            return await load(job_id, step_ids, fresh)

        monkeypatch.setattr(engine.ledger, "load", spoilt)
        return tried

    @staticmethod
    async def attempt_fails(trouble: Exception, attempt: Awaitable[list[Directive] | bool]) -> None:
        """Expect the first caller to get the error, or nothing if another engine drives the job, which is no error."""
        if isinstance(trouble, ForeignEngine):
            assert not await attempt
        else:
            with pytest.raises(type(trouble)):
                await attempt

    @pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
    async def test_undecidable_job_does_not_block_pulls_of_later_rows(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Watched()
        await engine.jobs_of("a", 3)
        tried = self.spoil(engine, monkeypatch, trouble)
        if not isinstance(trouble, ForeignEngine):  # not an error: the rows behind it are given out at once
            await self.attempt_fails(trouble, engine.pull(1))
        got = [directive.jobId for _ in range(2) for directive in await engine.pull(1)]
        assert (got, await engine.pull(1), len(tried)) == (["a-1", "a-2"], [], 1)

    @pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
    async def test_undecidable_job_does_not_block_publishing_of_later_rows(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, bus = Watched(), MemoryBus()
        await engine.jobs_of("a", 3)
        tried = self.spoil(engine, monkeypatch, trouble)
        for job_id in ("a-0", "a-1", "a-2"):
            (row,) = await engine.dispatcher.take(None, 1)
            assert row.job_id == job_id
            publishing = engine.dispatcher.publish(row, bus, 1)
            await (self.attempt_fails(trouble, publishing) if job_id == "a-0" else publishing)
            await engine.dispatcher.put_back([row])
        assert (await engine.dispatcher.take(None, 1), len(tried)) == ([], 1)

    async def test_undecidable_job_is_retried_after_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dispatcher, "ASIDE_SECONDS", 0.01)
        engine, trouble = Watched(), LedgerCorrupt("unreadable")
        await engine.jobs_of("a", 1)
        with monkeypatch.context() as patches:
            self.spoil(engine, patches, trouble)
            await self.attempt_fails(trouble, engine.pull(1))
        engine.notifier.relay.clear()
        assert [directive.jobId for directive in await engine.pull(1, wait_seconds=WITHIN)] == ["a-0"]
        assert (engine.dispatcher.aside_count, engine.notifier.relay.is_set()) == (0, True)

    async def test_row_whose_directive_cannot_be_rendered_is_set_aside(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
    async def test_row_is_not_set_aside_after_a_transient_error(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Watched()
        await engine.jobs_of("a", 1)
        with monkeypatch.context() as patches:
            self.spoil(engine, patches, trouble)
            with pytest.raises(type(trouble)):
                await engine.pull(1)
        assert [directive.jobId for directive in await engine.pull(1)] == ["a-0"]

    async def test_number_of_rows_set_aside_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dispatcher, "MAX_ASIDE", 2)
        engine = Watched()
        await engine.jobs_of("a", 3)

        async def fail(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
            raise LedgerCorrupt("unreadable")

        with monkeypatch.context() as patches:
            patches.setattr(engine.ledger, "load", fail)
            with pytest.raises(LedgerCorrupt):
                await engine.pull(3)
            assert engine.dispatcher.aside_count == 2
        assert [directive.jobId for directive in await engine.pull(3)] == ["a-2"]
