"""Rows that wait in memory, for a host or a slot, must not be kept from other replicas for long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

import pytest

from lucius.core.model.inputs import Cancel
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import JobStatus
from lucius.core.protocol.definition import WEBHOOK_SERVICE, Call, StepSpec
from lucius.engine.outbound import calls, job_webhooks
from lucius.engine.outbound.job_webhooks import JobWebhooks
from lucius.engine.outbound.runner import OutboundRunner
from lucius.ports.errors import LedgerCorrupt
from lucius.ports.http import Closed, HttpResponse, Outgoing, Slot
from lucius.ports.outbox import PendingQuery
from tests.support.engine import Engine
from tests.support.peer import Peer, peer

MINUTE = 60_000
MANY = [f"t{number}" for number in range(60)]
TASK = StepSpec(step_id="ocr", step_type="OCR", service="ocr")


@pytest.fixture
async def server() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


class Watched(Engine):
    """Records which rows are given back to its ledger, and for how long rows are held."""

    def __init__(self, *, per_host: int = 1, parallel: int = 64) -> None:
        super().__init__(per_host=per_host, parallel=parallel)
        self.taken: set[str] = set()
        self.times_given_back = 0
        self.given_back: list[str] = []
        self.holds: list[int] = []
        self.taking, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self._pending = self.store.outbox.pending
        self.store.outbox.put_back = self._watch_put_back  # type: ignore[method-assign]
        self.store.outbox.pending = self._watch_pending  # type: ignore[method-assign]

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

    def webhook_runner(self, caller: "OneAtATime", parallel: int = 256) -> OutboundRunner:
        webhooks = JobWebhooks(
            ledger=self.ledger,
            engine=self.jobs,
            caller=caller,
            jitter=self.env.jitter,
            on_failure=lambda name: None,
        )
        return OutboundRunner(
            webhooks,
            holds=self.row_holds,
            caller=caller,
            notifier=self.notifier,
            clock=self.clock,
            retry_interval=0.02,
            parallel=parallel,
        )

    async def ended_jobs(self, *tenants: str) -> None:
        """End one job of each tenant, with a webhook due for its client."""
        for tenant_id in tenants:
            await self.ended_job(tenant_id, tenant_id, "https://clients.example/ended")

    async def ended_job(self, job_id: str, tenant_id: str, url: str) -> None:
        await self.submit(TASK, job_id=job_id, tenant_id=tenant_id, callback_urls={"job": url})
        await self.feed(Cancel("test"), job_id=job_id)

    async def nothing_pending(self, runner: OutboundRunner) -> None:
        async with asyncio.timeout(5):
            while await self._pending(PendingQuery(limit=9, now=2**60, service=WEBHOOK_SERVICE)):
                await runner.start_due()
                await asyncio.sleep(0)


class TestCalls:
    async def waiting(self, engine: Watched, server: Peer, calls: int = 2) -> None:
        """Submit `calls` calls to one host and start as many as the host or the slots permit; the rest wait."""
        server.gate.clear()
        for job_id in ("one", "two", *map(str, range(2, calls))):
            spec = StepSpec(step_id="call", kind="external_call", external_call=Call(url=server.url))
            await engine.submit(spec, job_id=job_id)
        await engine.calls.start_due()
        await server.saw(1)

    async def test_call_waiting_for_its_host_is_returned_before_its_hold_ends_and_claimed_again(
        self, server: Peer
    ) -> None:
        engine = Watched()
        await self.waiting(engine, server)
        assert engine.holds == [calls.HOLD_MS]
        await engine.calls.start_due()
        assert engine.given_back == []
        engine.clock.advance(calls.HOLD_MS / 1000)
        await engine.calls.start_due()
        assert engine.given_back == ["two"]
        server.gate.set()
        async with engine.running():
            assert (await engine.ended("two")).status is JobStatus.SUCCEEDED
        assert len(server.seen) == 2

    async def test_runner_claims_at_most_a_few_times_its_parallel_limit(self, server: Peer) -> None:
        engine = Watched(per_host=9, parallel=2)
        await self.waiting(engine, server, 50)
        await engine.calls.start_due()
        assert engine.in_hand() == 2 + 4 * 2
        await engine.calls.stop(0)

    async def test_all_but_a_few_rows_for_a_busy_host_are_returned_in_batches(self, server: Peer) -> None:
        engine = Watched(per_host=1, parallel=2)
        await self.waiting(engine, server, 50)
        while await engine.calls.start_due():
            pass
        assert engine.in_hand() <= 1 + 4 * 2
        assert len(engine.given_back) == len(set(engine.given_back)) == 50 - engine.in_hand()
        assert engine.times_given_back < 20
        await engine.calls.stop(0)

    async def test_stopping_runner_returns_waiting_calls(self, server: Peer) -> None:
        engine = Watched()
        await self.waiting(engine, server)
        await engine.calls.stop(0.01)
        assert engine.given_back == ["two"]

    async def test_runner_stopped_while_claiming_returns_the_claimed_calls(self, server: Peer) -> None:
        engine = Watched()
        spec = StepSpec(step_id="call", kind="external_call", external_call=Call(url=server.url))
        await engine.submit(spec, job_id="one")
        await engine.stopped_while_taking(engine.calls.run_once, engine.calls.stop)
        assert (engine.given_back, server.seen) == (["one"], [])


class OneAtATime:
    """A caller to a single host, which answers once `may_answer` is set."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.may_answer = asyncio.Event()
        self.began = asyncio.Event()
        self._busy = False

    def host(self, url: str, tenant_id: str = "") -> str:
        return "server"

    def admit(self, host: str) -> Slot | Closed:
        if self._busy:
            return Closed()
        self._busy = True
        return Slot(self._release)

    def _release(self) -> None:
        self._busy = False

    async def send(self, call: Outgoing) -> HttpResponse:
        self.sent.append(call.idempotency_key)
        self.began.set()
        await self.may_answer.wait()
        return HttpResponse(status=200, headers={})


class SlowReceivers(OneAtATime):
    """A caller to many hosts; those of tenant `slow` answer once `may_answer` is set, the rest at once."""

    def host(self, url: str, tenant_id: str = "") -> str:
        return f"{url}@{tenant_id}"

    def admit(self, host: str) -> Slot | Closed:
        return Slot(lambda: None)

    async def send(self, call: Outgoing) -> HttpResponse:
        self.sent.append(call.tenant_id)
        if call.tenant_id == "slow":
            await self.may_answer.wait()
        return HttpResponse(status=200, headers={})


class TestJobWebhooks:
    async def waiting(
        self, engine: Watched, caller: OneAtATime, tenants: Sequence[str] = ("a", "b"), parallel: int = 256
    ) -> OutboundRunner:
        """End one job per tenant, with webhooks to a receiver limited to one at a time; return once one is sent."""
        await engine.ended_jobs(*tenants)
        runner = engine.webhook_runner(caller, parallel)
        await runner.start_due()
        await caller.began.wait()
        return runner

    async def test_webhook_row_is_held_for_longer_than_sending_can_take(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        assert (
            engine.holds[-1] >= job_webhooks.WAIT_MS + job_webhooks.TIMEOUT_MS + 3 * MINUTE
        )  # includes time for a ledger in trouble
        await runner.stop(0)

    async def test_runner_claims_at_most_a_few_times_its_parallel_limit(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller, MANY, parallel=2)
        while await runner.start_due():
            pass
        assert engine.in_hand() <= 1 + 4 * 2
        assert engine.times_given_back < 30
        caller.may_answer.set()
        await engine.nothing_pending(runner)
        assert len(set(caller.sent)) == len(caller.sent) == len(MANY)
        await runner.stop()

    async def test_webhooks_that_waited_too_long_are_returned_in_one_batch(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller, MANY)
        while await runner.start_due():
            pass
        assert (engine.in_hand(), engine.times_given_back) == (len(MANY), 0)
        engine.clock.advance(job_webhooks.WAIT_MS / 1000)
        await runner.start_due()
        assert (len(engine.given_back), engine.times_given_back) == (len(MANY) - 1, 1)
        await runner.stop(0)

    async def test_unreadable_jobs_do_not_accumulate_claimed_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, caller = Watched(), OneAtATime()
        await engine.ended_jobs(*MANY)
        runner = engine.webhook_runner(caller, parallel=2)

        async def torn(job_id: str, step_ids: object = (), fresh: bool = False) -> None:
            raise LedgerCorrupt("a row is not what it was")

        monkeypatch.setattr(engine.ledger, "load", torn)
        while await runner.start_due():
            pass
        assert engine.in_hand() <= 2 + 4 * 2
        await runner.stop(0)

    async def test_webhook_that_waited_too_long_is_returned_and_claimed_again_before_sending(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        engine.clock.advance((job_webhooks.HOLD_MS - job_webhooks.TIMEOUT_MS) / 1000)
        caller.may_answer.set()
        await engine.nothing_pending(runner)
        assert engine.given_back == ["b"]
        assert len(set(caller.sent)) == len(caller.sent) == 2
        await runner.stop()

    async def test_webhook_that_waited_briefly_is_sent_under_its_first_hold(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        engine.clock.advance(job_webhooks.TIMEOUT_MS / 1000)
        caller.may_answer.set()
        await engine.nothing_pending(runner)
        assert engine.given_back == []
        await runner.stop()

    async def test_stopping_runner_returns_waiting_webhooks(self) -> None:
        engine, caller = Watched(), OneAtATime()
        runner = await self.waiting(engine, caller)
        await runner.stop(0.01)
        assert engine.given_back == ["b"]

    async def test_runner_stopped_while_claiming_returns_the_claimed_webhooks(self) -> None:
        engine, caller = Watched(), OneAtATime()
        await engine.ended_jobs("a")
        runner = engine.webhook_runner(caller)
        await engine.stopped_while_taking(runner.run_once, runner.stop)
        assert (engine.given_back, caller.sent) == (["a"], [])

    @pytest.mark.parametrize("hosts", [1, 7, 60])
    async def test_slow_receivers_of_one_tenant_do_not_delay_the_webhooks_of_another(self, hosts: int) -> None:
        engine, caller = Watched(), SlowReceivers()
        for i in range(60):
            await engine.ended_job(f"slow-{i}", "slow", f"https://h{i % hosts}.example/")
        runner = engine.webhook_runner(caller, parallel=4)
        await self.settled(runner)
        assert caller.sent == ["slow"] * 4
        await engine.ended_job("quick", "quick", "https://quick.example/")
        await self.settled(runner)
        assert caller.sent[4:] == ["quick"]
        caller.may_answer.set()
        await engine.nothing_pending(runner)
        assert sorted(caller.sent) == ["quick"] + ["slow"] * 60
        await runner.stop()

    async def settled(self, runner: OutboundRunner) -> None:
        """Start due webhooks until none is left, and let the started tasks begin."""
        async with asyncio.timeout(5):
            while await runner.start_due():
                pass
        for _ in range(20):
            await asyncio.sleep(0)
