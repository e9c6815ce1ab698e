"""Workflows that run are compared with the ledger, not all at once where there are very many."""

from collections.abc import AsyncIterator
from unittest.mock import AsyncMock, Mock

import pytest

from lucius.engine.temporal import jobs
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.jobs import TemporalJobs
from lucius.ports.errors import EngineDown


class Workflows:
    """`away_behind` so many, Temporal does not answer, once."""

    def __init__(self, n: int, away_behind: int | None = None) -> None:
        self._n = n
        self._away_behind = away_behind
        self.tell = AsyncMock()

    async def running(self) -> AsyncIterator[str]:
        for n in range(self._n):
            if n == self._away_behind:
                self._away_behind = None
                raise EngineDown("no answer in time")
            yield f"j{n}"

    def told(self) -> list[str]:
        found = [call.args[0] for call in self.tell.await_args_list]
        self.tell.reset_mock()
        return found


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_COMPARED", 2)


def comparing(workflows: Workflows) -> TemporalJobs:
    """With a ledger that knows none of them."""
    store = Mock(load=AsyncMock(return_value=None))
    return TemporalJobs(store, Mock(), Mock(), workflows, Ahead(), on_repair=Mock())  # type: ignore[arg-type]


async def test_each_look_goes_on_where_the_last_one_stopped() -> None:
    workflows = Workflows(5)
    compares = comparing(workflows)
    looks = [(await compares.compare_all(), workflows.told()) for _ in range(4)]
    assert looks == [(2, ["j0", "j1"]), (2, ["j2", "j3"]), (1, ["j4"]), (2, ["j0", "j1"])]


async def test_one_that_came_to_nothing_is_begun_anew() -> None:
    workflows = Workflows(5, away_behind=3)
    compares = comparing(workflows)
    await compares.compare_all()
    with pytest.raises(EngineDown):
        await compares.compare_all()
    workflows.told()
    await compares.compare_all()
    assert workflows.told() == ["j0", "j1"]
