"""A cancellation of the waiter that other code consumes affects neither the task nor its waiter."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lucius.engine.temporal.cancellation import UncancelledAwait


async def _finish(signal: asyncio.Event) -> str:
    await signal.wait()
    return "done"


async def _waiter(task: "asyncio.Task[str]", take: Callable[[], bool]) -> str:
    return await UncancelledAwait(task, take)


async def test_consumed_cancellation_affects_neither_task_nor_waiter() -> None:
    signal, taken = asyncio.Event(), [True]
    task = asyncio.create_task(_finish(signal))
    waiter = asyncio.create_task(_waiter(task, lambda: bool(taken.pop())))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    assert (task.done(), waiter.done(), taken) == (False, False, [])
    signal.set()
    assert await waiter == "done"


async def test_cancellation_that_arrives_with_the_result_is_consumed() -> None:
    signal, taken = asyncio.Event(), [True]
    task = asyncio.create_task(_finish(signal))
    task.add_done_callback(lambda _: waiter.cancel())  # runs before the waiter wakes
    waiter = asyncio.create_task(_waiter(task, lambda: bool(taken.pop())))
    await asyncio.sleep(0)
    signal.set()
    assert await waiter == "done"
    assert taken == []


async def test_unconsumed_cancellation_reaches_task_and_waiter() -> None:
    task = asyncio.create_task(_finish(asyncio.Event()))
    waiter = asyncio.create_task(_waiter(task, lambda: False))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert task.cancelled()


async def test_error_of_the_task_reaches_its_waiter() -> None:
    async def fail() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await UncancelledAwait(asyncio.create_task(fail()), lambda: True)


async def test_waiter_wakes_in_the_same_turn_as_with_a_plain_await() -> None:
    """Recorded histories depend on it."""

    async def turns(wrap: Callable[["asyncio.Task[str]"], Awaitable[str]]) -> int:
        signal, count = asyncio.Event(), 0
        task = asyncio.create_task(_finish(signal))

        async def wait() -> None:
            await wrap(task)

        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        signal.set()
        while not waiter.done():
            count += 1
            await asyncio.sleep(0)
        return count

    plain = await turns(lambda task: task)
    assert await turns(lambda task: UncancelledAwait(task, lambda: True)) == plain
    assert await turns(asyncio.shield) > plain, "this test can tell them apart"
