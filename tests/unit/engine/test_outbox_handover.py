"""Pulls after an outage of the ledger get few directives at first, and soon all."""

import asyncio

import pytest

from lucius.ports.errors import LedgerDown
from lucius.usecases.handover import slow_start
from tests.simulation.clock import in_virtual_time
from tests.support.watched_engine import WatchedEngine


class TestAfterAnOutage:
    async def recovered_engine(self) -> WatchedEngine:
        """Return an engine with 200 rows, whose ledger has just been down; not a fixture, whose loop has real time."""
        engine = WatchedEngine()
        await engine.jobs_of("a", 200)
        engine.down = True
        with pytest.raises(LedgerDown):
            await engine.pull(100)
        engine.down = False
        return engine

    @in_virtual_time
    async def test_pulls_get_few_directives_at_first_and_soon_all(self) -> None:
        engine = await self.recovered_engine()
        began = asyncio.get_running_loop().time()
        assert [len(await engine.pull(100, wait_seconds=5)) for _ in range(5)] == [8, 16, 32, 64, 80]
        assert asyncio.get_running_loop().time() - began == pytest.approx(4 * slow_start.STEP_SECONDS, abs=0.01)

    @in_virtual_time
    async def test_repeated_pulls_get_no_more_directives(self) -> None:
        engine = await self.recovered_engine()
        assert [len(await engine.pull(5)) for _ in range(4)] == [5, 3, 0, 0]

    @in_virtual_time
    async def test_concurrent_pulls_share_one_small_window(self) -> None:
        engine = await self.recovered_engine()
        assert sum(map(len, await asyncio.gather(*(engine.pull(5) for _ in range(20))))) == 8
        assert all(await asyncio.gather(*(engine.pull(5, wait_seconds=5) for _ in range(20))))

    @in_virtual_time
    async def test_pull_disconnected_while_paced_gets_nothing(self) -> None:
        engine = await self.recovered_engine()
        assert len(await engine.pull(100)) == 8
        gone = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(engine.directive_pulls.pull("ocr", 100, 5, None, lambda: gone))
        await asyncio.sleep(0)
        gone.set_result(None)
        assert await waiting == []

    async def test_new_process_is_not_paced_without_an_outage(self) -> None:
        """Services ask for as much as they can do: only services that can't know of each other are held back."""
        engine = WatchedEngine()
        await engine.jobs_of("a", 50)
        assert len(await engine.pull(100)) == 50
