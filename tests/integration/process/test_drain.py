"""Shutdown: which requests are awaited, for how long, and that a second signal ends the waiting."""

import asyncio

from lucius.bootstrap.drain import DRAIN_SECONDS, Drain


def test_remaining_time_counts_from_the_first_start_of_the_clock() -> None:
    now = [50.0]
    drain = Drain(lambda: now[0])
    assert drain.left() == DRAIN_SECONDS
    drain.start_clock(4)
    now[0] += 3
    drain.start_clock(100)
    assert drain.left() == 1
    now[0] += 3
    assert drain.left() == 0


def test_second_stop_request_leaves_no_time() -> None:
    drain = Drain()
    drain.start_clock(30)
    drain.ask()
    assert (drain.asked.is_set(), drain.at_once.is_set()) == (True, False)
    assert drain.left() > 20
    drain.ask()
    assert (drain.at_once.is_set(), drain.left()) == (True, 0)


async def test_drain_waits_until_the_work_ends() -> None:
    drain, done = Drain(), asyncio.Event()
    waiting = asyncio.create_task(drain.unless_at_once(done.wait()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    done.set()
    await asyncio.wait_for(waiting, 5)


async def test_second_stop_request_ends_the_waiting_and_leaves_the_work_running() -> None:
    drain = Drain()
    work = asyncio.create_task(asyncio.sleep(60))
    waiting = asyncio.create_task(drain.unless_at_once(work))
    drain.ask()
    drain.ask()
    await asyncio.wait_for(waiting, 5)
    assert not work.done()
    await asyncio.wait_for(drain.pause(60), 5)
    work.cancel()
