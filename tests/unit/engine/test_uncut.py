"""What goes on when whoever began it is cut off."""

import asyncio
import gc
from typing import Any

from lucius.service.uncut import Uncut


async def test_it_ends_although_nobody_waits_for_it_any_more() -> None:
    uncut, go_on, done = Uncut(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.set()

    waiting = asyncio.create_task(uncut.run(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(uncut.tasks) == 1
    go_on.set()
    async with asyncio.timeout(5):
        await done.wait()
        await asyncio.sleep(0)
    assert not uncut.tasks


async def test_a_failure_that_nobody_waits_for_is_no_news_for_the_log() -> None:
    uncut, fail = Uncut(), asyncio.Event()
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))

    async def work() -> None:
        await fail.wait()
        raise RuntimeError("the ledger is away")

    waiting = asyncio.create_task(uncut.run(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    fail.set()
    while uncut.tasks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    del waiting
    gc.collect()
    assert unheard == []
