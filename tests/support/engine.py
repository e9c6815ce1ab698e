"""An engine without an API: a memory ledger, the real core, and the parts that a test wants to run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lucius.adapters.expressions import CelTools
from lucius.adapters.http_caller import HttpCaller
from lucius.adapters.ledger_memory import MemoryLedger
from lucius.core.decision import Decision, Defaults, Env
from lucius.core.inputs import Input, Start, Submit
from lucius.core.model import Command, Event, Job, Mode, Step
from lucius.core.protocol import Policies, Protocol, StepSpec, digest
from lucius.core.routing import route
from lucius.engine.calls import CallRunner
from lucius.engine.exchange import Exchange
from lucius.engine.presence import LonePresence
from lucius.engine.sweeper import Sweeper
from lucius.ports.clock import Clock, SystemClock
from lucius.ports.config import CallPolicy
from lucius.service.directives import DirectiveWriter
from lucius.service.dispatch import Dispatcher
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.tokens import TokenSigner
from tests.support.clock import ManualClock

WITHIN = 5.0
SECRETS = {"API_KEY": "s3cr3t-value"}
WEBHOOK_SECRET = "whsec_YW4gb2xkIHNlY3JldCBvZiAyNCBieXRl"
SIGNER = TokenSigner((b"a-secret-that-only-tests-know",))


class Engine:
    """`hosts` is where calls may go. Time stands still unless a test turns it, or lets it flow."""

    def __init__(
        self,
        *hosts: str,
        per_host: int = 8,
        parallel: int = 64,
        retry_interval: float = 0.02,
        time_flows: bool = False,
        max_unacked: int = 1_000,
        on_failure: Callable[[str], None] = lambda name: None,
        sweep_interval: float = 3_600,
    ) -> None:
        self.clock = ManualClock()
        self.hub, self.ledger = Hub(), MemoryLedger()
        clock: Clock = SystemClock() if time_flows else self.clock
        self.ledger.on_commit = self.hub.committed
        self.policy = CallPolicy(hosts=hosts or ("127.0.0.1",), allow_http=True, allow_private=True, per_host=per_host)
        self._ids = 0
        self.env = Env(self._new_id, lambda: 0.5, Defaults(), CelTools())
        self.jobs = Jobs(self.ledger, clock, self.env)
        self.dispatcher = Dispatcher(
            ledger=self.ledger,
            outbox=self.ledger,
            reader=self.ledger,
            jobs=self.jobs,
            hub=self.hub,
            writer=DirectiveWriter("http://127.0.0.1:8080", SIGNER, 60_000, self.env.defaults),
            clock=clock,
            max_unacked=max_unacked,
            jitter=self.env.jitter,
        )
        self.jobs.hands_out = self.dispatcher
        self.caller = HttpCaller(
            policy=lambda: self.policy,
            clock=clock,
            orchestrator_url="http://127.0.0.1:8080",
            secrets=SECRETS,
            webhook_secrets={"DEFAULT": WEBHOOK_SECRET},
        )
        self.calls = CallRunner(
            ledger=self.ledger,
            jobs=self.jobs,
            dispatcher=self.dispatcher,
            caller=self.caller,
            exchange=Exchange(caller=self.caller, ledger=self.ledger, clock=clock, env=self.env),
            hub=self.hub,
            clock=clock,
            retry_interval=retry_interval,
            parallel=parallel,
            on_failure=on_failure,
        )
        self.sweeper = Sweeper(
            ledger=self.ledger,
            jobs=self.jobs,
            presence=LonePresence(clock.now()),
            clock=clock,
            interval=sweep_interval,
            repair_interval=3_600,
            on_action=lambda action: None,
            wake=self.hub.due,
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With calls being made. A turn that fails fails the test."""
        loop = asyncio.create_task(self._turns())
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await self.calls.stop(0.1)
        if not loop.cancelled():
            loop.result()

    async def _turns(self) -> None:
        while True:
            await self.calls.turn()

    async def submit(self, *steps: StepSpec, job_id: str = "job-1", **fields: Any) -> str:
        """A job of these steps. `payload` is its input."""
        protocol = Protocol(
            protocol_id="p", version=1, request_type="P", steps=steps, policies=fields.pop("policies", Policies())
        )
        tenant_id = fields.pop("tenant_id", "acme")
        command = Command(
            tenant_id=tenant_id,
            request_type="P",
            input_ref="blob://in/a.pdf",
            output_ref="blob://out/a.json",
            schema_version="v1",
            workspace_ref=f"file:///w/{job_id}",
            correlation_id="corr-1",
            idempotency_hash=job_id,
            **{"payload": {}, **fields},
        )
        routing = route(tenant_id, None, Mode.DEFAULT, "GLOBAL_CONFIG", "default mode")
        asked = Submit(
            job_id=job_id, command=command, protocol=protocol, protocol_digest=digest(protocol), routing=routing
        )
        await self.jobs.create((asked, Start()))
        return job_id

    async def feed(self, *inputs: Input, job_id: str = "job-1") -> Decision:
        return await self.jobs.apply(job_id, inputs)

    async def job(self, job_id: str = "job-1") -> Job:
        view = await self.ledger.job(job_id)
        assert view is not None
        return view.job

    async def step(self, step_id: str, job_id: str = "job-1") -> Step:
        view = await self.ledger.job(job_id)
        assert view is not None
        return view.steps[step_id]

    async def events(self, type_: str, job_id: str = "job-1") -> Sequence[Event]:
        return [event for event in await self.ledger.events(job_id, 0, 1000) if event.type == type_]

    async def ended(self, job_id: str = "job-1") -> Job:
        async with asyncio.timeout(WITHIN):
            with self.hub.watch_end(job_id) as end:
                if (job := await self.job(job_id)).live:
                    await end.wait()
                    job = await self.job(job_id)
        return job

    async def until(self, step_id: str, status: str, job_id: str = "job-1") -> Step:
        """Wait until the step is in this state."""
        async with asyncio.timeout(WITHIN):
            with self.hub.watch(job_id) as changed:
                while (step := await self.step(step_id, job_id)).status != status:
                    changed.clear()
                    await changed.wait()
        return step

    async def tried_again(self, step_id: str, job_id: str = "job-1") -> None:
        """The step waits for its backoff; let it pass."""
        step = await self.until(step_id, "FAILED_RETRY", job_id)
        assert step.retry_at is not None
        self.clock.time = max(self.clock.time, step.retry_at)
        await self.sweeper.sweep()
