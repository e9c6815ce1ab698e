"""Who has a task open hears what is said meanwhile, and waits no longer than that is worth."""

import asyncio

import pytest

from lucius.core.inputs import Ack, Succeeded
from lucius.engine.temporal.ahead import MOST_BYTES, MOST_OPEN, MOST_SECONDS, MOST_SIGNALS, MOST_SKIPPED, Ahead
from lucius.engine.temporal.wire import Happened, pack
from tests.simulation.clock import in_virtual_time

SOON, LONG = 0.02, 10.0


def said(name: str) -> Happened:
    return pack(Ack(step_id="ocr", attempt_no=1, lease_id="lease"), name)


async def waits(ahead: Ahead, service: str = "ocr") -> bool:
    """If nothing is said."""
    ahead.open("j1")
    began = asyncio.get_running_loop().time()
    assert await ahead.listen("j1", [service]) == []
    return asyncio.get_running_loop().time() > began


@in_virtual_time
async def test_what_is_said_ends_the_wait() -> None:
    ahead = Ahead(LONG)
    ahead.open("j1")
    listening = asyncio.create_task(ahead.listen("j1", ["ocr"]))
    await asyncio.sleep(0)
    ahead.told("j2", [said("of another job")])
    await asyncio.sleep(0)
    assert not listening.done()
    ahead.told("j1", [said("a"), said("b")])
    assert await listening == [said("a"), said("b")]


@in_virtual_time
async def test_what_was_said_since_the_last_time_is_heard_at_once() -> None:
    ahead = Ahead(LONG)
    ahead.open("j1")
    ahead.told("j1", [said("a")])
    ahead.open("j1")
    ahead.told("j1", [said("b")])
    assert await ahead.listen("j1", ["ocr"]) == [said("a"), said("b")]
    ahead.told("j1", [said("c")])
    assert await ahead.listen("j1", ["ocr"]) == [said("c")]


@in_virtual_time
async def test_nothing_is_kept_for_a_task_that_is_not_open() -> None:
    ahead = Ahead(SOON)
    ahead.told("j1", [said("a")])
    assert await waits(ahead)
    ahead.told("j1", [said("b")])  # nothing was heard, so the task ends
    ahead.open("j1")
    ahead.close("j1")
    ahead.told("j1", [said("c")])
    assert await ahead.listen("j1", ["ocr"]) == []


@in_virtual_time
async def test_what_it_has_read_is_no_news_to_a_task() -> None:
    ahead = Ahead(LONG)
    ahead.open("j1", letters=["a"])
    ahead.open("j1", letters=["b"])
    listening = asyncio.create_task(ahead.listen("j1", ["ocr"]))
    await asyncio.sleep(0)
    ahead.told("j1", [said("a")])
    await asyncio.sleep(0)
    assert not listening.done()
    ahead.told("j1", [said("b"), said("c")])
    assert await listening == [said("c")]


@in_virtual_time
async def test_what_was_said_to_one_run_is_nothing_for_the_next() -> None:
    ahead = Ahead(SOON)
    ahead.open("j1", "first")
    ahead.told("j1", [said("a")])
    ahead.open("j1", "second")
    assert await ahead.listen("j1", ["ocr"]) == []


@in_virtual_time
async def test_somebody_else_who_waits_for_the_task_ends_the_wait() -> None:
    ahead = Ahead(LONG)
    ahead.open("j1")
    listening = asyncio.create_task(ahead.listen("j1", ["ocr"]))
    await asyncio.sleep(0)
    ahead.told("j1", ())
    assert await listening == []
    assert asyncio.get_running_loop().time() == 0, "nobody waited"


@in_virtual_time
async def test_a_slow_service_is_waited_for_ever_more_rarely() -> None:
    ahead = Ahead(SOON)
    waited = [await waits(ahead) for _ in range(12)]
    assert waited == [n in (0, 2, 6) for n in range(12)]


@in_virtual_time
async def test_a_slow_service_is_given_another_chance_now_and_then_and_others_are_waited_for() -> None:
    ahead = Ahead(SOON)
    for _ in range(3 * MOST_SKIPPED):
        await waits(ahead)
    waited = [await waits(ahead) for _ in range(2 * (MOST_SKIPPED + 1))]
    assert sum(waited) == 2
    assert await waits(ahead, "sis")


@in_virtual_time
async def test_a_service_that_has_become_quick_is_waited_for() -> None:
    ahead = Ahead(SOON)
    for _ in range(5):
        await waits(ahead)
    ahead.open("j1")
    ahead.told("j1", [said("a")])
    assert await ahead.listen("j1", ["ocr"]) == [said("a")]
    assert await waits(ahead)


@in_virtual_time
async def test_tasks_that_were_lost_are_forgotten_in_time() -> None:
    ahead = Ahead(SOON)
    for n in range(MOST_OPEN + 1):
        ahead.open(f"j{n}")
    ahead.told("j0", [said("a")])
    ahead.told("j1", [said("b")])
    assert await ahead.listen("j0", []) == []
    assert await ahead.listen("j1", []) == [said("b")]


@in_virtual_time
async def test_a_task_for_which_too_much_waits_is_to_end() -> None:
    ahead = Ahead(LONG)
    ahead.open("j1")
    for n in range(MOST_SIGNALS):
        ahead.told("j1", [said(f"a{n}")])
        assert await ahead.listen("j1", ["ocr"]) == [said(f"a{n}")]
    ahead.open("j1")
    ahead.told("j1", [said("one too many")])
    assert await ahead.listen("j1", ["ocr"]) == []
    ahead.open("j1")  # by the next task
    ahead.told("j1", [said("b")])
    assert await ahead.listen("j1", ["ocr"]) == [said("b")]


@in_virtual_time
async def test_what_is_large_is_left_to_its_signal() -> None:
    ahead = Ahead(LONG)
    large = pack(Succeeded(step_id="ocr", attempt_no=1, lease_id="lease", result={"text": "x" * MOST_BYTES}), "large")
    ahead.open("j1")
    ahead.told("j1", [said("a")])
    ahead.told("j1", [large])
    ahead.told("j1", [said("b")])
    assert await ahead.listen("j1", ["ocr"]) == [said("a")]
    ahead.open("j1")
    ahead.told("j1", [said("c")])
    assert await ahead.listen("j1", ["ocr"]) == []


@in_virtual_time
async def test_an_answer_that_is_on_its_way_to_temporal_is_waited_for() -> None:
    ahead, time = Ahead(SOON), asyncio.get_running_loop().time
    ahead.open("j1")
    listening = asyncio.create_task(ahead.listen("j1", ["ocr"]))
    with ahead.telling("j1"):
        await asyncio.sleep(MOST_SECONDS / 2)
        ahead.told("j1", [said("a")])
    assert await listening == [said("a")]
    assert time() == MOST_SECONDS / 2


@in_virtual_time
async def test_but_not_for_ever_nor_if_it_never_got_there() -> None:
    ahead, time = Ahead(SOON), asyncio.get_running_loop().time
    ahead.open("j1")
    listening = asyncio.create_task(ahead.listen("j1", ["ocr"]))
    with ahead.telling("j1"):
        assert await listening == []
    assert time() == MOST_SECONDS
    ahead.open("j1")
    listening = asyncio.create_task(ahead.listen("j1", ["sis"]))
    with pytest.raises(TimeoutError), ahead.telling("j1"):
        await asyncio.wait_for(asyncio.Event().wait(), SOON * 2)
    assert await listening == []
    assert time() == MOST_SECONDS + SOON * 2
