"""Rows taken by one process: they are held from others, and put back if they are not handed over."""

import asyncio

import pytest

from lucius.core.model.inputs import HandOverFailed
from lucius.core.model.records import ErrorInfo, OutboxRow
from lucius.core.protocol.definition import StepSpec
from lucius.ports.errors import LedgerDown
from lucius.ports.outbox import PendingQuery
from lucius.usecases.handover import row_holds
from tests.simulation.clock import in_virtual_time
from tests.support.watched_engine import WatchedEngine

OTHER = StepSpec(step_id="other", step_type="OTHER", service="other")


class TestClaimedRows:
    async def test_claimed_rows_are_held_for_at_least_ten_seconds(self) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 1)
        await engine.pull(1)
        assert engine.queries[-1].hold_ms >= 10_000

    async def test_rows_above_the_cap_are_returned_at_once(self) -> None:
        engine = WatchedEngine(max_unacked=2)
        await engine.jobs_of("a", 5)
        out = await engine.pull(5)
        assert len(out) == 2
        assert sorted(engine.given_back + [got.jobId for got in out]) == [f"a-{i}" for i in range(5)]

    async def test_rows_handed_over_are_not_returned(self) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 5)
        assert len(await engine.pull(5)) == 5
        assert engine.given_back == []

    async def test_claimed_row_is_not_claimed_again_until_returned(self) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 6)
        first, second = await engine.row_holds.take("ocr", 4), await engine.bus_handover.take_rows(4)
        assert {row.job_id for row in first}.isdisjoint(row.job_id for row in second)
        assert (len(first), len(second)) == (4, 2)
        await engine.row_holds.put_back(first)
        assert len(await engine.row_holds.take("ocr", 9)) == 4

    async def test_rows_that_cannot_be_returned_are_claimed_again_after_their_hold(self) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 1)
        rows = await engine.row_holds.take("ocr", 1)
        engine.down = True
        await engine.row_holds.put_back(rows)
        engine.down = False
        assert await engine.row_holds.take("ocr", 1) == rows

    @pytest.mark.parametrize("cap", [1, 1_000], ids=["at its cap", "below its cap"])
    async def test_row_in_backoff_is_taken_for_the_bus_only_by_its_retry(self, cap: int) -> None:
        """The sweeper starts a new attempt with a row of its own; the row of the refused attempt must not leave."""
        engine = WatchedEngine(max_unacked=cap)
        await engine.jobs_of("a", 2)
        out = await engine.pull(2 if cap == 1 else 1)  # with a cap of 1, learns that the service is at its cap
        await engine.ack(out)
        (row,) = await engine.bus_handover.take_rows(9)
        failed = HandOverFailed(row.step_id, row.attempt_no, row.lease_id, ErrorInfo("HANDOVER_FAILED", "refused"))
        await engine.feed(failed, job_id=row.job_id)
        await engine.row_holds.put_back([row])
        engine.clock.advance(3_600)
        assert await engine.bus_handover.take_rows(9) == []
        assert [row.job_id for row in await engine.row_holds.take("ocr", 9, postponed=True)] == [row.job_id]

    async def test_rows_are_put_back_if_a_later_query_of_the_same_take_fails(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = WatchedEngine(max_unacked=1)
        await engine.jobs_of("a", 3)
        out = await engine.pull(3)  # learns that the service is at its cap
        await engine.submit(OTHER, job_id="other")
        await engine.ack(out)
        engine.given_back.clear()
        pending = engine.store.outbox.pending

        async def fail_for_ocr(query: PendingQuery) -> list[OutboxRow]:
            if query.service == "ocr":
                raise LedgerDown("no connection")
            return await pending(query)

        with monkeypatch.context() as broken:
            broken.setattr(engine.store.outbox, "pending", fail_for_ocr)
            with pytest.raises(LedgerDown):
                await engine.bus_handover.take_rows(9)
        assert engine.given_back == ["other"]
        assert "other" in {row.job_id for row in await engine.bus_handover.take_rows(9)}


class TestWithheldRows:
    """A row that is set aside or not settled yet is not taken again before its time, whatever its holder does."""

    @in_virtual_time
    async def test_row_that_is_refused_again_is_set_aside_for_longer(self) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 1)
        holds = engine.row_holds
        for seconds in (10, 20, 40):
            (row,) = await holds.take("ocr", 1)
            holds.set_aside_with_backoff(row)
            await holds.put_back([row])
            assert (holds.set_aside_count, holds.count_in_progress("ocr")) == (1, 0)
            await asyncio.sleep(seconds - 0.1)
            assert await holds.take("ocr", 1) == []
            await asyncio.sleep(0.2)
        assert (await holds.take("ocr", 1), engine.given_back) == ([row], ["a-0"] * 3)

    @in_virtual_time
    async def test_handed_over_row_is_not_taken_again_before_its_engine_may_have_settled_it(self) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 1)
        (row,) = await engine.row_holds.take("ocr", 1)
        engine.row_holds.withhold_until_settled(row)
        engine.row_holds.let_go([row])
        await engine.row_holds.put_back([row])
        assert await engine.row_holds.take("ocr", 1) == []
        assert (engine.given_back, engine.row_holds.unsettled_count) == ([], 1)
        await asyncio.sleep(row_holds.SETTLE_SECONDS + 0.1)
        assert (await engine.row_holds.take("ocr", 1), engine.row_holds.unsettled_count) == ([row], 0)
