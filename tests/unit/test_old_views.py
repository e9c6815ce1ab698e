"""A process that remembers a job as it was: whatever it decides on that is guarded, or decided again."""

from collections.abc import Collection, Sequence

import pytest

from lucius.adapters.ledger_memory import MemoryLedger
from lucius.core.decision import Applied, JobView
from lucius.core.inputs import Input, Pause, Resume
from lucius.core.protocol import StepSpec
from lucius.service.errors import RejectCode, Rejected
from tests.support.engine import Engine


class Forgetful(MemoryLedger):
    """Answers with what it was once told to remember, unless it is asked for what is so."""

    def __init__(self) -> None:
        super().__init__()
        self.remembered: dict[str, JobView] = {}

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
        old = self.remembered.get(job_id)
        if old is not None and not fresh:
            return JobView(old.job, old.protocol, old.steps, old.asked, cached=True)
        return await super().load(job_id, step_ids, fresh)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("tests.support.engine.MemoryLedger", Forgetful)
    return Engine()


async def remembered_running(engine: Engine) -> None:
    """The job is paused, and remembered as it was before."""
    job_id = await engine.submit(StepSpec(step_id="ocr", step_type="OCR", service="ocr"))
    ledger = engine.ledger
    assert isinstance(ledger, Forgetful)
    view = await ledger.load(job_id)
    assert view is not None
    await engine.feed(Pause("me"))
    ledger.remembered[job_id] = view


async def test_what_changes_nothing_is_decided_on_what_is_so(engine: Engine) -> None:
    """As it is remembered, the job is not paused and can't be resumed."""
    await remembered_running(engine)
    decision = await engine.jobs.weigh("job-1", (Resume("me"),))
    assert isinstance(decision.reply, Applied)
    assert decision.job.paused is None


async def test_a_refusal_that_rests_on_an_old_view_is_thought_over(engine: Engine) -> None:
    await remembered_running(engine)

    async def inputs(view: JobView) -> Sequence[Input]:
        if view.job.paused is None:
            raise Rejected(RejectCode.ACT_NOT_APPLICABLE, "it is not paused")
        return (Resume("me"),)

    decision = await engine.jobs.weigh("job-1", inputs)
    assert isinstance(decision.reply, Applied)


async def test_one_that_rests_on_what_is_so_stands(engine: Engine) -> None:
    await remembered_running(engine)

    async def inputs(view: JobView) -> Sequence[Input]:
        raise Rejected(RejectCode.ACT_NOT_APPLICABLE, "never")

    with pytest.raises(Rejected):
        await engine.jobs.weigh("job-1", inputs)
