"""When a service settles messages on a bus that would otherwise deliver them again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from lucius.adapters.bus.memory import MemoryBus, MemoryConsumer
from lucius.contract import Directive
from lucius.ports.errors import BusDown
from lucius.worker import StepContext, StepResult
from lucius.worker.idempotency import RUNNING, AttemptKey, ClaimOutcome, MemoryIdempotency, StoreDown
from lucius.worker.idempotency_redis import RedisIdempotency
from tests.integration.worker.bench import Bench, Scripted, some_turns
from tests.integration.worker.stores import FlakyStore
from tests.integration.worker.support import Item, until
from tests.support.redis import RedisServer

ONCE = "NOT_SAFE_TO_RETRY"
KEY = AttemptKey("job-1", "ocr", 1, "lease-1")
DUPLICATE: Item = {"status": 200, "disposition": "DUPLICATE", "lease_expires_at": "1970-01-01T00:15:00.000Z"}
ENDED: Item = {"status": 200, "disposition": "DUPLICATE"}


class RecordingConsumer(MemoryConsumer):
    """Records settled and returned messages; can be down, and can have lost a message to another consumer."""

    gives_once = False

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus, "ocr", frozenset(range(16)))
        self.settled: list[str] = []
        self.given_back: list[str] = []
        self.lost: set[str] = set()
        self.away = False

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        if self.away:
            raise BusDown("away")
        self.settled += [one.jobId for one in directives]
        return [one.jobId not in self.lost for one in directives]

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        if self.away:
            raise BusDown("away")
        self.given_back += [one.jobId for one in directives]
        return [one.jobId not in self.lost for one in directives]


@pytest.fixture
def consumer(bench: Bench) -> RecordingConsumer:
    return RecordingConsumer(bench.bus)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[RedisIdempotency]]:
    """Yield the stores of two processes."""
    server = RedisServer(tmp_path).start()
    stores = [RedisIdempotency(server.url) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()
    server.stop()


async def test_directive_is_settled_only_after_its_result_was_answered(
    bench: Bench, consumer: RecordingConsumer
) -> None:
    gate = asyncio.Event()
    bench.orchestrator.before_answering = gate.wait
    bench.start(Scripted(lambda _: StepResult()), consumer=consumer)
    await bench.publish(1)
    await bench.result()
    await some_turns()
    assert consumer.settled == []
    gate.set()
    await until(lambda: consumer.settled == ["job-1"])


async def test_directive_with_a_lost_lease_is_settled(bench: Bench, consumer: RecordingConsumer) -> None:
    bench.orchestrator.answer = lambda _: {"status": 409, "code": "STALE"}
    bench.start(Scripted(), consumer=consumer)
    await bench.publish(1)
    await until(lambda: consumer.settled == ["job-1"])
    assert bench.results() == []


async def test_invalid_directive_is_settled_without_running(bench: Bench, consumer: RecordingConsumer) -> None:
    bench.start(Scripted(), consumer=consumer)
    await bench.publish(1, lease_seconds=0)
    await until(lambda: consumer.settled == ["job-1"])


async def test_directives_are_settled_when_the_bus_is_back(bench: Bench, consumer: RecordingConsumer) -> None:
    bench.start(Scripted(lambda _: StepResult()), consumer=consumer)
    consumer.away = True
    await bench.publish(1, 2)
    await until(lambda: len(bench.results()) == 2)
    await until(lambda: bool(bench.waits()))
    consumer.away = False
    bench.timing.advance(5)
    await until(lambda: sorted(consumer.settled) == ["job-1", "job-2"])


async def test_unsettled_directives_are_settled_on_close(bench: Bench, consumer: RecordingConsumer) -> None:
    runtime = bench.start(Scripted(lambda _: StepResult()), consumer=consumer)
    consumer.away = True
    await bench.publish(1)
    await until(lambda: bool(bench.waits()))
    runtime.stop()
    await bench.ended()
    consumer.away = False
    bench.timing.advance(5)
    await runtime.close()
    assert consumer.settled == ["job-1"]


class TestStopping:
    """A stop while pulled messages could not be begun because the store is down."""

    async def stop_with_unbegun_directives(self, bench: Bench, consumer: RecordingConsumer, away: bool = False) -> None:
        store = FlakyStore()
        scripted = Scripted()
        runtime = bench.start(scripted, consumer=consumer, store=store)
        await until(lambda: runtime.is_ready)
        store.away = {"claim"}
        await bench.publish(1, 2)
        await until(lambda: bool(bench.waits()))
        consumer.away = away
        runtime.stop()
        await bench.ended()
        assert scripted.started == []

    async def test_unbegun_directives_are_returned_to_the_bus_without_a_result(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        await self.stop_with_unbegun_directives(bench, consumer)
        assert (consumer.given_back, bench.results()) == (["job-1", "job-2"], [])

    async def test_directive_that_cannot_be_returned_is_reported_as_failed(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        consumer.lost = {"job-2"}
        await self.stop_with_unbegun_directives(bench, consumer)
        assert [(await bench.result())["jobId"], len(bench.results())] == ["job-2", 1]

    async def test_directives_are_reported_as_failed_without_waiting_for_a_bus_that_is_down(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        await self.stop_with_unbegun_directives(bench, consumer, away=True)
        await until(lambda: len(bench.results()) == 2)


async def test_cancelled_pull_returns_what_it_may_have_taken(bench: Bench, consumer: RecordingConsumer) -> None:
    asked: list[int] = []
    give_back = consumer.give_back

    async def given(directives: Sequence[Directive]) -> list[bool]:
        asked.append(len(directives))
        return await give_back(directives)

    consumer.give_back = given  # type: ignore[method-assign]
    scripted = Scripted()
    runtime = bench.start(scripted, consumer=consumer)
    await bench.publish(1)
    await until(lambda: bool(scripted.started))
    runtime.stop()
    await until(lambda: asked == [0])
    scripted.gate.set()
    await bench.ended()


class TestUnsafeStep:
    """A step that is unsafe to retry."""

    async def test_unsafe_step_is_settled_before_it_begins(self, bench: Bench, consumer: RecordingConsumer) -> None:
        seen: list[list[str]] = []

        def act(_: StepContext) -> StepResult:
            seen.append(list(consumer.settled))
            return StepResult()

        bench.start(Scripted(act), consumer=consumer)
        await bench.publish(1, retry_safety=ONCE)
        await bench.result()
        assert seen == [["job-1"]]

    async def test_unsafe_step_is_not_begun_if_another_consumer_may_have_it(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        consumer.lost = {"job-1"}
        bench.start(scripted, consumer=consumer)
        await bench.publish(1, 2, retry_safety=ONCE)
        await bench.result()
        assert [ctx.directive.jobId for ctx in scripted.started] == ["job-2"]

    async def test_unsafe_step_waits_for_a_bus_that_is_down(self, bench: Bench, consumer: RecordingConsumer) -> None:
        scripted = Scripted(lambda _: StepResult())
        bench.start(scripted, consumer=consumer)
        consumer.away = True
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(bench.waits()))
        assert scripted.started == []
        consumer.away = False
        bench.timing.advance(5)
        await bench.result()

    async def test_late_unsafe_step_is_not_begun_without_an_answer_to_its_ack(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        await bench.orchestrator.stop()
        bench.timing.advance(31)
        bench.start(scripted, consumer=consumer)
        await bench.publish(1, retry_safety=ONCE)
        await bench.publish(2)
        await until(lambda: bool(bench.waits()))
        bench.timing.advance(60)
        await until(lambda: len(scripted.started) == 1)
        assert scripted.started[0].directive.jobId == "job-2"

    async def test_unsafe_step_in_time_waits_for_the_answer_to_its_ack(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        gate = asyncio.Event()
        bench.orchestrator.before_answering = gate.wait
        bench.start(scripted, consumer=consumer)
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(bench.orchestrator.of_type("ack")))
        await some_turns()
        begun = len(scripted.started)
        gate.set()
        assert (await bench.result())["status"] == "SUCCEEDED"
        assert begun == 0

    @pytest.mark.parametrize("seconds", [0, 31], ids=["in time", "late"])
    @pytest.mark.parametrize("answer", [DUPLICATE, ENDED])
    async def test_unsafe_step_acknowledged_before_is_not_begun(
        self, bench: Bench, consumer: RecordingConsumer, answer: Item, seconds: float
    ) -> None:
        """A Redis restored to an older state delivers settled, and even completed, messages again."""
        scripted = Scripted(lambda _: StepResult())
        bench.orchestrator.answer = lambda _: answer
        bench.timing.advance(seconds)
        runtime = bench.start(scripted, consumer=consumer)
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(bench.orchestrator.of_type("ack")))
        await until(lambda: not runtime.attempts)
        assert (scripted.started, bench.results()) == ([], [])

    async def test_unsafe_step_waits_for_an_orchestrator_that_is_down(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        """It is down for longer than the ACK deadline, which starts again after that."""
        scripted = Scripted(lambda _: StepResult())
        port = bench.orchestrator.port
        await bench.orchestrator.stop()
        bench.start(scripted, consumer=consumer)
        await bench.publish(1, retry_safety=ONCE)
        for _ in range(4):
            await until(lambda: bool(bench.waits()))
            bench.timing.advance(30)
        assert scripted.started == []
        await bench.orchestrator.start(port)
        if bench.waits():
            bench.timing.advance(30)
        assert (await bench.result())["status"] == "SUCCEEDED"

    async def test_unsafe_step_from_a_bus_without_redelivery_waits_for_no_answer(self, bench: Bench) -> None:
        scripted = Scripted(lambda _: StepResult())
        await bench.orchestrator.stop()
        bench.start(scripted)
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(scripted.started))


class TestLateDirective:
    """A directive that arrives after its ACK deadline."""

    async def test_late_directive_whose_attempt_ended_is_settled_and_not_begun(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        bench.orchestrator.answer = lambda _: ENDED
        bench.timing.advance(31)
        bench.start(scripted, consumer=consumer)
        await bench.publish(1)
        await until(lambda: consumer.settled == ["job-1"])
        assert scripted.started == []

    async def test_late_directive_acknowledged_by_a_dead_process_is_begun_again(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        bench.orchestrator.answer = lambda _: DUPLICATE
        bench.timing.advance(31)
        bench.start(scripted, consumer=consumer)
        await bench.publish(1)
        await bench.result()
        assert len(scripted.started) == 1

    @pytest.mark.parametrize("safety", [ONCE, "SAFE_TO_RETRY"])
    @pytest.mark.parametrize("wanted", [True, False])
    async def test_late_directive_is_begun_only_if_its_ack_is_applied(
        self, bench: Bench, consumer: RecordingConsumer, wanted: bool, safety: str
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        gate = asyncio.Event()
        bench.orchestrator.before_answering = gate.wait
        applied: Item = {"status": 200, "disposition": "APPLIED"}
        bench.orchestrator.answer = lambda _: applied if wanted else {"status": 409, "code": "STALE"}
        bench.timing.advance(31)
        bench.start(scripted, consumer=consumer)
        await bench.publish(1, retry_safety=safety)
        await until(lambda: bool(bench.orchestrator.of_type("ack")))
        await some_turns()
        assert scripted.started == []
        gate.set()
        if wanted:
            await bench.result()
        else:
            await until(lambda: bench.sender.undelivered == 0)
            await some_turns()
        assert len(scripted.started) == wanted


class TestClaimedElsewhere:
    """A message that the bus delivered although another process is working on it."""

    async def store_with_foreign_claim(self) -> MemoryIdempotency:
        store = MemoryIdempotency()
        await store.claim([KEY], 600)
        return store

    async def test_message_is_not_settled_while_another_process_works_on_it(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted = Scripted()
        bench.start(scripted, consumer=consumer, store=await self.store_with_foreign_claim())
        await bench.publish(1)
        await some_turns()
        bench.timing.advance(20)
        await bench.publish(2)
        await until(lambda: len(scripted.started) == 1)
        assert (consumer.settled, scripted.started[0].directive.jobId) == ([], "job-2")

    async def test_message_is_begun_after_the_other_process_released_it(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted, store = Scripted(lambda _: StepResult()), await self.store_with_foreign_claim()
        bench.start(scripted, consumer=consumer, store=store)
        await bench.publish(1)
        await some_turns()
        await store.release(KEY)
        bench.timing.advance(20)
        await bench.publish(2)  # a pull tries again
        await until(lambda: sorted(consumer.settled) == ["job-1", "job-2"])
        assert len(scripted.started) == 2

    async def test_message_is_settled_after_the_other_process_finished_it(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted, store = Scripted(lambda _: StepResult()), await self.store_with_foreign_claim()
        bench.start(scripted, consumer=consumer, store=store)
        await bench.publish(1)
        await some_turns()
        await store.finish(KEY, b'{"status": "SUCCEEDED", "result": {"by": "another"}}')
        bench.timing.advance(20)
        await bench.publish(2)
        await until(lambda: sorted(consumer.settled) == ["job-1", "job-2"])
        assert [ctx.directive.jobId for ctx in scripted.started] == ["job-2"]

    async def test_message_is_neither_returned_nor_reported_if_the_service_stops_during_a_store_outage(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        scripted, store = Scripted(), FlakyStore()
        await store.inner.claim([KEY], 600)
        runtime = bench.start(scripted, consumer=consumer, store=store)
        await bench.publish(1)
        await until(lambda: store.asked.count("claim") == 2)
        await some_turns()
        claim, asked = store.claim, asyncio.Event()

        async def claim_or_not(keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
            if KEY in keys:
                asked.set()
                raise StoreDown("away")
            return await claim(keys, seconds)

        store.claim = claim_or_not  # type: ignore[method-assign]
        bench.timing.advance(20)
        await bench.publish(2)  # a pull tries again
        await until(asked.is_set)
        runtime.stop()
        scripted.gate.set()
        await bench.ended()
        await until(lambda: consumer.settled == ["job-2"])
        assert (consumer.given_back, [item["jobId"] for item in bench.results()]) == ([], ["job-2"])

    async def test_oldest_messages_beyond_the_limit_are_settled(
        self, bench: Bench, consumer: RecordingConsumer
    ) -> None:
        store = MemoryIdempotency()
        await store.claim([AttemptKey(f"job-{number}", "ocr", 1, f"lease-{number}") for number in (1, 2, 3)], 600)
        bench.start(Scripted(), consumer=consumer, store=store, concurrency=2)
        await bench.publish(1, 2, 3)
        await until(lambda: consumer.settled == ["job-1"])


async def test_claim_that_expired_during_a_store_outage_is_made_again(
    bench: Bench, consumer: RecordingConsumer, stores: list[RedisIdempotency], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = stores
    scripted = Scripted(lambda _: StepResult())
    renew, away = ours.renew, True

    async def renew_or_not(keys: Sequence[AttemptKey], seconds: float) -> None:
        if away:
            raise StoreDown("away")
        await renew(keys, seconds)

    monkeypatch.setattr(ours, "renew", renew_or_not)
    bench.start(scripted, consumer=consumer, store=ours)
    await bench.publish(1, 2, retry_safety=ONCE)
    async with asyncio.timeout(10):
        while not bench.waits():  # noqa: ASYNC110 - Redis is another process
            await asyncio.sleep(0.01)
    await ours.release(KEY)  # as if the claim had expired
    await others.claim([KEY], 600)
    away = False
    bench.timing.advance(5)
    async with asyncio.timeout(10):
        while not bench.results():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [ctx.directive.jobId for ctx in scripted.started] == ["job-2"]
    assert await others.claim([KEY], 1) == [RUNNING]
