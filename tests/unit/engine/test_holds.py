"""Rows that wait in memory, for a host or a slot, must not be kept from other replicas for long."""

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest

from lucius.core.inputs import Cancel
from lucius.core.model import JobStatus, OutboxRow
from lucius.core.protocol import WEBHOOK_SERVICE, Call, StepSpec
from lucius.engine import calls, notices
from lucius.engine.notices import NoticeRunner
from lucius.ports.calls import Answer, Closed, Outgoing, Slot
from lucius.ports.ledger import PendingQuery
from tests.support.engine import Engine
from tests.support.peer import Peer, peer

TASK = StepSpec(step_id="ocr", step_type="OCR", service="ocr")


@pytest.fixture
async def there() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


class Watched(Engine):
    """Notes what is given back to its ledger, and for how long rows are held."""

    def __init__(self, *, per_host: int = 1) -> None:
        super().__init__(per_host=per_host)
        self.given_back: list[str] = []
        self.holds: list[int] = []
        self._pending = self.ledger.pending
        self.ledger.put_back = self._watch_put_back  # type: ignore[method-assign]
        self.ledger.pending = self._watch_pending  # type: ignore[method-assign]

    async def _watch_put_back(self, rows: Collection[OutboxRow]) -> None:
        self.given_back += [row.job_id for row in rows]

    async def _watch_pending(self, query: PendingQuery) -> list[OutboxRow]:
        self.holds.append(query.hold_ms)
        return await self._pending(query)

    def notices(self, caller: "OneAtATime") -> NoticeRunner:
        return NoticeRunner(
            ledger=self.ledger,
            outbox=self.ledger,
            jobs=self.jobs,
            caller=caller,
            hub=self.hub,
            clock=self.clock,
            interval=0.02,
            on_failure=lambda name: None,
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
    async def waiting(self, engine: Watched, there: Peer) -> None:
        """Two calls of a host that may have one, and has it."""
        there.gate.clear()
        for job_id in ("one", "two"):
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

    async def test_who_stops_keeps_nothing(self, there: Peer) -> None:
        engine = Watched()
        await self.waiting(engine, there)
        await engine.calls.stop(0.01)
        assert engine.given_back == ["two"]


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
    async def waiting(self, engine: Watched, caller: OneAtATime) -> NoticeRunner:
        """Two notices for a receiver that may have one, and has it."""
        await engine.ended_jobs("a", "b")
        runner = engine.notices(caller)
        await runner.start_due()
        await caller.began.wait()
        return runner

    async def test_a_notice_is_held_for_longer_than_it_can_take(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        assert engine.holds[-1] > 2 * notices.TIMEOUT_MS
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
