"""A seed replays exactly, regardless of the hash seed and of earlier runs, and its clock is virtual."""

import asyncio
import os
import random
import subprocess
import sys
import time

import pytest

from tests.simulation.clock import LoopClock, OutOfSteps, Owner, VirtualLoop
from tests.simulation.world import run

SEEDS = range(7000, 7012)


def digests() -> str:
    return "".join(run(seed).digest for seed in SEEDS)


def test_same_seed_gives_the_same_digest() -> None:
    assert digests() == digests()


def test_different_seeds_give_different_digests() -> None:
    assert len({run(seed).digest for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_digest_depends_only_on_the_seed(hash_seed: str) -> None:
    code = "from tests.simulation.test_replay import digests; print(digests())"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digests()


def loop(*, shuffle: bool = False, max_steps: int = 10_000) -> VirtualLoop:
    return VirtualLoop(random.Random(1), shuffle=shuffle, max_steps=max_steps)


def test_virtual_hour_takes_no_real_time() -> None:
    virtual, started = loop(), time.monotonic()
    before = LoopClock(virtual).now()
    virtual.run_until_complete(asyncio.sleep(3600))
    assert LoopClock(virtual).now() - before == 3_600_000
    assert time.monotonic() - started < 5
    virtual.close()


def test_loop_without_timers_raises_out_of_steps() -> None:
    virtual = loop()
    with pytest.raises(OutOfSteps, match="nothing is left"):
        virtual.run_until_complete(virtual.create_future())
    virtual.drain()
    virtual.close()


def test_endless_loop_without_progress_raises_out_of_steps() -> None:
    def spin() -> None:
        virtual.call_soon(spin)

    virtual = loop(max_steps=50)
    spin()
    with pytest.raises(OutOfSteps, match="more than 50"):
        virtual.run_until_complete(asyncio.sleep(1))
    virtual.drain()
    virtual.close()


def test_frozen_process_runs_no_tasks_until_thawed() -> None:
    virtual, owner, ticks = loop(shuffle=True), Owner(), []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(virtual.time())

    async def world() -> None:
        virtual.create_task(tick(), context=owner.context())
        await asyncio.sleep(2.5)
        owner.frozen = True
        await asyncio.sleep(5)
        virtual.thaw(owner)
        await asyncio.sleep(1.5)

    virtual.run_until_complete(world())
    virtual.drain()
    virtual.close()
    assert ticks == [1, 2, 7.5, 8.5]
