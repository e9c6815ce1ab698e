"""Running workflows are compared with the ledger, in parts if there are very many."""

from collections.abc import AsyncIterator
from unittest.mock import AsyncMock, Mock

import pytest

from lucius.engine.temporal import workflow_comparison
from lucius.engine.temporal.workflow_comparison import WorkflowComparison
from lucius.ports.errors import EngineDown


class FakeWorkflowClient:
    """Lists `n` workflows; fails once after `away_behind` of them."""

    def __init__(self, n: int, away_behind: int | None = None) -> None:
        self._n = n
        self._away_behind = away_behind
        self.signal = AsyncMock()

    async def running(self) -> AsyncIterator[str]:
        for n in range(self._n):
            if n == self._away_behind:
                self._away_behind = None
                raise EngineDown("no answer in time")
            yield f"j{n}"

    def signalled_jobs(self) -> list[str]:
        found = [call.args[0] for call in self.signal.await_args_list]
        self.signal.reset_mock()
        return found


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_comparison, "MAX_COMPARED_JOBS", 2)


def comparing(workflows: FakeWorkflowClient) -> WorkflowComparison:
    """Return a comparison with a ledger that knows none of the workflows."""
    ledger = Mock(load=AsyncMock(return_value=None))
    return WorkflowComparison(ledger, workflows, on_repair=Mock())  # type: ignore[arg-type]


async def test_each_comparison_continues_after_the_last() -> None:
    workflows = FakeWorkflowClient(5)
    compares = comparing(workflows)
    looks = [(await compares.compare_all(), workflows.signalled_jobs()) for _ in range(4)]
    assert looks == [(2, ["j0", "j1"]), (2, ["j2", "j3"]), (1, ["j4"]), (2, ["j0", "j1"])]


async def test_failed_comparison_starts_from_the_first() -> None:
    workflows = FakeWorkflowClient(5, away_behind=3)
    compares = comparing(workflows)
    await compares.compare_all()
    with pytest.raises(EngineDown):
        await compares.compare_all()
    workflows.signalled_jobs()
    await compares.compare_all()
    assert workflows.signalled_jobs() == ["j0", "j1"]
