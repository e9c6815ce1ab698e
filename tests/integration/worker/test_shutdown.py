"""Reports and leftovers of a stopping runtime, and directives that would harm it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lucius.contract import CallbackUrls
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.idempotency import NEW, AttemptKey, ClaimOutcome
from tests.integration.worker.bench import Bench, Scripted, some_turns
from tests.integration.worker.stores import FlakyStore
from tests.integration.worker.support import until


async def test_attempt_that_begins_during_a_stop_has_the_grace_period(bench: Bench) -> None:
    """The stop comes just as the claim of the pulled message is answered."""
    store, gate = FlakyStore(), asyncio.Event()
    claim = store.claim

    async def slow_claim(keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
        if keys:  # an empty claim only checks that the store is up
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


async def test_unanswered_claim_does_not_delay_the_stop(bench: Bench) -> None:
    store, gate = FlakyStore(), asyncio.Event()
    scripted = Scripted()

    async def claim(keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
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


async def test_attempt_that_ignores_cancellation_is_reported_and_its_later_result_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.worker.runtime.CANCEL_TIMEOUT_SECONDS", 0.05)
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
        await bench.sender.wait_until_below(1)
    finally:
        gate.set()
    await ended.wait()
    await some_turns()
    await bench.sender.wait_until_below(1)
    assert len(bench.results()) == 1, "what it says afterwards is not heard"


async def test_cancelled_runtime_leaves_no_task_behind(bench: Bench) -> None:
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


async def test_runtime_stopped_before_it_starts_pulls_nothing(bench: Bench) -> None:
    await bench.publish(1)
    runtime = bench.start(Scripted())
    runtime.stop()
    await bench.ended()
    assert bench.bus.backlog("ocr") == 1


# Harmful directives


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
async def test_unanswerable_directive_is_ignored(bench: Bench, changes: dict[str, Any]) -> None:
    scripted = Scripted(lambda _: StepResult())
    runtime = bench.start(scripted)
    await bench.publish(1, **changes)
    await bench.publish(2)
    assert (await bench.result())["jobId"] == "job-2"
    assert len(scripted.started) == 1
    await until(lambda: not runtime.attempts)
