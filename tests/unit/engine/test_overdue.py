"""The sweeper after an absence: everything is overdue at once, and is taken a few at a time at first."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from lucius.core.decision import Applied
from lucius.core.inputs import Input
from lucius.engine import sweeper
from lucius.engine.presence import LonePresence
from lucius.engine.sweeper import Sweeper
from lucius.ports.errors import LedgerDown
from lucius.ports.ledger import Ledger
from lucius.service import ramp
from lucius.service.jobs import Jobs
from tests.support.clock import ManualClock


class Overdue:
    """A ledger and its jobs: so many are due, and whoever is looked at is not any more."""

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
        jobs=cast(Jobs, overdue),
        presence=LonePresence(clock.now()),
        clock=clock,
        interval=0.2,
        repair_interval=30,
        on_action=lambda _: None,
        wake=asyncio.Event(),
        jitter=lambda: 0.0,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramp, "STEP_SECONDS", 0.001)


async def test_it_begins_with_few_and_doubles() -> None:
    overdue = Overdue(1_000)
    assert await sweeper_of(overdue, ManualClock()).sweep() == 1_000
    assert overdue.batches[:6] == [8, 16, 32, 64, 128, sweeper.BATCH]


async def test_once_at_full_speed_it_stays_there() -> None:
    overdue, clock = Overdue(1_000), ManualClock()
    awake = sweeper_of(overdue, clock)
    await awake.sweep()
    overdue.left, overdue.batches = [f"more-{i}" for i in range(400)], []
    await awake.sweep()
    assert overdue.batches[0] == sweeper.BATCH


@pytest.mark.parametrize("cause", ["gap", "ledger"])
async def test_the_next_absence_begins_it_anew(cause: str) -> None:
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
