"""Decisions on a cached, outdated job: each is guarded by its commit or made again."""

from collections.abc import Collection, Sequence

import pytest

from lucius.adapters.ledger.memory.ledger import MemoryLedger
from lucius.adapters.ledger.memory.tables import MemoryTables
from lucius.core.model.decision import Applied, JobSnapshot
from lucius.core.model.inputs import Input, Pause, Resume
from lucius.core.protocol.definition import StepSpec
from lucius.ports.store import BlockedTime, StoreHooks
from lucius.usecases.errors import RejectCode, Rejected
from tests.support.engine import Engine


class OutdatedSnapshotLedger(MemoryLedger):
    """Answers with an outdated snapshot if one was set, unless a fresh one is requested."""

    def __init__(self, tables: MemoryTables, hooks: StoreHooks, blocked_time: BlockedTime) -> None:
        super().__init__(tables, hooks, blocked_time)
        self.outdated: dict[str, JobSnapshot] = {}

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
        old = self.outdated.get(job_id)
        if old is not None and not fresh:
            return JobSnapshot(old.job, old.protocol, old.steps, old.asked, cached=True)
        return await super().load(job_id, step_ids, fresh)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("lucius.adapters.ledger.memory.store.MemoryLedger", OutdatedSnapshotLedger)
    return Engine()


async def pause_with_outdated_snapshot(engine: Engine) -> None:
    """Pause the job, and cache its snapshot from before."""
    job_id = await engine.submit(StepSpec(step_id="ocr", step_type="OCR", service="ocr"))
    ledger = engine.ledger
    assert isinstance(ledger, OutdatedSnapshotLedger)
    view = await ledger.load(job_id)
    assert view is not None
    await engine.feed(Pause("me"))
    ledger.outdated[job_id] = view


async def test_refusal_on_an_outdated_snapshot_is_decided_again_on_a_fresh_one(engine: Engine) -> None:
    """In the cached snapshot the job is not paused and can't be resumed."""
    await pause_with_outdated_snapshot(engine)
    decision = await engine.jobs.evaluate("job-1", (Resume("me"),))
    assert isinstance(decision.reply, Applied)
    assert decision.job.paused is None


async def test_rejection_raised_on_an_outdated_snapshot_is_decided_again(engine: Engine) -> None:
    await pause_with_outdated_snapshot(engine)

    async def inputs(view: JobSnapshot) -> Sequence[Input]:
        if view.job.paused is None:
            raise Rejected(RejectCode.ACT_NOT_APPLICABLE, "it is not paused")
        return (Resume("me"),)

    decision = await engine.jobs.evaluate("job-1", inputs)
    assert isinstance(decision.reply, Applied)


async def test_rejection_raised_on_a_fresh_snapshot_is_final(engine: Engine) -> None:
    await pause_with_outdated_snapshot(engine)

    async def inputs(view: JobSnapshot) -> Sequence[Input]:
        raise Rejected(RejectCode.ACT_NOT_APPLICABLE, "never")

    with pytest.raises(Rejected):
        await engine.jobs.evaluate("job-1", inputs)
