"""Claims on rows that were surely not published are given back, however uncertain they are."""

from collections.abc import Collection

import pytest
from structlog.testing import capture_logs

from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import Directive
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import HandOverStarted
from lucius.core.model.statuses import StepStatus
from lucius.ports.errors import BusDown, LedgerBusy, LedgerCorrupt, LedgerDown, LedgerFull
from lucius.ports.outbox import PendingQuery
from tests.support.watched_engine import WatchedEngine


class TestUncertainClaims:
    """The ledger goes down while a row is claimed for the bus: it is unknown at first whether the claim was stored."""

    async def test_claim_on_an_unpublished_row_is_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.bus_handover.take_rows(1)
        real = engine.ledger.commit

        async def kept_and_lost(decision: Decision) -> None:
            await real(decision)
            raise LedgerDown("the answer was lost")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", kept_and_lost)
            with pytest.raises(LedgerDown):
                await engine.bus_handover.publish(row, bus, 1)
        assert (await engine.step("ocr", "a-0")).attempt.claimed_at is not None
        assert bus.backlog("ocr") == 0
        await engine.bus_handover.release_claims()
        engine.row_holds.let_go([row])
        (again,) = await engine.bus_handover.take_rows(1)
        assert await engine.bus_handover.publish(again, bus, 1)
        step = await engine.step("ocr", "a-0")
        assert (step.status, step.attempt.attempt_no, step.tries) == (StepStatus.INITIATED, 1, 1)

    async def test_claim_that_was_never_stored_needs_no_release(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.bus_handover.take_rows(1)

        async def lost(decision: Decision) -> None:
            raise LedgerDown("no connection")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", lost)
            with pytest.raises(LedgerDown):
                await engine.bus_handover.publish(row, bus, 1)
        await engine.bus_handover.release_claims()
        assert await engine.bus_handover.publish(row, bus, 1)

    async def test_claim_taken_over_by_another_replica_is_not_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.bus_handover.take_rows(1)

        async def lost(decision: Decision) -> None:
            raise LedgerDown("no connection")

        with monkeypatch.context() as away:
            away.setattr(engine.ledger, "commit", lost)
            with pytest.raises(LedgerDown):
                await engine.bus_handover.publish(row, bus, 1)
        await engine.feed(HandOverStarted("ocr", row.attempt_no, row.lease_id, by="another"), job_id="a-0")
        await engine.bus_handover.release_claims()
        assert (await engine.step("ocr", "a-0")).attempt.claimed_at is not None

    @pytest.mark.parametrize("trouble", [LedgerCorrupt("unreadable"), TypeError("of another version")])
    async def test_claim_that_cannot_be_released_delays_no_other(
        self, trouble: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 2)
        rows = await engine.bus_handover.take_rows(2)
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
                    await engine.bus_handover.publish(row, bus, 1)
        with monkeypatch.context() as broken:
            broken.setattr(engine.ledger, "load", spoilt)
            await engine.bus_handover.release_claims()
        assert await self.claimed(engine) == [rows[0].job_id]
        engine.clock.advance(60)
        await engine.bus_handover.release_claims()
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
        engine, bus = WatchedEngine(), MemoryBus()
        await engine.jobs_of("a", 1)
        (row,) = await engine.bus_handover.take_rows(1)

        commit = engine.ledger.commit

        async def fail(decision: Decision) -> None:
            raise trouble

        async def down(topic: str, directive: Directive) -> None:
            monkeypatch.setattr(engine.ledger, "commit", fail)
            raise BusDown("away")

        monkeypatch.setattr(bus, "publish", down)
        with capture_logs() as logs, pytest.raises(BusDown):
            await engine.bus_handover.publish(row, bus, 1)
        assert [(said["log_level"], "exc_info" in said) for said in logs] == [(level, level == "error")]
        monkeypatch.setattr(engine.ledger, "commit", commit)
        await engine.bus_handover.release_claims()
        assert await self.claimed(engine) == []

    async def claimed(self, engine: WatchedEngine) -> list[str]:
        rows = await engine.store.outbox.pending(PendingQuery(limit=9, now=engine.clock.now(), claimed=True))
        return [row.job_id for row in rows]
