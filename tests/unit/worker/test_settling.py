"""What a service tells a bus that would give a message out again, and when."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from lucius.adapters.bus_memory import MemoryBus, MemoryConsumer
from lucius.contract import Directive
from lucius.ports.errors import BusDown
from lucius.worker import StepContext, StepResult
from lucius.worker.idempotency import RUNNING, Key, MemoryIdempotency, Standing, StoreDown
from lucius.worker.idempotency_redis import RedisIdempotency
from tests.support.redis import RedisServer
from tests.unit.worker.bench import Bench, Scripted, some_turns
from tests.unit.worker.stores import Flaky
from tests.unit.worker.support import Item, until

ONCE = "NOT_SAFE_TO_RETRY"
KEY = Key("job-1", "ocr", 1, "lease-1")
DUPLICATE: Item = {"status": 200, "disposition": "DUPLICATE", "lease_expires_at": "1970-01-01T00:15:00.000Z"}
ENDED: Item = {"status": 200, "disposition": "DUPLICATE"}


class Witness(MemoryConsumer):
    """Remembers what was settled and given back; can be away, and can have lost a message to another."""

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
def witness(bench: Bench) -> Witness:
    return Witness(bench.bus)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[RedisIdempotency]]:
    """Of two processes."""
    server = RedisServer(tmp_path).start()
    stores = [RedisIdempotency(server.url) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()
    server.stop()


async def test_a_directive_is_settled_when_its_result_was_heard_and_not_before(bench: Bench, witness: Witness) -> None:
    gate = asyncio.Event()
    bench.orchestrator.before_answering = gate.wait
    bench.start(Scripted(lambda _: StepResult()), consumer=witness)
    await bench.publish(1)
    await bench.result()
    await some_turns()
    assert witness.settled == []
    gate.set()
    await until(lambda: witness.settled == ["job-1"])


async def test_so_is_one_whose_lease_was_lost(bench: Bench, witness: Witness) -> None:
    bench.orchestrator.answer = lambda _: {"status": 409, "code": "STALE"}
    bench.start(Scripted(), consumer=witness)
    await bench.publish(1)
    await until(lambda: witness.settled == ["job-1"])
    assert bench.results() == []


async def test_so_is_one_that_makes_no_sense(bench: Bench, witness: Witness) -> None:
    bench.start(Scripted(), consumer=witness)
    await bench.publish(1, lease_seconds=0)
    await until(lambda: witness.settled == ["job-1"])


async def test_a_bus_that_is_away_is_told_later(bench: Bench, witness: Witness) -> None:
    bench.start(Scripted(lambda _: StepResult()), consumer=witness)
    witness.away = True
    await bench.publish(1, 2)
    await until(lambda: len(bench.results()) == 2)
    await until(lambda: bool(bench.waits()))
    witness.away = False
    bench.timing.advance(5)
    await until(lambda: sorted(witness.settled) == ["job-1", "job-2"])


async def test_at_the_end_the_bus_is_told_what_is_done(bench: Bench, witness: Witness) -> None:
    runtime = bench.start(Scripted(lambda _: StepResult()), consumer=witness)
    witness.away = True
    await bench.publish(1)
    await until(lambda: bool(bench.waits()))
    runtime.stop()
    await bench.ended()
    witness.away = False
    bench.timing.advance(5)
    await runtime.close()
    assert witness.settled == ["job-1"]


class TestStopping:
    """Told to stop while what was pulled could not be begun, as the store is away."""

    async def stopped(self, bench: Bench, witness: Witness, away: bool = False) -> None:
        store = Flaky()
        scripted = Scripted()
        runtime = bench.start(scripted, consumer=witness, store=store)
        await until(lambda: runtime.ready)
        store.away = {"claim"}
        await bench.publish(1, 2)
        await until(lambda: bool(bench.waits()))
        witness.away = away
        runtime.stop()
        await bench.ended()
        assert scripted.started == []

    async def test_it_goes_back_to_the_bus_and_costs_no_attempt(self, bench: Bench, witness: Witness) -> None:
        await self.stopped(bench, witness)
        assert (witness.given_back, bench.results()) == (["job-1", "job-2"], [])

    async def test_what_the_bus_can_not_take_back_is_said_to_have_failed(self, bench: Bench, witness: Witness) -> None:
        witness.lost = {"job-2"}
        await self.stopped(bench, witness)
        assert [(await bench.result())["jobId"], len(bench.results())] == ["job-2", 1]

    async def test_nor_is_a_bus_waited_for_that_is_away(self, bench: Bench, witness: Witness) -> None:
        await self.stopped(bench, witness, away=True)
        await until(lambda: len(bench.results()) == 2)


async def test_a_pull_that_is_cut_off_gives_back_what_it_may_have_taken(bench: Bench, witness: Witness) -> None:
    asked: list[int] = []
    give_back = witness.give_back

    async def given(directives: Sequence[Directive]) -> list[bool]:
        asked.append(len(directives))
        return await give_back(directives)

    witness.give_back = given  # type: ignore[method-assign]
    scripted = Scripted()
    runtime = bench.start(scripted, consumer=witness)
    await bench.publish(1)
    await until(lambda: bool(scripted.started))
    runtime.stop()
    await until(lambda: asked == [0])
    scripted.gate.set()
    await bench.ended()


class TestOnce:
    """A step that may not be repeated."""

    async def test_is_settled_before_it_begins(self, bench: Bench, witness: Witness) -> None:
        seen: list[list[str]] = []

        def act(_: StepContext) -> StepResult:
            seen.append(list(witness.settled))
            return StepResult()

        bench.start(Scripted(act), consumer=witness)
        await bench.publish(1, retry_safety=ONCE)
        await bench.result()
        assert seen == [["job-1"]]

    async def test_is_not_begun_if_another_may_have_it(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted(lambda _: StepResult())
        witness.lost = {"job-1"}
        bench.start(scripted, consumer=witness)
        await bench.publish(1, 2, retry_safety=ONCE)
        await bench.result()
        assert [ctx.directive.jobId for ctx in scripted.started] == ["job-2"]

    async def test_waits_for_a_bus_that_is_away(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted(lambda _: StepResult())
        bench.start(scripted, consumer=witness)
        witness.away = True
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(bench.waits()))
        assert scripted.started == []
        witness.away = False
        bench.timing.advance(5)
        await bench.result()

    async def test_that_comes_too_late_is_not_begun_if_nobody_answers(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted(lambda _: StepResult())
        await bench.orchestrator.stop()
        bench.timing.advance(31)
        bench.start(scripted, consumer=witness)
        await bench.publish(1, retry_safety=ONCE)
        await bench.publish(2)
        await until(lambda: bool(bench.waits()))
        bench.timing.advance(60)
        await until(lambda: len(scripted.started) == 1)
        assert scripted.started[0].directive.jobId == "job-2"

    async def test_asks_whether_it_is_the_first_though_it_is_in_time(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted(lambda _: StepResult())
        gate = asyncio.Event()
        bench.orchestrator.before_answering = gate.wait
        bench.start(scripted, consumer=witness)
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(bench.orchestrator.of_type("ack")))
        await some_turns()
        begun = len(scripted.started)
        gate.set()
        assert (await bench.result())["status"] == "SUCCEEDED"
        assert begun == 0

    @pytest.mark.parametrize("seconds", [0, 31], ids=["in time", "late"])
    @pytest.mark.parametrize("answer", [DUPLICATE, ENDED])
    async def test_is_not_begun_if_somebody_took_it_before(
        self, bench: Bench, witness: Witness, answer: Item, seconds: float
    ) -> None:
        """A Redis that came back with an older state gives out again what was settled, and even what was done."""
        scripted = Scripted(lambda _: StepResult())
        bench.orchestrator.answer = lambda _: answer
        bench.timing.advance(seconds)
        runtime = bench.start(scripted, consumer=witness)
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(bench.orchestrator.of_type("ack")))
        await until(lambda: not runtime.attempts)
        assert (scripted.started, bench.results()) == ([], [])

    async def test_waits_for_an_orchestrator_that_is_away(self, bench: Bench, witness: Witness) -> None:
        """For longer than its ACK deadline, which has a fresh period after that."""
        scripted = Scripted(lambda _: StepResult())
        port = bench.orchestrator.port
        await bench.orchestrator.stop()
        bench.start(scripted, consumer=witness)
        await bench.publish(1, retry_safety=ONCE)
        for _ in range(4):
            await until(lambda: bool(bench.waits()))
            bench.timing.advance(30)
        assert scripted.started == []
        await bench.orchestrator.start(port)
        if bench.waits():
            bench.timing.advance(30)
        assert (await bench.result())["status"] == "SUCCEEDED"

    async def test_asks_nobody_on_a_bus_that_gives_out_but_once(self, bench: Bench) -> None:
        scripted = Scripted(lambda _: StepResult())
        await bench.orchestrator.stop()
        bench.start(scripted)
        await bench.publish(1, retry_safety=ONCE)
        await until(lambda: bool(scripted.started))


class TestLate:
    """A directive that comes after its ACK deadline."""

    async def test_is_not_begun_if_it_was_done_already(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted(lambda _: StepResult())
        bench.orchestrator.answer = lambda _: ENDED
        bench.timing.advance(31)
        bench.start(scripted, consumer=witness)
        await bench.publish(1)
        await until(lambda: witness.settled == ["job-1"])
        assert scripted.started == []

    async def test_is_begun_again_if_somebody_died_with_it(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted(lambda _: StepResult())
        bench.orchestrator.answer = lambda _: DUPLICATE
        bench.timing.advance(31)
        bench.start(scripted, consumer=witness)
        await bench.publish(1)
        await bench.result()
        assert len(scripted.started) == 1

    @pytest.mark.parametrize("safety", [ONCE, "SAFE_TO_RETRY"])
    @pytest.mark.parametrize("wanted", [True, False])
    async def test_is_begun_only_if_it_is_still_wanted(
        self, bench: Bench, witness: Witness, wanted: bool, safety: str
    ) -> None:
        scripted = Scripted(lambda _: StepResult())
        gate = asyncio.Event()
        bench.orchestrator.before_answering = gate.wait
        applied: Item = {"status": 200, "disposition": "APPLIED"}
        bench.orchestrator.answer = lambda _: applied if wanted else {"status": 409, "code": "STALE"}
        bench.timing.advance(31)
        bench.start(scripted, consumer=witness)
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


class TestElsewhere:
    """A message that the bus gave us though another process is at it."""

    async def other(self) -> MemoryIdempotency:
        store = MemoryIdempotency()
        await store.claim([KEY], 600)
        return store

    async def test_is_kept_while_the_other_is_at_it(self, bench: Bench, witness: Witness) -> None:
        scripted = Scripted()
        bench.start(scripted, consumer=witness, store=await self.other())
        await bench.publish(1)
        await some_turns()
        bench.timing.advance(20)
        await bench.publish(2)
        await until(lambda: len(scripted.started) == 1)
        assert (witness.settled, scripted.started[0].directive.jobId) == ([], "job-2")

    async def test_is_ours_when_the_other_died(self, bench: Bench, witness: Witness) -> None:
        scripted, store = Scripted(lambda _: StepResult()), await self.other()
        bench.start(scripted, consumer=witness, store=store)
        await bench.publish(1)
        await some_turns()
        await store.release(KEY)
        bench.timing.advance(20)
        await bench.publish(2)  # whoever pulls looks again
        await until(lambda: sorted(witness.settled) == ["job-1", "job-2"])
        assert len(scripted.started) == 2

    async def test_is_settled_when_the_other_is_done(self, bench: Bench, witness: Witness) -> None:
        scripted, store = Scripted(lambda _: StepResult()), await self.other()
        bench.start(scripted, consumer=witness, store=store)
        await bench.publish(1)
        await some_turns()
        await store.finish(KEY, b'{"status": "SUCCEEDED", "result": {"by": "another"}}')
        bench.timing.advance(20)
        await bench.publish(2)
        await until(lambda: sorted(witness.settled) == ["job-1", "job-2"])
        assert [ctx.directive.jobId for ctx in scripted.started] == ["job-2"]

    async def test_is_left_to_the_other_if_we_stop_while_the_store_is_away(
        self, bench: Bench, witness: Witness
    ) -> None:
        scripted, store = Scripted(), Flaky()
        await store.inner.claim([KEY], 600)
        runtime = bench.start(scripted, consumer=witness, store=store)
        await bench.publish(1)
        await until(lambda: store.asked.count("claim") == 2)
        await some_turns()
        claim, asked = store.claim, asyncio.Event()

        async def claim_or_not(keys: Sequence[Key], seconds: float) -> list[Standing]:
            if KEY in keys:
                asked.set()
                raise StoreDown("away")
            return await claim(keys, seconds)

        store.claim = claim_or_not  # type: ignore[method-assign]
        bench.timing.advance(20)
        await bench.publish(2)  # whoever pulls looks again
        await until(asked.is_set)
        runtime.stop()
        scripted.gate.set()
        await bench.ended()
        await until(lambda: witness.settled == ["job-2"])
        assert (witness.given_back, [item["jobId"] for item in bench.results()]) == ([], ["job-2"])

    async def test_is_left_to_its_lease_if_there_are_too_many(self, bench: Bench, witness: Witness) -> None:
        store = MemoryIdempotency()
        await store.claim([Key(f"job-{number}", "ocr", 1, f"lease-{number}") for number in (1, 2, 3)], 600)
        bench.start(Scripted(), consumer=witness, store=store, concurrency=2)
        await bench.publish(1, 2, 3)
        await until(lambda: witness.settled == ["job-1"])


async def test_a_claim_that_ran_out_while_the_store_was_away_is_asked_for_again(
    bench: Bench, witness: Witness, stores: list[RedisIdempotency], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = stores
    scripted = Scripted(lambda _: StepResult())
    renew, away = ours.renew, True

    async def renew_or_not(keys: Sequence[Key], seconds: float) -> None:
        if away:
            raise StoreDown("away")
        await renew(keys, seconds)

    monkeypatch.setattr(ours, "renew", renew_or_not)
    bench.start(scripted, consumer=witness, store=ours)
    await bench.publish(1, 2, retry_safety=ONCE)
    async with asyncio.timeout(10):
        while not bench.waits():  # noqa: ASYNC110 - Redis is another process
            await asyncio.sleep(0.01)
    await ours.release(KEY)  # as if its time had run out
    await others.claim([KEY], 600)
    away = False
    bench.timing.advance(5)
    async with asyncio.timeout(10):
        while not bench.results():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [ctx.directive.jobId for ctx in scripted.started] == ["job-2"]
    assert await others.claim([KEY], 1) == [RUNNING]
