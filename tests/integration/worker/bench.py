"""A runtime between a memory bus and a fake orchestrator, with time that stands still."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from lucius.adapters.bus.memory import MemoryBus
from lucius.ports.bus import Consumer
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.callbacks import CallbackSender
from lucius.worker.idempotency import IdempotencyStore
from lucius.worker.idempotency_sqlite import SqliteIdempotency
from lucius.worker.journal import Journal
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import CLAIM_TTL_SECONDS, Runtime, RuntimeOptions
from lucius.worker.transport import Transport
from lucius.worker.workspace import Places
from tests.integration.worker.support import FakeOrchestrator, Item, ManualTiming, directive, until


class Scripted:
    """A step with configured behaviour that records its contexts."""

    def __init__(self, act: Callable[[StepContext], Any] | None = None) -> None:
        self.act = act
        self.started: list[StepContext] = []
        self.stopped = 0
        self.gate = asyncio.Event()
        self.service = Service("ocr")
        self.service.step()(self.execute)

    async def execute(self, ctx: StepContext) -> StepResult:
        self.started.append(ctx)
        if self.act is not None:
            found = self.act(ctx)
            assert isinstance(found, StepResult)
            return found
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return StepResult({"done": True})


class Bench:
    """One runtime between a memory bus and a fake orchestrator."""

    def __init__(self, orchestrator: FakeOrchestrator, timing: ManualTiming, transport: Transport) -> None:
        self.orchestrator = orchestrator
        self.timing = timing
        self.bus = MemoryBus()
        self.sender = CallbackSender(orchestrator.url, transport, timing)
        self.running: asyncio.Task[None] | None = None

    def start(
        self,
        serving: "Scripted | Service",
        concurrency: int = 4,
        grace: float = 10.0,
        journal: Journal | None = None,
        store: IdempotencyStore | None = None,
        places: Places | None = None,
        consumer: Consumer | None = None,
        metrics: Metrics | None = None,
    ) -> Runtime:
        service = serving.service if isinstance(serving, Scripted) else serving
        options = RuntimeOptions(
            concurrency=concurrency,
            grace_seconds=grace,
            wait_seconds=60,
            max_undelivered=50,
            places=places or Places(),
        )
        consumer = consumer or self.bus.consumer("ocr")
        journal = journal or Journal(None)
        store = store or SqliteIdempotency(journal)
        runtime = Runtime(service, consumer, self.sender, journal, store, options, timing=self.timing, metrics=metrics)
        self.running = asyncio.create_task(runtime.run())
        return runtime

    async def ended(self) -> None:
        """Wait until the runtime has stopped; raise the error it failed with."""
        assert self.running is not None
        async with asyncio.timeout(20):
            await self.running

    async def publish(self, *numbers: int, **changes: Any) -> None:
        for number in numbers:
            await self.bus.publish("global-bus-p3", directive(self.orchestrator.url, number, **changes))

    def pauses(self) -> list[float]:
        """Return all pauses so far, except those of the claim renewal, which runs beside everything."""
        return [pause for pause in self.timing.pauses if pause != CLAIM_TTL_SECONDS / 3]

    def waits(self) -> list[float]:
        """Return the delays of current timers, except those of the claim renewal."""
        return [pause for pause in self.timing.waits if pause != CLAIM_TTL_SECONDS / 3]

    def results(self) -> list[Item]:
        return self.orchestrator.of_type("result")

    async def result(self) -> Item:
        await until(lambda: bool(self.results()))
        return self.results()[0]


@asynccontextmanager
async def bench_for(orchestrator: FakeOrchestrator, timing: ManualTiming) -> AsyncIterator[Bench]:
    async with Transport() as transport:
        bench = Bench(orchestrator, timing, transport)
        sending = asyncio.create_task(bench.sender.run())
        yield bench
        assert not sending.done()
        tasks = [task for task in (bench.running, sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=20)


def fails(error: BaseException) -> Callable[[StepContext], StepResult]:
    def act(_: StepContext) -> StepResult:
        raise error

    return act


async def some_turns() -> None:
    """Run the event loop long enough for pending work to happen."""
    for _ in range(200):
        await asyncio.sleep(0)
