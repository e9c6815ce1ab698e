"""What was given out counts until its workflow has been told of it, whatever stands in the way of that."""

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from lucius.core.decision import Applied, Decision, JobView
from lucius.core.inputs import Cap, HandedOver
from lucius.engine.temporal import given_out
from lucius.engine.temporal.given_out import GivenOut, Store
from lucius.engine.temporal.wire import Happened
from lucius.ports.errors import EngineDown, LedgerBusy, LimitReached
from lucius.ports.inbox import Letter
from tests.support.clock import ManualClock
from tests.support.until import until

CAP = Cap("unacked", 2)
JOB = cast(JobView, SimpleNamespace(job=SimpleNamespace(job_id="job")))


class World:
    """A store that takes every letter and has counted nothing yet, and a workflow that can be away."""

    def __init__(self) -> None:
        self.told: list[list[Happened]] = []
        self.asked = 0
        self.away: Exception | None = None
        self.freed: list[str] = []
        self.given_out = GivenOut(
            cast(Store, self), ManualClock(), weigh=self.weigh, reach=self.reach, freed=self.freed.append
        )

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        return [True for _ in letters]

    async def throw_away(self, letter_ids: Collection[str]) -> None:
        """Nobody asks for them."""

    async def counters(self, prefix: str) -> dict[str, int]:
        return {}

    async def weigh(self, job_id: str, handed_over: Sequence[HandedOver], step_id: str | None) -> Decision:
        return cast(Decision, SimpleNamespace(reply=Applied()))

    async def reach(self, job_id: str, said: Sequence[Happened]) -> bool:
        self.asked += 1
        if self.away is not None:
            raise self.away
        self.told.append(list(said))
        return True

    async def call_back(self) -> None:
        with self.given_out.telling("job") as said:
            await self.reach("job", said)

    async def give(self, number: int) -> None:
        await self.given_out.give(JOB, [HandedOver(f"s{number}", 1, f"lease-{number}", (CAP,))], None)


async def test_what_is_given_out_is_told_together_and_counts_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_out, "COALESCE_SECONDS", 0.05)
    world = World()
    await world.give(1)
    await world.give(2)
    with pytest.raises(LimitReached):
        await world.give(3)
    await until(lambda: bool(world.told))
    assert [len(said) for said in world.told] == [2]
    assert world.freed == ["unacked"] * 2
    await world.give(3)


async def test_while_temporal_is_away_it_still_counts_and_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_out, "COALESCE_SECONDS", 0.01)
    monkeypatch.setattr(given_out, "RETRY_SECONDS", 0.01)
    world = World()
    world.away = EngineDown("away")
    await world.give(1)
    await world.give(2)
    await until(lambda: world.asked >= 3)
    with pytest.raises(LimitReached):
        await world.give(3)
    world.away = None
    await until(lambda: bool(world.told))
    assert [len(said) for said in world.told] == [2]
    await world.give(3)


async def test_what_a_callback_could_not_take_along_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_out, "RETRY_SECONDS", 0.01)
    world = World()
    await world.give(1)
    world.away = EngineDown("away")
    with pytest.raises(EngineDown):
        await world.call_back()
    world.away = None
    await until(lambda: bool(world.told))
    assert [len(said) for said in world.told] == [1]
    await world.call_back()
    assert [len(said) for said in world.told] == [1, 0]


@pytest.mark.parametrize("away", [None, EngineDown("away"), LedgerBusy("busy")])
async def test_at_the_end_it_is_told_at_once_if_it_can_be(away: Exception | None) -> None:
    world = World()
    world.away = away
    await world.give(1)
    await world.given_out.close()
    assert (world.asked, len(world.told)) == (1, 0 if away else 1)


async def test_the_end_waits_for_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_out, "CLOSE_SECONDS", 0.01)
    world = World()

    async def never(job_id: str, said: Sequence[Happened]) -> bool:
        forever: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await forever

    world.given_out._reach = never
    await world.give(1)
    async with asyncio.timeout(5):
        await world.given_out.close()
