"""The sweeper after an absence: all jobs are overdue at once, and are taken in small batches at first."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from lucius.core.model.decision import Applied
from lucius.core.model.inputs import Input
from lucius.engine.embedded import sweeper
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.embedded.sweeper import Sweeper
from lucius.engine.liveness import SingleProcessLiveness
from lucius.ports.errors import LedgerDown
from lucius.ports.ledger import Ledger
from lucius.usecases.handover import slow_start
from tests.support.clock import ManualClock


class Overdue:
    """A ledger with `jobs` due jobs; a job is no longer due once it was read."""

    def __init__(self, jobs: int) -> None:
        self.left = [f"job-{i}" for i in range(jobs)]
        self.batches: list[int] = []
        self.down = False

    async def due(self, now: int, limit: int, hold_ms: int) -> list[str]:
        if self.down:
            raise LedgerDown("no connection")
        found = self.left[:limit]
        self.batches.append(len(found))
        return found

    async def apply(self, job_id: str, inputs: Sequence[Input]) -> Any:
        self.left.remove(job_id)
        return type("Answer", (), {"reply": Applied()})


def sweeper_of(overdue: Overdue, clock: ManualClock) -> Sweeper:
    return Sweeper(
        ledger=cast(Ledger, overdue),
        engine=cast(EmbeddedEngine, overdue),
        liveness=SingleProcessLiveness(clock.now()),
        clock=clock,
        interval=0.2,
        repair_interval=30,
        on_action=lambda _: None,
        wake=asyncio.Event(),
        jitter=lambda: 0.0,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "STEP_SECONDS", 0.001)


async def test_sweeper_begins_with_a_small_batch_and_doubles_it() -> None:
    overdue = Overdue(1_000)
    assert await sweeper_of(overdue, ManualClock()).sweep() == 1_000
    assert overdue.batches[:6] == [8, 16, 32, 64, 128, sweeper.BATCH_JOBS]


async def test_sweeper_at_full_speed_keeps_its_batch_size() -> None:
    overdue, clock = Overdue(1_000), ManualClock()
    awake = sweeper_of(overdue, clock)
    await awake.sweep()
    overdue.left, overdue.batches = [f"more-{i}" for i in range(400)], []
    await awake.sweep()
    assert overdue.batches[0] == sweeper.BATCH_JOBS


@pytest.mark.parametrize("cause", ["gap", "ledger"])
async def test_next_absence_or_outage_restarts_the_slow_start(cause: str) -> None:
    overdue, clock = Overdue(1_000), ManualClock()
    awake = sweeper_of(overdue, clock)
    await awake.sweep()
    if cause == "gap":
        clock.advance(60)
    else:
        overdue.down = True
        with pytest.raises(LedgerDown):
            await awake.sweep()
        overdue.down = False
    overdue.left, overdue.batches = [f"more-{i}" for i in range(400)], []
    await awake.sweep()
    assert overdue.batches[0] == 8
    assert all(later <= 2 * earlier for earlier, later in pairwise(overdue.batches[:-1]))
