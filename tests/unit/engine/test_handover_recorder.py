"""Rows whose jobs can't be decided are set aside for a while."""

from collections.abc import Awaitable, Collection

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import Directive
from lucius.core.model.decision import JobSnapshot
from lucius.ports.errors import ForeignEngine, LedgerCorrupt, LedgerDown
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.handover import row_holds
from tests.support.engine import WITHIN
from tests.support.watched_engine import WatchedEngine


class TestUndecidableJob:
    """Its row is tried from time to time and does not block other rows."""

    TROUBLE = (LedgerCorrupt("unreadable"), RuntimeError("a bug of ours"), ForeignEngine("driven by another"))

    @staticmethod
    def spoil(engine: WatchedEngine, monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> list[str]:
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
        engine = WatchedEngine()
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
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 3)
        tried = self.spoil(engine, monkeypatch, trouble)
        for job_id in ("a-0", "a-1", "a-2"):
            (row,) = await engine.bus_handover.take_rows(1)
            assert row.job_id == job_id
            publishing = engine.bus_handover.publish(row, bus, 1)
            await (self.attempt_fails(trouble, publishing) if job_id == "a-0" else publishing)
            await engine.row_holds.put_back([row])
        assert (await engine.bus_handover.take_rows(1), len(tried)) == ([], 1)

    async def test_undecidable_job_is_retried_after_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(row_holds, "SET_ASIDE_SECONDS", 0.01)
        engine, trouble = WatchedEngine(), LedgerCorrupt("unreadable")
        await engine.jobs_of("a", 1)
        with monkeypatch.context() as patches:
            self.spoil(engine, patches, trouble)
            await self.attempt_fails(trouble, engine.pull(1))
        engine.notifier.relay.clear()
        assert [directive.jobId for directive in await engine.pull(1, wait_seconds=WITHIN)] == ["a-0"]
        assert (engine.row_holds.set_aside_count, engine.notifier.relay.is_set()) == (0, True)

    async def test_row_whose_directive_cannot_be_rendered_is_set_aside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 2)

        async def fail(*_: object) -> None:
            raise LedgerCorrupt("a step before it is unreadable")

        (row,) = await engine.bus_handover.take_rows(1)
        with monkeypatch.context() as patches:
            patches.setattr(engine.directive_loader, "load", fail)
            with pytest.raises(LedgerCorrupt):
                await engine.bus_handover.publish(row, bus, 1)
        await engine.row_holds.put_back([row])
        await engine.bus_handover.release_claims()
        assert [row.job_id for row in await engine.bus_handover.take_rows(9)] == ["a-1"]

    @pytest.mark.parametrize("trouble", [LedgerDown("away"), Rejected(RejectCode.LEDGER_CONTENDED, "too fast")])
    async def test_row_is_not_set_aside_after_a_transient_error(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = WatchedEngine()
        await engine.jobs_of("a", 1)
        with monkeypatch.context() as patches:
            self.spoil(engine, patches, trouble)
            with pytest.raises(type(trouble)):
                await engine.pull(1)
        assert [directive.jobId for directive in await engine.pull(1)] == ["a-0"]

    async def test_number_of_rows_set_aside_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(row_holds, "MAX_SET_ASIDE_ROWS", 2)
        engine = WatchedEngine()
        await engine.jobs_of("a", 3)

        async def fail(job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
            raise LedgerCorrupt("unreadable")

        with monkeypatch.context() as patches:
            patches.setattr(engine.ledger, "load", fail)
            with pytest.raises(LedgerCorrupt):
                await engine.pull(3)
            assert engine.row_holds.set_aside_count == 2
        assert [directive.jobId for directive in await engine.pull(3)] == ["a-2"]
