"""Rows that wait in memory, for a host or a slot, must not be kept from other replicas for long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

import pytest

from lucius.core.inputs import Cancel
from lucius.core.model import JobStatus, OutboxRow
from lucius.core.protocol import WEBHOOK_SERVICE, Call, StepSpec
from lucius.engine import calls, notices
from lucius.engine.notices import NoticeRunner
from lucius.ports.calls import Answer, Closed, Outgoing, Slot
from lucius.ports.errors import LedgerCorrupt
from lucius.ports.ledger import PendingQuery
from tests.support.engine import Engine
from tests.support.peer import Peer, peer

MINUTE = 60_000
MANY = [f"t{number}" for number in range(60)]
TASK = StepSpec(step_id="ocr", step_type="OCR", service="ocr")


@pytest.fixture
async def there() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


class Watched(Engine):
    """Notes what is given back to its ledger, and for how long rows are held."""

    def __init__(self, *, per_host: int = 1, parallel: int = 64) -> None:
        super().__init__(per_host=per_host, parallel=parallel)
        self.taken: set[str] = set()
        self.times_given_back = 0
        self.given_back: list[str] = []
        self.holds: list[int] = []
        self.taking, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self._pending = self.ledger.pending
        self.ledger.put_back = self._watch_put_back  # type: ignore[method-assign]
        self.ledger.pending = self._watch_pending  # type: ignore[method-assign]

    async def _watch_put_back(self, rows: Collection[OutboxRow]) -> None:
        self.given_back += [row.job_id for row in rows]
        self.taken.difference_update(row.job_id for row in rows)
        self.times_given_back += 1

    async def _watch_pending(self, query: PendingQuery) -> list[OutboxRow]:
        self.holds.append(query.hold_ms)
        rows = await self._pending(query)
        self.taken.update(row.job_id for row in rows)
        self.taking.set()
        await self.answers.wait()
        return rows

    async def stopped_while_taking(
        self, turn: Callable[[], Awaitable[None]], stop: Callable[[float], Awaitable[None]]
    ) -> None:
        self.answers.clear()
        self.taking.clear()
        turning = asyncio.ensure_future(turn())
        await self.taking.wait()
        turning.cancel()
        stopping = asyncio.ensure_future(stop(5))
        await asyncio.wait({turning})
        self.answers.set()
        await stopping

    def in_hand(self) -> int:
        return len(self.taken)

    def notices(self, caller: "OneAtATime", parallel: int = 256) -> NoticeRunner:
        return NoticeRunner(
            ledger=self.ledger,
            outbox=self.ledger,
            jobs=self.jobs,
            caller=caller,
            hub=self.hub,
            clock=self.clock,
            interval=0.02,
            on_failure=lambda name: None,
            parallel=parallel,
        )

    async def ended_jobs(self, *tenants: str) -> None:
        """One job of each tenant that has ended, and whose client wants to know."""
        for tenant_id in tenants:
            url = "https://clients.example/ended"
            await self.submit(TASK, job_id=tenant_id, tenant_id=tenant_id, callback_urls={"job": url})
            await self.feed(Cancel("test"), job_id=tenant_id)

    async def nothing_pending(self, runner: NoticeRunner) -> None:
        async with asyncio.timeout(5):
            while await self._pending(PendingQuery(limit=9, now=2**60, service=WEBHOOK_SERVICE)):
                await runner.start_due()
                await asyncio.sleep(0)


class TestCalls:
    async def waiting(self, engine: Watched, there: Peer, calls: int = 2) -> None:
        """So many calls of a host that has as many as it may have, or as can run."""
        there.gate.clear()
        for job_id in ("one", "two", *map(str, range(2, calls))):
            spec = StepSpec(step_id="call", kind="external_call", external_call=Call(url=there.url))
            await engine.submit(spec, job_id=job_id)
        await engine.calls.start_ready()
        await there.saw(1)

    async def test_what_waits_for_its_host_is_given_back_in_time_and_taken_anew(self, there: Peer) -> None:
        engine = Watched()
        await self.waiting(engine, there)
        assert engine.holds == [calls.HOLD_MS]
        await engine.calls.start_ready()
        assert engine.given_back == []
        engine.clock.advance(calls.HOLD_MS / 1000)
        await engine.calls.start_ready()
        assert engine.given_back == ["two"]
        there.gate.set()
        async with engine.running():
            assert (await engine.ended("two")).status is JobStatus.SUCCEEDED
        assert len(there.seen) == 2

    async def test_nobody_takes_more_than_a_few_times_what_can_run(self, there: Peer) -> None:
        engine = Watched(per_host=9, parallel=2)
        await self.waiting(engine, there, 50)
        await engine.calls.start_ready()
        assert engine.in_hand() == 2 + 4 * 2
        await engine.calls.stop(0)

    async def test_what_a_host_lets_wait_is_left_to_others_but_for_a_few(self, there: Peer) -> None:
        engine = Watched(per_host=1, parallel=2)
        await self.waiting(engine, there, 50)
        while await engine.calls.start_ready():
            pass
        assert engine.in_hand() <= 1 + 4 * 2
        assert len(engine.given_back) == len(set(engine.given_back)) == 50 - engine.in_hand()
        assert engine.times_given_back < 20
        await engine.calls.stop(0)

    async def test_who_stops_keeps_nothing(self, there: Peer) -> None:
        engine = Watched()
        await self.waiting(engine, there)
        await engine.calls.stop(0.01)
        assert engine.given_back == ["two"]

    async def test_nor_what_it_was_just_taking(self, there: Peer) -> None:
        engine = Watched()
        spec = StepSpec(step_id="call", kind="external_call", external_call=Call(url=there.url))
        await engine.submit(spec, job_id="one")
        await engine.stopped_while_taking(engine.calls.turn, engine.calls.stop)
        assert (engine.given_back, there.seen) == (["one"], [])


class OneAtATime:
    """A caller to a single host, which answers once the gate is open."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        self._busy = False

    def host(self, url: str) -> str:
        return "there"

    def admit(self, host: str) -> Slot | Closed:
        if self._busy:
            return Closed()
        self._busy = True
        return Slot(self._release)

    def _release(self) -> None:
        self._busy = False

    async def send(self, call: Outgoing) -> Answer:
        self.told.append(call.idempotency_key)
        self.began.set()
        await self.gate.wait()
        return Answer(status=200, headers={})


class TestNotices:
    async def waiting(
        self, engine: Watched, caller: OneAtATime, tenants: Sequence[str] = ("a", "b"), parallel: int = 256
    ) -> NoticeRunner:
        """One notice of each tenant for a receiver that may have one, and has it."""
        await engine.ended_jobs(*tenants)
        runner = engine.notices(caller, parallel)
        await runner.start_due()
        await caller.began.wait()
        return runner

    async def test_a_notice_is_held_for_longer_than_it_can_take(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        assert engine.holds[-1] >= notices.WAIT_MS + notices.TIMEOUT_MS + 3 * MINUTE  # for a ledger in trouble
        await runner.stop(0)

    async def test_nobody_takes_more_than_a_few_times_what_can_run(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller, MANY, parallel=2)
        while await runner.start_due():
            pass
        assert engine.in_hand() <= 1 + 4 * 2
        assert engine.times_given_back < 30
        caller.gate.set()
        await engine.nothing_pending(runner)
        assert len(set(caller.told)) == len(caller.told) == len(MANY)
        await runner.stop()

    async def test_all_that_waited_too_long_go_back_together(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller, MANY)
        while await runner.start_due():
            pass
        assert (engine.in_hand(), engine.times_given_back) == (len(MANY), 0)
        engine.clock.advance(notices.WAIT_MS / 1000)
        await runner.start_due()
        assert (len(engine.given_back), engine.times_given_back) == (len(MANY) - 1, 1)
        await runner.stop(0)

    async def test_what_can_not_be_read_does_not_pile_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, caller = Watched(), OneAtATime()
        await engine.ended_jobs(*MANY)
        runner = engine.notices(caller, parallel=2)

        async def torn(job_id: str, step_ids: object = (), fresh: bool = False) -> None:
            raise LedgerCorrupt("a row is not what it was")

        monkeypatch.setattr(engine.ledger, "load", torn)
        while await runner.start_due():
            pass
        assert engine.in_hand() <= 2 + 4 * 2
        await runner.stop(0)

    async def test_one_that_waited_too_long_is_not_begun_but_taken_anew(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        engine.clock.advance((notices.HOLD_MS - notices.TIMEOUT_MS) / 1000)
        caller.gate.set()
        await engine.nothing_pending(runner)
        assert engine.given_back == ["b"]
        assert len(set(caller.told)) == len(caller.told) == 2
        await runner.stop()

    async def test_one_that_waited_a_little_is_begun(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        engine.clock.advance(notices.TIMEOUT_MS / 1000)
        caller.gate.set()
        await engine.nothing_pending(runner)
        assert engine.given_back == []
        await runner.stop()

    async def test_who_stops_keeps_nothing(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        await runner.stop(0.01)
        assert engine.given_back == ["b"]

    async def test_nor_what_it_was_just_taking(self) -> None:
        engine, caller = Watched(), OneAtATime()
        await engine.ended_jobs("a")
        runner = engine.notices(caller)
        await engine.stopped_while_taking(runner.turn, runner.stop)
        assert (engine.given_back, caller.told) == (["a"], [])
