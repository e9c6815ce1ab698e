"""What workflows compute runs in the event loop, in turns of its own."""

import asyncio
import threading

import pytest

from lucius.engine.temporal.runner import InTheLoop


async def test_it_runs_here_and_leaves_the_loop_as_it_was() -> None:
    loop = asyncio.get_running_loop()

    def another_loop(of: str) -> tuple[str, int, bool]:
        in_a_task = asyncio.current_task() is not None
        asyncio._set_running_loop(None)  # as a workflow does when it is through
        return of, threading.get_ident(), in_a_task

    with InTheLoop(max_workers=1) as pool:
        assert await loop.run_in_executor(pool, another_loop, "j1") == ("j1", threading.get_ident(), False)
        assert asyncio.get_running_loop() is loop


async def test_what_goes_wrong_is_told_to_who_waits_for_it() -> None:
    loop = asyncio.get_running_loop()

    def fails() -> None:
        asyncio._set_running_loop(None)
        raise ArithmeticError("of a workflow")

    with InTheLoop(max_workers=1) as pool, pytest.raises(ArithmeticError, match="of a workflow"):
        await loop.run_in_executor(pool, fails)
    assert asyncio.get_running_loop() is loop
