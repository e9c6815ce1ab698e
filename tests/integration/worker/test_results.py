"""RESULTs on their way while the journal or the idempotency store fails."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lucius.contract import Directive
from lucius.worker import StepResult, results
from lucius.worker.idempotency import RETENTION_SECONDS, AttemptKey, StoreDown, attempt_key
from lucius.worker.journal import Journal
from lucius.worker.runtime import CLAIM_TTL_SECONDS
from tests.integration.worker.bench import Bench, Scripted
from tests.integration.worker.stores import FlakyStore
from tests.integration.worker.support import directive, until

FIRST = b'{"jobId":"job-1","status":"SUCCEEDED","result":"first"}'


def leave_orphans(folder: Path, *work: Directive, result: bytes | None = None) -> None:
    journal = Journal(folder)
    journal.begin(work)
    for one in work:
        if result is not None:
            journal.finish(one, result)
    journal.close()


async def run_upkeep(bench: Bench) -> None:
    await until(lambda: CLAIM_TTL_SECONDS / 3 in bench.timing.waits)
    bench.timing.advance(CLAIM_TTL_SECONDS / 3)


class TimingOutStore(FlakyStore):
    """A store that times out when a result is stored."""

    async def finish(self, key: AttemptKey, result: bytes) -> bytes:
        self.asked.append("finish")
        await asyncio.sleep(0)
        raise StoreDown("timeout")


# Choice of the result


async def test_result_in_the_journal_is_sent_instead_of_a_later_one(bench: Bench, tmp_path: Path) -> None:
    """Another process was at the same attempt and finished first."""
    journal, beside = Journal(tmp_path), Journal(tmp_path)

    def act(_: object) -> StepResult:
        beside.finish(directive(bench.orchestrator.url), FIRST)
        return StepResult("second")

    bench.start(Scripted(act), journal=journal)
    await bench.publish(1)
    assert (await bench.result())["result"] == "first"
    beside.close()


async def test_result_in_the_store_is_sent_instead_of_a_later_one(bench: Bench) -> None:
    store = FlakyStore()
    await store.inner.finish(attempt_key(directive()), FIRST)
    store.away.add("forgets")
    bench.start(Scripted(lambda _: StepResult("second")), store=store)
    await bench.publish(1)
    assert (await bench.result())["result"] == "first"


async def test_interrupted_attempt_with_a_result_in_the_store_sends_that_result(bench: Bench, tmp_path: Path) -> None:
    """The result may not have fitted into the journal."""
    leave_orphans(tmp_path, directive(bench.orchestrator.url))
    store = FlakyStore()
    await store.inner.finish(attempt_key(directive()), FIRST)
    journal = Journal(tmp_path)
    bench.start(Scripted(), store=store, journal=journal)
    assert (await bench.result())["result"] == "first"


# While the journal or a store is down


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyError("nobody foresaw it")])
@pytest.mark.parametrize("where", ["journal", "store"])
async def test_journal_or_store_error_does_not_keep_a_result_from_being_sent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    journal, store = Journal(None), FlakyStore()

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(journal if where == "journal" else store, "finish", fail)
    bench.start(Scripted(lambda _: StepResult("done")), journal=journal, store=store)
    await bench.publish(1)
    assert (await bench.result())["result"] == "done"


async def test_result_that_the_journal_refused_is_written_again_while_undelivered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    finish, failures = journal.finish, [StoreDown("locked")] * 2

    def finish_later(work: Directive, result: bytes) -> bytes:
        if failures:
            raise failures.pop()
        return finish(work, result)

    monkeypatch.setattr(journal, "finish", finish_later)
    bench.start(Scripted(lambda _: StepResult("done")), journal=journal, store=FlakyStore())
    await bench.orchestrator.stop()
    await bench.publish(1)
    await until(lambda: len(failures) == 1)
    await run_upkeep(bench)
    await until(lambda: failures == [])
    await run_upkeep(bench)
    await until(lambda: journal.undelivered() == 1)
    ((result,),) = journal.file.rows("SELECT result FROM attempts WHERE owner IS NOT NULL")
    assert isinstance(result, bytes)
    assert msgspec.json.decode(result)["result"] == "done"


async def test_result_that_the_journal_refused_is_not_written_after_delivery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, asked = Journal(None), []

    def finish(work: Directive, result: bytes) -> bytes:
        asked.append(work)
        raise StoreDown("no space left")

    monkeypatch.setattr(journal, "finish", finish)
    bench.start(Scripted(lambda _: StepResult()), journal=journal, store=FlakyStore())
    await bench.publish(1)
    await bench.result()
    await bench.sender.wait_until_below(1)
    await run_upkeep(bench)
    await until(lambda: CLAIM_TTL_SECONDS / 3 in bench.timing.waits)
    assert len(asked) == 1


async def test_orphaned_results_try_an_unavailable_store_once_per_round(bench: Bench, tmp_path: Path) -> None:
    url = bench.orchestrator.url
    leave_orphans(tmp_path, *(directive(url, number) for number in range(20)))
    store = TimingOutStore()
    bench.start(Scripted(), store=store, journal=Journal(tmp_path))
    await until(lambda: len(bench.results()) == 20)
    assert store.asked.count("finish") == 1
    for _ in range(2):
        await run_upkeep(bench)
        await until(lambda: CLAIM_TTL_SECONDS / 3 in bench.timing.waits)
    assert store.asked.count("finish") == 3, "once in a round"


async def test_limit_of_unstored_results_is_at_least_ten_thousand(bench: Bench) -> None:
    assert results.MAX_UNSTORED_RESULTS >= 10_000


async def test_memory_for_unstored_results_is_bounded_in_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "MAX_UNSTORED_BYTES", 2500)
    store = FlakyStore()
    store.away.add("finish")
    journal = Journal(tmp_path)
    runtime = bench.start(Scripted(lambda _: StepResult("x" * 900)), store=store, journal=journal)
    await bench.publish(*range(8))
    await until(lambda: len(bench.results()) == 8 and not runtime.attempts)
    await bench.sender.wait_until_below(1)
    journal.flush()
    assert len(journal.file.rows("SELECT 1 FROM attempts WHERE owner IS NOT NULL")) == 2


# Steps that are unsafe to retry


async def test_claim_of_an_unsafe_step_is_extended_before_it_begins(bench: Bench) -> None:
    store, asked = FlakyStore(), []
    renew = store.renew

    async def renewed(keys: Sequence[AttemptKey], seconds: float) -> None:
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
