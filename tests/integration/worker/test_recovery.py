"""Data that must survive: results of dead processes, and directives while a store is down."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.contract import Directive
from lucius.worker import Service, StepContext, StepResult, results
from lucius.worker.idempotency import NEW, AttemptKey, StoreDown, attempt_key
from lucius.worker.journal import Journal
from lucius.worker.runtime import CLAIM_TTL_SECONDS, Runtime
from tests.integration.worker.bench import Bench, Scripted, some_turns
from tests.integration.worker.stores import FlakyStore
from tests.integration.worker.support import directive, until

RESULT = b'{"jobId":"job-1","status":"SUCCEEDED","result":{"n":1}}'


def leave_orphan(folder: Path, work: Directive, result: bytes | None = None) -> None:
    journal = Journal(folder)
    journal.begin([work])
    if result is not None:
        journal.finish(work, result)
    journal.close()


def orphans_in(folder: Path) -> list[AttemptKey]:
    """Return the attempts that the next process would find if this one were dead."""
    journal = Journal(folder)
    try:
        return [attempt_key(left.directive) for left in journal.adopt_orphans()]
    finally:
        journal.close()


async def stop(bench: Bench, runtime: Any) -> None:
    runtime.stop()
    await bench.ended()
    await bench.sender.wait_until_below(1)


# Left by dead processes


async def test_orphaned_result_is_sent_once(bench: Bench, tmp_path: Path) -> None:
    leave_orphan(tmp_path, directive(bench.orchestrator.url), RESULT)
    for _ in range(2):
        journal = Journal(tmp_path)
        runtime = bench.start(Scripted(), journal=journal)
        await until(lambda runtime=runtime: runtime.is_ready or bool(bench.results()))  # type: ignore[misc]
        await bench.sender.wait_until_below(1)
        await stop(bench, runtime)
        journal.close()
    assert [item["result"] for item in bench.results()] == [{"n": 1}]
    assert orphans_in(tmp_path) == []


@pytest.mark.parametrize(
    ("safety", "failure_class", "code"),
    [
        ("SAFE_TO_RETRY", "TRANSIENT", "SERVICE_RESTARTED"),
        ("SAFE_TO_RETRY_WITH_GUARD", "TRANSIENT", "SERVICE_RESTARTED"),
        ("NOT_SAFE_TO_RETRY", "NON_RETRYABLE", "INTERRUPTED"),
    ],
)
async def test_interrupted_attempt_is_reported_as_failed(
    bench: Bench, tmp_path: Path, safety: str, failure_class: str, code: str
) -> None:
    leave_orphan(tmp_path, directive(bench.orchestrator.url, retry_safety=safety))
    scripted = Scripted()
    bench.start(scripted, journal=Journal(tmp_path))
    result = await bench.result()
    assert (result["status"], result["failure_class"], result["error"]["code"]) == ("FAILED", failure_class, code)
    await bench.publish(1, retry_safety=safety)
    await until(lambda: len(bench.results()) == 2)
    assert bench.results()[0] == bench.results()[1]
    assert scripted.started == []


async def test_redelivered_directive_is_not_begun_while_its_result_is_being_sent(bench: Bench, tmp_path: Path) -> None:
    port = bench.orchestrator.port
    await bench.orchestrator.stop()
    leave_orphan(tmp_path, directive(bench.orchestrator.url), RESULT)
    scripted = Scripted()
    bench.start(scripted, journal=Journal(tmp_path))
    await until(lambda: bool(bench.waits()))
    await bench.publish(1)
    await until(lambda: bench.bus.backlog("ocr") == 0)
    await some_turns()
    assert (scripted.started, bench.sender.undelivered) == ([], 1)
    await bench.orchestrator.start(port)
    while not bench.results():
        bench.timing.advance(1)
        await asyncio.sleep(0)
    assert bench.results()[0]["result"] == {"n": 1}


async def test_attempt_of_a_process_that_dies_later_is_adopted_in_time(bench: Bench, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    bench.start(Scripted(), journal=journal)
    beside = Journal(tmp_path)
    beside.begin([directive(bench.orchestrator.url, 7)])
    bench.timing.advance(CLAIM_TTL_SECONDS)
    await some_turns()
    assert bench.results() == [], "it lives"
    beside.close()
    await until(lambda: CLAIM_TTL_SECONDS / 3 in bench.timing.waits)
    bench.timing.advance(CLAIM_TTL_SECONDS)
    assert (await bench.result())["error"]["code"] == "SERVICE_RESTARTED"


async def test_unreadable_journal_is_read_later(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_orphan(tmp_path, directive(bench.orchestrator.url), RESULT)
    journal = Journal(tmp_path)
    real, failing = journal.adopt_orphans, [True]

    def adopt_orphans() -> Any:
        if failing:
            raise StoreDown("locked")
        return real()

    monkeypatch.setattr(journal, "adopt_orphans", adopt_orphans)
    runtime = bench.start(Scripted(lambda _: StepResult()), journal=journal)
    await bench.publish(2)
    await bench.result()
    assert runtime.is_ready
    failing.clear()
    bench.timing.advance(CLAIM_TTL_SECONDS)
    await until(lambda: len(bench.results()) == 2)
    assert bench.results()[1]["result"] == {"n": 1}


async def test_attempt_cancelled_with_its_loop_is_left_to_the_next_process(bench: Bench, tmp_path: Path) -> None:
    """As when the process is ended in a hurry: nothing may be lost silently."""
    journal = Journal(tmp_path)
    scripted = Scripted()
    bench.start(scripted, journal=journal)
    await bench.publish(1)
    await until(lambda: bool(scripted.started))
    await bench.orchestrator.stop()
    assert bench.running is not None
    bench.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.ended()
    journal.close()
    assert [key.jobId for key in orphans_in(tmp_path)] == ["job-1"]


# While a store is down


@pytest.mark.parametrize("away", ["claim", "begin"])
async def test_service_pulls_nothing_before_its_stores_are_available(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    store, journal = FlakyStore(), Journal(None)
    begin = journal.begin
    store.away.add(away)

    def begin_if_there(directives: Sequence[Directive]) -> None:
        store.check("begin")
        begin(directives)

    monkeypatch.setattr(journal, "begin", begin_if_there)
    scripted = Scripted(lambda _: StepResult())
    runtime = bench.start(scripted, store=store, journal=journal, concurrency=2)
    await bench.publish(1, 2, 3)
    for pause in (0.25, 0.5, 1, 2, 4, 5, 5, 5):
        await until(lambda pause=pause: bench.waits() == [pause])  # type: ignore[misc]
        assert (runtime.is_ready, bench.bus.backlog("ocr")) == (False, 3)
        bench.timing.advance(pause)
    store.away.clear()
    await until(lambda: len(bench.results()) == 3)
    assert runtime.is_ready
    assert len(scripted.started) == 3


async def runtime_with_failing_store(bench: Bench, scripted: Scripted, store: FlakyStore) -> Runtime:
    """Start a runtime whose store goes down while it waits for work."""
    runtime = bench.start(scripted, store=store, concurrency=2)
    await until(lambda: runtime.is_ready)
    await some_turns()
    store.away.add("claim")
    return runtime


async def test_pulled_directives_wait_for_a_store_outage_and_no_more_are_pulled(bench: Bench) -> None:
    store, scripted = FlakyStore(), Scripted(lambda _: StepResult())
    runtime = await runtime_with_failing_store(bench, scripted, store)
    await bench.publish(1, 2, 3)
    for pause in (0.25, 0.5, 1, 2, 4, 5, 5, 5):
        await until(lambda pause=pause: bench.waits() == [pause])  # type: ignore[misc]
        assert (runtime.is_ready, bench.bus.backlog("ocr"), len(bench.results())) == (False, 1, 0)
        bench.timing.advance(pause)
    store.away.clear()
    await until(lambda: len(bench.results()) == 3)
    assert runtime.is_ready
    assert len(scripted.started) == 3


@pytest.mark.parametrize(("safety", "told"), [("SAFE_TO_RETRY", ["SERVICE_STOPPING"]), ("NOT_SAFE_TO_RETRY", [])])
async def test_stopping_during_a_store_outage_is_immediate_and_reports_safe_steps_as_not_begun(
    bench: Bench, safety: str, told: list[str]
) -> None:
    """Except for a step that is unsafe to retry: another process may work on it, and only the store would know."""
    store, scripted = FlakyStore(), Scripted()
    runtime = await runtime_with_failing_store(bench, scripted, store)
    await bench.publish(1, retry_safety=safety)
    await until(lambda: bench.waits() == [0.25])
    with capture_logs() as lines:
        await stop(bench, runtime)
    await bench.sender.wait_until_below(1)
    assert (scripted.started, bench.orchestrator.of_type("ack")) == ([], [])
    assert [item["error"]["code"] for item in bench.results()] == told
    assert any("directives not begun" in line["event"] for line in lines)


async def test_result_is_sent_during_a_store_outage_and_the_step_is_not_repeated(bench: Bench, tmp_path: Path) -> None:
    store = FlakyStore()
    store.away |= {"finish", "forgets"}
    journal = Journal(tmp_path)
    scripted = Scripted(lambda _: StepResult({"n": 1}))
    runtime = bench.start(scripted, store=store, journal=journal)
    await bench.publish(1)
    await bench.result()
    await bench.sender.wait_until_below(1)
    await bench.publish(1)
    await until(lambda: len(bench.results()) == 2)
    assert bench.results()[0] == bench.results()[1]
    assert len(scripted.started) == 1
    await bench.sender.wait_until_below(1)
    journal.flush()  # as it would a moment later
    assert journal.file.rows("SELECT 1 FROM attempts WHERE owner IS NOT NULL"), "the only one who knows keeps it"
    store.away = {"forgets"}
    await until(lambda: CLAIM_TTL_SECONDS / 3 in bench.timing.waits)
    bench.timing.advance(CLAIM_TTL_SECONDS / 3)
    await until(lambda: store.asked.count("finish") == 2)
    await some_turns()
    journal.flush()
    assert not journal.file.rows("SELECT 1 FROM attempts WHERE owner IS NOT NULL")
    assert runtime.is_ready


async def test_number_of_results_kept_for_the_store_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "MAX_UNSTORED_RESULTS", 3)
    store = FlakyStore()
    store.away.add("finish")
    journal = Journal(tmp_path)
    runtime = bench.start(Scripted(lambda _: StepResult()), store=store, journal=journal)
    await bench.publish(*range(8))
    await until(lambda: len(bench.results()) == 8 and not runtime.attempts)
    await bench.sender.wait_until_below(1)
    journal.flush()
    assert len(journal.file.rows("SELECT 1 FROM attempts WHERE owner IS NOT NULL")) == 3


async def test_claims_of_running_attempts_are_renewed_and_a_fenced_one_is_released(bench: Bench) -> None:
    store = FlakyStore()
    scripted = Scripted()
    runtime = bench.start(scripted, store=store)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    store.away |= {"renew", "release"}
    bench.timing.advance(CLAIM_TTL_SECONDS / 3)
    await until(lambda: "renew" in store.asked)
    store.away.clear()
    await until(lambda: CLAIM_TTL_SECONDS / 3 in bench.timing.waits)
    bench.timing.advance(CLAIM_TTL_SECONDS / 3)
    await until(lambda: store.asked.count("renew") == 2)
    bench.orchestrator.answer = lambda _: {"status": 409}
    bench.timing.advance(300)
    await until(lambda: not runtime.attempts)
    assert store.asked[-1] == "release"
    assert await store.inner.claim([attempt_key(directive())], 1) == [NEW]


@pytest.mark.parametrize("times", [1, 3])
async def test_full_journal_delays_directives(bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    journal = Journal(None)
    begin, failures = journal.begin, [StoreDown("no space left")] * times

    def begin_later(directives: Sequence[Directive]) -> None:
        if failures:
            raise failures.pop()
        begin(directives)

    monkeypatch.setattr(journal, "begin", begin_later)
    scripted = Scripted(lambda _: StepResult())
    runtime = bench.start(scripted, journal=journal)
    await bench.publish(1)
    for pause in (0.25, 0.5, 1)[:times]:
        await until(lambda pause=pause: bench.waits() == [pause])  # type: ignore[misc]
        assert (runtime.is_ready, scripted.started, bench.orchestrator.callbacks) == (False, [], [])
        bench.timing.advance(pause)
    await bench.result()
    assert len(scripted.started) == 1
    await until(lambda: runtime.is_ready)


async def test_full_journal_loses_no_result(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(None)

    def finish(work: Directive, result: bytes) -> None:
        raise StoreDown("no space left")

    monkeypatch.setattr(journal, "finish", finish)
    with capture_logs() as lines:
        bench.start(Scripted(lambda _: StepResult({"n": 1})), journal=journal)
        await bench.publish(1)
        assert (await bench.result())["result"] == {"n": 1}
    assert any("not journaled" in line["event"] for line in lines)


async def test_unexpected_store_error_costs_neither_the_result_nor_a_slot(bench: Bench) -> None:
    store = FlakyStore()

    async def finish(key: AttemptKey, result: bytes) -> bytes:
        if key.jobId == "job-1":
            raise RuntimeError("a client library's")
        return result

    store.finish = finish  # type: ignore[method-assign]
    with capture_logs() as lines:
        bench.start(Scripted(lambda _: StepResult()), store=store, concurrency=1)
        await bench.publish(1, 2)
        await until(lambda: [item["jobId"] for item in bench.results()] == ["job-1", "job-2"])
    assert any(line["event"] == "ending an attempt failed" for line in lines)


async def test_result_of_a_fenced_attempt_is_not_sent(bench: Bench) -> None:
    service = Service("ocr")

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return StepResult("finished all the same")
        return StepResult()

    runtime = bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    bench.orchestrator.answer = lambda _: {"status": 409}
    bench.timing.advance(300)
    await until(lambda: not runtime.attempts)
    await bench.sender.wait_until_below(1)
    assert bench.results() == []
