"""An engine without an API: a memory ledger, the real core, and the parts that a test wants to run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.http.caller import HttpCaller
from lucius.adapters.ledger.memory.store import open_memory
from lucius.core.model.decision import Decision, Defaults, Env
from lucius.core.model.inputs import Input, Start, Submit
from lucius.core.model.records import Command, Event, Job, Step
from lucius.core.model.routing import route
from lucius.core.model.statuses import Mode
from lucius.core.protocol.definition import Policies, ProtocolDefinition, StepSpec, digest
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.embedded.sweeper import Sweeper
from lucius.engine.liveness import SingleProcessLiveness
from lucius.engine.outbound.calls import StepCalls
from lucius.engine.outbound.http_attempt import HttpAttempt
from lucius.engine.outbound.runner import OutboundRunner
from lucius.ports.clock import Clock, SystemClock
from lucius.ports.config import CallPolicy
from lucius.usecases.callbacks.tokens import TokenSigner
from lucius.usecases.handover.broker import HandoverBroker
from lucius.usecases.handover.deliverable_directives import DeliverableDirectives
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.handover_recorder import HandoverRecorder
from lucius.usecases.handover.outbox_handover import OutboxHandover
from lucius.usecases.handover.publish import BusHandover
from lucius.usecases.handover.pull import DirectivePulls
from lucius.usecases.handover.rendering import DirectiveWriter
from lucius.usecases.handover.row_holds import RowHolds
from lucius.usecases.handover.unacked_caps import UnackedCaps
from lucius.usecases.handover.unpublished_claims import UnpublishedClaims
from lucius.usecases.notifier import Notifier
from tests.support.clock import ManualClock

WITHIN = 5.0
SECRETS = {"API_KEY": "s3cr3t-value"}
WEBHOOK_SECRET = "whsec_YW4gb2xkIHNlY3JldCBvZiAyNCBieXRl"
SIGNER = TokenSigner((b"a-secret-that-only-tests-know",))


class Engine:
    """Runs jobs in memory. Calls may only go to `hosts`. Time stands still unless a test advances it or lets it run."""

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
        jitter: float = 0.5,
    ) -> None:
        self.clock = ManualClock()
        self.notifier, self.store = Notifier(), open_memory()
        self.ledger = self.store.ledger
        clock: Clock = SystemClock() if time_flows else self.clock
        self.store.hooks.on_commit = self.notifier.committed
        self.policy = CallPolicy(hosts=hosts or ("127.0.0.1",), allow_http=True, allow_private=True, per_host=per_host)
        self._ids = 0
        self.env = Env(self._new_id, lambda: jitter, Defaults(), CelTools())
        caps = UnackedCaps(self.store.jobs, self.notifier, max_unacked)
        self.broker = HandoverBroker(self.ledger, self.notifier.pulls, caps, self.env.jitter)
        self.jobs = EmbeddedEngine(self.ledger, clock, self.env, self.broker)
        self.row_holds = RowHolds(self.store.outbox, self.notifier, clock, self.env.jitter)
        recorder = HandoverRecorder(self.jobs, self.row_holds, caps, self.notifier)
        writer = DirectiveWriter("http://127.0.0.1:8080", SIGNER, 60_000, self.env.defaults)
        self.directive_loader = DirectiveLoader(self.ledger, writer)
        outbox_handover = OutboxHandover(
            holds=self.row_holds,
            caps=caps,
            recorder=recorder,
            loader=self.directive_loader,
            pulls=self.notifier.pulls,
            pace=self.broker.pace,
            jitter=self.env.jitter,
        )
        deliverable = DeliverableDirectives(self.ledger, self.notifier.pulls, clock, self.directive_loader)
        self.directive_pulls = DirectivePulls(outbox_handover, deliverable, self.notifier, self.broker.pace)
        claims = UnpublishedClaims(self.ledger, recorder, clock, self.env.jitter)
        self.bus_handover = BusHandover(self.row_holds, caps, recorder, self.directive_loader, claims)
        self.caller = HttpCaller(
            policy=lambda: self.policy,
            clock=clock,
            orchestrator_url="http://127.0.0.1:8080",
            secrets=SECRETS,
            webhook_secrets={"DEFAULT": WEBHOOK_SECRET},
        )
        self.step_calls = StepCalls(
            ledger=self.ledger,
            engine=self.jobs,
            caller=self.caller,
            http_attempt=HttpAttempt(caller=self.caller, ledger=self.ledger, clock=clock, env=self.env),
            clock=clock,
            jitter=self.env.jitter,
            on_failure=on_failure,
        )
        self.calls = OutboundRunner(
            self.step_calls,
            holds=self.row_holds,
            caller=self.caller,
            notifier=self.notifier,
            clock=clock,
            retry_interval=retry_interval,
            parallel=parallel,
        )
        self.sweeper = Sweeper(
            ledger=self.ledger,
            engine=self.jobs,
            liveness=SingleProcessLiveness(clock.now()),
            clock=clock,
            interval=sweep_interval,
            repair_interval=3_600,
            on_action=lambda action: None,
            wake=self.notifier.due,
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make calls in the background. An exception in a turn fails the test."""
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
            await self.calls.run_once()

    async def submit(self, *steps: StepSpec, job_id: str = "job-1", **fields: Any) -> str:
        """Submit a job with these steps; `payload` is its input. Return the job id."""
        protocol = ProtocolDefinition(
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
        view = await self.store.jobs.job(job_id)
        assert view is not None
        return view.job

    async def step(self, step_id: str, job_id: str = "job-1") -> Step:
        view = await self.store.jobs.job(job_id)
        assert view is not None
        return view.steps[step_id]

    async def events(self, type_: str, job_id: str = "job-1") -> Sequence[Event]:
        return [event for event in await self.store.history.events(job_id, 0, 1000) if event.type == type_]

    async def ended(self, job_id: str = "job-1") -> Job:
        async with asyncio.timeout(WITHIN):
            with self.notifier.watch_end(job_id) as end:
                if (job := await self.job(job_id)).live:
                    await end.wait()
                    job = await self.job(job_id)
        return job

    async def until(self, step_id: str, status: str, job_id: str = "job-1") -> Step:
        """Wait until the step has this status; return the step."""
        async with asyncio.timeout(WITHIN):
            with self.notifier.watch(job_id) as changed:
                while (step := await self.step(step_id, job_id)).status != status:
                    changed.clear()
                    await changed.wait()
        return step

    async def tried_again(self, step_id: str, job_id: str = "job-1") -> None:
        """Wait until the step is waiting for its backoff, then advance the clock past it and sweep."""
        step = await self.until(step_id, "FAILED_RETRY", job_id)
        assert step.retry_at is not None
        self.clock.time = max(self.clock.time, step.retry_at)
        await self.sweeper.sweep()
