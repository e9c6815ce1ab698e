"""Workflow computations run in the event loop, in separate turns."""

import asyncio
import threading

import pytest

from lucius.engine.temporal.runner import EventLoopExecutor


async def test_computation_runs_in_the_loop_thread_and_restores_the_running_loop() -> None:
    loop = asyncio.get_running_loop()

    def another_loop(of: str) -> tuple[str, int, bool]:
        in_a_task = asyncio.current_task() is not None
        asyncio._set_running_loop(None)  # as a workflow does when it ends
        return of, threading.get_ident(), in_a_task

    with EventLoopExecutor(max_workers=1) as pool:
        assert await loop.run_in_executor(pool, another_loop, "j1") == ("j1", threading.get_ident(), False)
        assert asyncio.get_running_loop() is loop


async def test_exception_of_a_computation_reaches_its_waiter() -> None:
    loop = asyncio.get_running_loop()

    def fails() -> None:
        asyncio._set_running_loop(None)
        raise ArithmeticError("of a workflow")

    with EventLoopExecutor(max_workers=1) as pool, pytest.raises(ArithmeticError, match="of a workflow"):
        await loop.run_in_executor(pool, fails)
    assert asyncio.get_running_loop() is loop
