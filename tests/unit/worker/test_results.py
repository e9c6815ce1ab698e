"""RESULTs on their way while the journal or the idempotency store is not well."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lucius.contract import Directive
from lucius.worker import StepResult, results
from lucius.worker.idempotency import RETENTION_SECONDS, Key, StoreDown, key_of
from lucius.worker.journal import Journal
from lucius.worker.runtime import CLAIM_SECONDS
from tests.unit.worker.bench import Bench, Scripted
from tests.unit.worker.stores import Flaky
from tests.unit.worker.support import directive, until

FIRST = b'{"jobId":"job-1","status":"SUCCEEDED","result":"first"}'


def left_by_a_dead_process(folder: Path, *work: Directive, result: bytes | None = None) -> None:
    journal = Journal(folder)
    journal.begin(work)
    for one in work:
        if result is not None:
            journal.finish(one, result)
    journal.close()


async def look_after(bench: Bench) -> None:
    await until(lambda: CLAIM_SECONDS / 3 in bench.timing.waits)
    bench.timing.advance(CLAIM_SECONDS / 3)


class Slow(Flaky):
    """Does not answer when told a result, and is given up on."""

    async def finish(self, key: Key, result: bytes) -> bytes:
        self.asked.append("finish")
        await asyncio.sleep(0)
        raise StoreDown("timeout")


# Which result is sent


async def test_the_result_that_the_journal_has_is_the_one_that_is_sent(bench: Bench, tmp_path: Path) -> None:
    """Another process was at the same attempt and was quicker."""
    journal, beside = Journal(tmp_path), Journal(tmp_path)

    def act(_: object) -> StepResult:
        beside.finish(directive(bench.orchestrator.url), FIRST)
        return StepResult("second")

    bench.start(Scripted(act), journal=journal)
    await bench.publish(1)
    assert (await bench.result())["result"] == "first"
    beside.close()


async def test_the_result_that_the_store_has_is_the_one_that_is_sent(bench: Bench) -> None:
    store = Flaky()
    await store.inner.finish(key_of(directive()), FIRST)
    store.away.add("forgets")
    bench.start(Scripted(lambda _: StepResult("second")), store=store)
    await bench.publish(1)
    assert (await bench.result())["result"] == "first"


async def test_the_store_is_asked_before_an_attempt_is_reported_as_cut_off(bench: Bench, tmp_path: Path) -> None:
    """Its result may have found no room in the journal."""
    left_by_a_dead_process(tmp_path, directive(bench.orchestrator.url))
    store = Flaky()
    await store.inner.finish(key_of(directive()), FIRST)
    journal = Journal(tmp_path)
    bench.start(Scripted(), store=store, journal=journal)
    assert (await bench.result())["result"] == "first"


# While something is away


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyError("nobody foresaw it")])
@pytest.mark.parametrize("where", ["journal", "store"])
async def test_no_error_keeps_a_result_from_being_sent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    journal, store = Journal(None), Flaky()

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(journal if where == "journal" else store, "finish", fail)
    bench.start(Scripted(lambda _: StepResult("done")), journal=journal, store=store)
    await bench.publish(1)
    assert (await bench.result())["result"] == "done"


async def test_what_could_not_be_written_down_is_written_later_while_it_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    finish, failures = journal.finish, [StoreDown("locked")] * 2

    def finish_later(work: Directive, result: bytes) -> bytes:
        if failures:
            raise failures.pop()
        return finish(work, result)

    monkeypatch.setattr(journal, "finish", finish_later)
    bench.start(Scripted(lambda _: StepResult("done")), journal=journal, store=Flaky())
    await bench.orchestrator.stop()
    await bench.publish(1)
    await until(lambda: len(failures) == 1)
    await look_after(bench)
    await until(lambda: failures == [])
    await look_after(bench)
    await until(lambda: journal.undelivered() == 1)
    ((result,),) = journal.file.rows("SELECT result FROM attempts WHERE owner IS NOT NULL")
    assert isinstance(result, bytes)
    assert msgspec.json.decode(result)["result"] == "done"


async def test_what_could_not_be_written_down_is_not_kept_once_it_was_heard(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, asked = Journal(None), []

    def finish(work: Directive, result: bytes) -> bytes:
        asked.append(work)
        raise StoreDown("no space left")

    monkeypatch.setattr(journal, "finish", finish)
    bench.start(Scripted(lambda _: StepResult()), journal=journal, store=Flaky())
    await bench.publish(1)
    await bench.result()
    await bench.sender.undelivered_below(1)
    await look_after(bench)
    await until(lambda: CLAIM_SECONDS / 3 in bench.timing.waits)
    assert len(asked) == 1


async def test_left_overs_do_not_wait_one_by_one_for_a_store_that_is_away(bench: Bench, tmp_path: Path) -> None:
    url = bench.orchestrator.url
    left_by_a_dead_process(tmp_path, *(directive(url, number) for number in range(20)))
    store = Slow()
    bench.start(Scripted(), store=store, journal=Journal(tmp_path))
    await until(lambda: len(bench.results()) == 20)
    assert store.asked.count("finish") == 1
    for _ in range(2):
        await look_after(bench)
        await until(lambda: CLAIM_SECONDS / 3 in bench.timing.waits)
    assert store.asked.count("finish") == 3, "once in a round"


async def test_as_many_results_are_kept_for_the_store_as_attempts_may_run(bench: Bench) -> None:
    assert results.MOST_UNREMEMBERED >= 10_000


async def test_large_results_for_a_store_that_is_away_do_not_fill_the_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "MOST_UNREMEMBERED_BYTES", 2500)
    store = Flaky()
    store.away.add("finish")
    journal = Journal(tmp_path)
    runtime = bench.start(Scripted(lambda _: StepResult("x" * 900)), store=store, journal=journal)
    await bench.publish(*range(8))
    await until(lambda: len(bench.results()) == 8 and not runtime.attempts)
    await bench.sender.undelivered_below(1)
    journal._flush()
    assert len(journal.file.rows("SELECT 1 FROM attempts WHERE owner IS NOT NULL")) == 2


# Steps that may not be repeated


async def test_the_claim_of_a_step_that_may_not_be_repeated_outlives_its_process(bench: Bench) -> None:
    store, asked = Flaky(), []
    renew = store.renew

    async def renewed(keys: Sequence[Key], seconds: float) -> None:
        asked.append(([key.jobId for key in keys], seconds))
        await renew(keys, seconds)

    store.renew = renewed  # type: ignore[method-assign]
    store.away.add("renew")
    scripted = Scripted()
    bench.start(scripted, store=store)
    await bench.publish(1, retry_safety="NOT_SAFE_TO_RETRY")
    await until(lambda: bench.waits() == [0.25])
    assert scripted.started == [], "not before the claim is safe"
    store.away.clear()
    bench.timing.advance(0.25)
    await until(lambda: len(scripted.started) == 1)
    assert asked == [(["job-1"], RETENTION_SECONDS)] * 2
    await bench.publish(2)
    await until(lambda: len(scripted.started) == 2)
    assert len(asked) == 2
