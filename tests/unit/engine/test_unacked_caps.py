"""Caps on un-ACKed directives: tenants share the room, and a service at its cap is not retried in a loop."""

import asyncio
from collections import Counter

from tests.simulation.clock import in_virtual_time
from tests.support.watched_engine import WatchedEngine, count_by_tenant


class TestUnackedCap:
    async def test_long_backlog_under_a_small_cap_does_not_starve_another_tenant(self) -> None:
        engine = WatchedEngine(max_unacked=10)
        await engine.jobs_of("a", 5_000)
        out = await engine.pull(10)
        assert count_by_tenant(out) == {"a": 10}
        await engine.jobs_of("b", 1)
        acks = 0
        while "b" not in count_by_tenant(out):
            await engine.ack(out[:1])
            acks += 1
            out = [*out[1:], *await engine.pull(10)]
        assert acks <= 2

    async def test_tenants_share_the_capacity_of_a_service_evenly(self) -> None:
        engine = WatchedEngine(max_unacked=10)
        for tenant_id, n in (("a", 200), ("b", 30), ("c", 30)):
            await engine.jobs_of(tenant_id, n)
        seen: Counter[str] = Counter()
        for _ in range(6):
            out = await engine.pull(100)
            seen += count_by_tenant(out)
            await engine.ack(out)
        assert seen.total() == 60
        assert max(seen.values()) - min(seen.values()) <= 3  # the first refusals came after these rows were taken

    async def test_service_at_its_cap_is_not_retried_in_a_loop(self) -> None:
        engine = WatchedEngine(max_unacked=4)
        await engine.jobs_of("a", 50)
        out = await engine.pull(20)
        assert len(out) == 4
        assert engine.refused == 16  # the refusals are how the caps are learnt of the cap
        for _ in range(5):
            assert await engine.pull(20) == []
        await engine.ack(out[:1])
        assert len(await engine.pull(20)) == 1
        assert engine.refused == 16

    @in_virtual_time
    async def test_waiting_pulls_do_not_compete_for_the_same_free_slots(self) -> None:
        engine = WatchedEngine(max_unacked=4)
        await engine.jobs_of("a", 50)
        out = await engine.pull(20)
        learned = engine.refused
        waiting = [asyncio.create_task(engine.pull(20, wait_seconds=0.2)) for _ in range(8)]
        await asyncio.sleep(0.05)
        await engine.ack(out[:2])
        assert sum(map(len, await asyncio.gather(*waiting))) == 2
        assert engine.refused == learned

    @in_virtual_time
    async def test_a_pull_that_waits_at_the_cap_is_answered_after_an_ack(self) -> None:
        engine = WatchedEngine(max_unacked=2)
        await engine.jobs_of("a", 5)
        out = await engine.pull(5)
        for _ in range(3):
            waiting = asyncio.create_task(engine.pull(5, wait_seconds=5))
            await asyncio.sleep(0.02)
            await engine.ack(out[:1])
            async with asyncio.timeout(2):
                out = [*out[1:], *await waiting]
        assert len(out) == 2
