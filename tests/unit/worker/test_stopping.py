"""What is said and what is left while a runtime stops, and directives that it would be hurt by."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lucius.contract import CallbackUrls
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.idempotency import NEW, Key, Standing
from tests.unit.worker.bench import Bench, Scripted, some_turns
from tests.unit.worker.stores import Flaky
from tests.unit.worker.support import until


async def test_what_begins_while_we_stop_has_the_grace_period_too(bench: Bench) -> None:
    """Told to stop just as the claim of what was pulled is answered."""
    store, gate = Flaky(), asyncio.Event()
    claim = store.claim

    async def slow_claim(keys: Sequence[Key], seconds: float) -> list[Standing]:
        if keys:  # else it is but asked whether it is there
            await gate.wait()
        return await claim(keys, seconds)

    store.claim = slow_claim  # type: ignore[method-assign]
    scripted = Scripted()
    runtime = bench.start(scripted, store=store)
    await bench.publish(1)
    await until(lambda: bench.bus.backlog("ocr") == 0)
    runtime.stop()
    await until(lambda: 10 in bench.timing.pauses)
    gate.set()
    await until(lambda: bool(scripted.started))
    await some_turns()
    assert scripted.stopped == 0
    scripted.gate.set()
    await bench.ended()
    assert (await bench.result())["status"] == "SUCCEEDED"


async def test_a_claim_that_is_never_answered_does_not_hold_up_the_end(bench: Bench) -> None:
    store, gate = Flaky(), asyncio.Event()
    scripted = Scripted()

    async def claim(keys: Sequence[Key], seconds: float) -> list[Standing]:
        if keys:
            await gate.wait()
        return [NEW] * len(keys)

    store.claim = claim  # type: ignore[method-assign]
    runtime = bench.start(scripted, store=store, grace=10)
    await bench.publish(1)
    await until(lambda: bench.bus.backlog("ocr") == 0)
    runtime.stop()
    await until(lambda: 10 in bench.timing.pauses)
    bench.timing.advance(10)
    async with asyncio.timeout(2):
        await bench.ended()
    gate.set()
    await some_turns()
    assert scripted.started == [], "an answer that comes too late begins nothing"
    assert (await bench.result())["error"]["code"] == "SERVICE_STOPPING"


async def test_an_attempt_that_does_not_heed_its_end_is_reported_without_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.worker.runtime.UNWIND_SECONDS", 0.05)
    service, gate, ended = Service("ocr"), asyncio.Event(), asyncio.Event()

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return StepResult("too late")

    runtime = bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(runtime.attempts) and bool(bench.orchestrator.of_type("ack")))
    runtime.stop()
    runtime.stop()
    await bench.ended()
    try:
        assert (await bench.result())["error"]["code"] == "SERVICE_STOPPING"
        await bench.sender.undelivered_below(1)
    finally:
        gate.set()
    await ended.wait()
    await some_turns()
    await bench.sender.undelivered_below(1)
    assert len(bench.results()) == 1, "what it says afterwards is not heard"


async def test_a_runtime_that_is_cancelled_leaves_no_task_behind(bench: Bench) -> None:
    before = asyncio.all_tasks()
    scripted = Scripted()
    bench.start(scripted)
    await bench.publish(1, 2)
    await until(lambda: len(scripted.started) == 2)
    assert bench.running is not None
    bench.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.ended()
    await some_turns()
    left = [task.get_coro() for task in asyncio.all_tasks() - before]
    assert [found for found in left if "lucius" in str(found)] == []
    assert {item["error"]["code"] for item in bench.results()} == {"SERVICE_STOPPING"}


async def test_told_to_stop_before_it_starts_it_pulls_nothing(bench: Bench) -> None:
    await bench.publish(1)
    runtime = bench.start(Scripted())
    runtime.stop()
    await bench.ended()
    assert bench.bus.backlog("ocr") == 1


# Directives that would hurt


@pytest.mark.parametrize(
    "changes",
    [
        {"callback_token": "a\r\nX: y"},
        {"callback_token": "ümlaut"},
        {"ack_deadline": "soon"},
        {"ack_deadline": ""},
        {"callback_urls": CallbackUrls(ack="http://x/a b", result="http://x/r", heartbeat="http://x/h")},
        {"callback_urls": CallbackUrls(ack="http://x/a", result="ftp://x/r", heartbeat="http://x/h")},
    ],
)
async def test_a_directive_that_can_not_be_answered_is_ignored_and_hurts_nobody(
    bench: Bench, changes: dict[str, Any]
) -> None:
    scripted = Scripted(lambda _: StepResult())
    runtime = bench.start(scripted)
    await bench.publish(1, **changes)
    await bench.publish(2)
    assert (await bench.result())["jobId"] == "job-2"
    assert len(scripted.started) == 1
    await until(lambda: not runtime.attempts)
