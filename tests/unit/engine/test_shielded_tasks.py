"""Tasks that continue when their caller is cancelled."""

import asyncio
import gc
from typing import Any

from lucius.usecases.handover.shielded_tasks import ShieldedTasks


async def test_shielded_task_finishes_after_its_caller_is_cancelled() -> None:
    shielded, go_on, done = ShieldedTasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.set()

    waiting = asyncio.create_task(shielded.run(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(shielded.tasks) == 1
    go_on.set()
    async with asyncio.timeout(5):
        await done.wait()
        await asyncio.sleep(0)
    assert not shielded.tasks


async def test_failure_of_an_abandoned_task_is_not_reported_by_asyncio() -> None:
    shielded, fail = ShieldedTasks(), asyncio.Event()
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))

    async def work() -> None:
        await fail.wait()
        raise RuntimeError("the ledger is away")

    waiting = asyncio.create_task(shielded.run(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    fail.set()
    while shielded.tasks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    del waiting
    gc.collect()
    assert unhandled == []
