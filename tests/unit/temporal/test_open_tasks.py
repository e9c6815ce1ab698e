"""Open tasks receive messages that arrive meanwhile, and wait no longer than is worthwhile."""

import asyncio

import pytest

from lucius.core.model.inputs import Ack, Succeeded
from lucius.engine.temporal.fastpath.open_tasks import (
    MAX_OPEN_TASKS,
    MAX_PENDING_BYTES,
    MAX_PENDING_SIGNALS,
    MAX_SKIPPED_WAITS,
    MAX_TASK_SECONDS,
    OpenTasks,
)
from lucius.engine.temporal.messages import JobMessage, encode_input
from tests.simulation.clock import in_virtual_time

SOON, LONG = 0.02, 10.0


def callback(name: str) -> JobMessage:
    return encode_input(Ack(step_id="ocr", attempt_no=1, lease_id="lease"), name)


async def waits(open_tasks: OpenTasks, service: str = "ocr") -> bool:
    """Return True if an open task waits while no message arrives."""
    open_tasks.open("j1")
    began = asyncio.get_running_loop().time()
    assert await open_tasks.wait_for_messages("j1", [service]) == []
    return asyncio.get_running_loop().time() > began


@in_virtual_time
async def test_message_ends_the_wait() -> None:
    open_tasks = OpenTasks(LONG)
    open_tasks.open("j1")
    listening = asyncio.create_task(open_tasks.wait_for_messages("j1", ["ocr"]))
    await asyncio.sleep(0)
    open_tasks.add_messages("j2", [callback("of another job")])
    await asyncio.sleep(0)
    assert not listening.done()
    open_tasks.add_messages("j1", [callback("a"), callback("b")])
    assert await listening == [callback("a"), callback("b")]


@in_virtual_time
async def test_messages_since_the_last_wait_are_returned_at_once() -> None:
    open_tasks = OpenTasks(LONG)
    open_tasks.open("j1")
    open_tasks.add_messages("j1", [callback("a")])
    open_tasks.open("j1")
    open_tasks.add_messages("j1", [callback("b")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == [callback("a"), callback("b")]
    open_tasks.add_messages("j1", [callback("c")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == [callback("c")]


@in_virtual_time
async def test_closed_task_keeps_no_messages() -> None:
    open_tasks = OpenTasks(SOON)
    open_tasks.add_messages("j1", [callback("a")])
    assert await waits(open_tasks)
    open_tasks.add_messages("j1", [callback("b")])  # nothing was received, so the task ends
    open_tasks.open("j1")
    open_tasks.close("j1")
    open_tasks.add_messages("j1", [callback("c")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == []


@in_virtual_time
async def test_known_messages_do_not_end_the_wait() -> None:
    open_tasks = OpenTasks(LONG)
    open_tasks.open("j1", message_ids=["a"])
    open_tasks.open("j1", message_ids=["b"])
    listening = asyncio.create_task(open_tasks.wait_for_messages("j1", ["ocr"]))
    await asyncio.sleep(0)
    open_tasks.add_messages("j1", [callback("a")])
    await asyncio.sleep(0)
    assert not listening.done()
    open_tasks.add_messages("j1", [callback("b"), callback("c")])
    assert await listening == [callback("c")]


@in_virtual_time
async def test_messages_of_one_run_are_not_returned_to_the_next() -> None:
    open_tasks = OpenTasks(SOON)
    open_tasks.open("j1", "first")
    open_tasks.add_messages("j1", [callback("a")])
    open_tasks.open("j1", "second")
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == []


@in_virtual_time
async def test_wake_ends_the_wait() -> None:
    open_tasks = OpenTasks(LONG)
    open_tasks.open("j1")
    listening = asyncio.create_task(open_tasks.wait_for_messages("j1", ["ocr"]))
    await asyncio.sleep(0)
    open_tasks.wake("j1")
    assert await listening == []
    assert asyncio.get_running_loop().time() == 0, "the task did not wait"


@in_virtual_time
async def test_waits_for_a_slow_service_become_rarer() -> None:
    open_tasks = OpenTasks(SOON)
    waited = [await waits(open_tasks) for _ in range(12)]
    assert waited == [n in (0, 2, 6) for n in range(12)]


@in_virtual_time
async def test_slow_service_is_tried_again_and_does_not_affect_others() -> None:
    open_tasks = OpenTasks(SOON)
    for _ in range(3 * MAX_SKIPPED_WAITS):
        await waits(open_tasks)
    waited = [await waits(open_tasks) for _ in range(2 * (MAX_SKIPPED_WAITS + 1))]
    assert sum(waited) == 2
    assert await waits(open_tasks, "sis")


@in_virtual_time
async def test_service_that_became_quick_is_waited_for() -> None:
    open_tasks = OpenTasks(SOON)
    for _ in range(5):
        await waits(open_tasks)
    open_tasks.open("j1")
    open_tasks.add_messages("j1", [callback("a")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == [callback("a")]
    assert await waits(open_tasks)


@in_virtual_time
async def test_lost_tasks_are_evicted() -> None:
    open_tasks = OpenTasks(SOON)
    for n in range(MAX_OPEN_TASKS + 1):
        open_tasks.open(f"j{n}")
    open_tasks.add_messages("j0", [callback("a")])
    open_tasks.add_messages("j1", [callback("b")])
    assert await open_tasks.wait_for_messages("j0", []) == []
    assert await open_tasks.wait_for_messages("j1", []) == [callback("b")]


@in_virtual_time
async def test_task_with_too_many_pending_signals_ends() -> None:
    open_tasks = OpenTasks(LONG)
    open_tasks.open("j1")
    for n in range(MAX_PENDING_SIGNALS):
        open_tasks.add_messages("j1", [callback(f"a{n}")])
        assert await open_tasks.wait_for_messages("j1", ["ocr"]) == [callback(f"a{n}")]
    open_tasks.open("j1")
    open_tasks.add_messages("j1", [callback("above the limit")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == []
    open_tasks.open("j1")  # by the next task
    open_tasks.add_messages("j1", [callback("b")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == [callback("b")]


@in_virtual_time
async def test_large_message_is_left_to_its_signal() -> None:
    open_tasks = OpenTasks(LONG)
    large = encode_input(
        Succeeded(step_id="ocr", attempt_no=1, lease_id="lease", result={"text": "x" * MAX_PENDING_BYTES}), "large"
    )
    open_tasks.open("j1")
    open_tasks.add_messages("j1", [callback("a")])
    open_tasks.add_messages("j1", [large])
    open_tasks.add_messages("j1", [callback("b")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == [callback("a")]
    open_tasks.open("j1")
    open_tasks.add_messages("j1", [callback("c")])
    assert await open_tasks.wait_for_messages("j1", ["ocr"]) == []


@in_virtual_time
async def test_task_waits_for_a_callback_in_flight() -> None:
    open_tasks, time = OpenTasks(SOON), asyncio.get_running_loop().time
    open_tasks.open("j1")
    listening = asyncio.create_task(open_tasks.wait_for_messages("j1", ["ocr"]))
    with open_tasks.callback_in_flight("j1"):
        await asyncio.sleep(MAX_TASK_SECONDS / 2)
        open_tasks.add_messages("j1", [callback("a")])
    assert await listening == [callback("a")]
    assert time() == MAX_TASK_SECONDS / 2


@in_virtual_time
async def test_task_waits_for_a_callback_in_flight_only_until_its_limit_or_failure() -> None:
    open_tasks, time = OpenTasks(SOON), asyncio.get_running_loop().time
    open_tasks.open("j1")
    listening = asyncio.create_task(open_tasks.wait_for_messages("j1", ["ocr"]))
    with open_tasks.callback_in_flight("j1"):
        assert await listening == []
    assert time() == MAX_TASK_SECONDS
    open_tasks.open("j1")
    listening = asyncio.create_task(open_tasks.wait_for_messages("j1", ["sis"]))
    with pytest.raises(TimeoutError), open_tasks.callback_in_flight("j1"):
        await asyncio.wait_for(asyncio.Event().wait(), SOON * 2)
    assert await listening == []
    assert time() == MAX_TASK_SECONDS + SOON * 2
