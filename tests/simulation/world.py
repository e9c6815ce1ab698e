"""World of one seed: faults for a while, then none, and everything must come to its end."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from unittest import mock

import structlog
from msgspec import Struct
from msgspec.structs import replace

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.ledger import group_commit
from lucius.adapters.ledger.memory.store import open_memory
from lucius.bootstrap import control_plane
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import attach
from lucius.core.decide import changeset
from lucius.core.model.decision import Env
from lucius.core.model.statuses import JobStatus, OutboxStatus, StepStatus
from lucius.core.steps import external_call
from lucius.engine.embedded import relay, sweeper
from lucius.observability.metrics import Metrics
from lucius.ports.clock import SystemClock
from lucius.ports.errors import LedgerFull
from tests.simulation.broker import Broker
from tests.simulation.clients import WHO, Client
from tests.simulation.clock import LoopClock, OutOfSteps, VirtualLoop
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.monitor import Monitor
from tests.simulation.outside import Outside
from tests.simulation.people import People
from tests.simulation.process import Fleet, Network, Process, Unanswered
from tests.simulation.protocols import SERVICES
from tests.simulation.rest import look_at_calm, look_at_clocks, look_at_the_end, look_at_varied_calm
from tests.simulation.scenery import LEASE_SLACK_MS, FixedProtocols, draw_settings
from tests.simulation.services import Service
from tests.simulation.trace import Broken

MAX_STEPS = 60_000
CLIENTS, VARIED_CLIENTS = (3, 8), (2, 5)
FEW_ROWS = 16  # rows per decision: the next decision continues the rest, and anything may happen in between
METRICS = Metrics(
    open_memory().jobs, open_memory().reviews, SystemClock()
)  # shared: registering metric names in every world takes time
TOOLS = CelTools()  # shared: caches only compiled expressions
REST_WITHIN = 240.0  # seconds within which every job ends once faults are off
ECHOES = 6.0  # seconds for which earlier requests of operators may still be on their way
AFTERMATH, VARIED_AFTERMATH = 12.0, 6.0  # seconds in which late messages must change nothing


class Outcome(Struct, frozen=True):
    seed: int
    digest: str
    steps: int
    virtual_seconds: float
    jobs: Counter[JobStatus]
    counts: Counter[str]


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.loop = loop = VirtualLoop(rng, shuffle=rng.random() < 0.7, max_steps=MAX_STEPS)
        self.varied = seed % 2 == 1  # protocols of every kind and operators; else tasks in sequence
        self.pushes = rng.random() < 0.55
        self.settings = draw_settings(rng, self.pushes)
        self.faults = Faults(rng)
        self.disk = Disk(self.faults, rng)
        limits = self.settings.max_unacked, self.settings.tenant_inflight
        self.monitor = Monitor(loop, self.disk, self.faults, self.settings.defaults, limits, varied=self.varied)
        gap_ms = max(sweeper.GAP_MS, round(self.settings.sweep_interval * 4000))
        self.fleet = Fleet(loop, rng, self.disk, self.faults, self.monitor, self._build, gap_ms)
        self.network = Network(loop, rng, self.faults, self.fleet)
        self.broker = Broker(loop, rng, self.faults, self.monitor, self.settings.publish_timeout)
        self.outside = Outside(rng, self.faults, self.monitor, LoopClock(loop))
        self.people = People(loop, rng, self.disk, self.faults, self.monitor, self.network)
        self.replicas = 2 if rng.random() < 0.35 else 1
        self.window = rng.uniform(8.0, 20.0)
        self.batch, self.group = rng.choice((3, 200)), rng.choice((1, 3, 256))
        self.rows = rng.choice((changeset.MAX_DECISION_ROWS, changeset.MAX_DECISION_ROWS, FEW_ROWS))
        self._protocols = FixedProtocols(rng, varied=self.varied)
        self._ids = count(1)
        self._freeze_in: dict[tuple[str, str], float] = {}
        self.disk.on_read = self._reading
        self.clients = [
            self._client(number) for number in range(rng.randint(*(VARIED_CLIENTS if self.varied else CLIENTS)))
        ]

    def _client(self, number: int) -> Client:
        rng = self.rng
        request_type = rng.choice([protocol.request_type for protocol in self._protocols.list()])
        items = [rng.randint(1, 9) for _ in range(rng.randint(0, 6))] if self.varied else []
        payload = {"n": rng.randint(1, 9), "items": items} if self.varied else {}
        clock = LoopClock(self.loop)
        return Client(number, request_type, rng, self.disk, self.faults, self.monitor, self.network, clock, payload)

    def new_id(self) -> str:
        return f"id-{next(self._ids):05d}"

    def _build(self, process: Process) -> ControlPlane:
        publisher = self.broker.link(process) if self.pushes else None
        env = Env(self.new_id, self.rng.random, self.settings.defaults, TOOLS)
        clock, caller = LoopClock(self.loop), self.outside.link()
        runtime = ControlPlane(self.settings, process.connection.store, publisher, clock, env, caller)
        attach(runtime)
        return runtime

    def run(self) -> Outcome:
        """Run the seed; raise Broken with the rule, the job's trace, and the command to replay it."""
        with self._surroundings():
            try:
                self.loop.run_until_complete(self._live())
            except OutOfSteps as stuck:
                self.monitor.fail("the world comes to rest", "", str(stuck))
            except RuntimeError:
                if self.monitor.broken is None:
                    raise
            finally:
                self._tear_down()
        if self.monitor.broken is not None:
            replay = f"seed {self.seed}; to see it again: python -m tests.simulation.replay {self.seed}"
            raise Broken(f"{replay}\n{self.monitor.broken}") from None
        return self._outcome()

    def _tear_down(self) -> None:
        """Let every task end, so that none reaches into the next world."""
        self.monitor.deaf = True
        self.loop.drain()
        self.loop.close()

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Patch what the code takes from its environment, so that it comes from the seed too."""
        state, logging = random.getstate(), structlog.get_config()
        random.seed(self.seed)  # used by the supervisor's backoff
        structlog.configure(
            processors=[self.monitor.log],
            wrapper_class=structlog.make_filtering_bound_logger(40),
        )
        try:
            with (
                mock.patch.multiple(control_plane, ProtocolsDir=lambda *_: self._protocols, new_job_id=self.new_id),
                mock.patch.object(control_plane, "Metrics", return_value=METRICS),
                mock.patch.object(external_call, "LEASE_SLACK_MS", LEASE_SLACK_MS),
                mock.patch.object(changeset, "MAX_DECISION_ROWS", self.rows),
                mock.patch.object(group_commit, "MAX_GROUP_DECISIONS", self.group),
                mock.patch.object(relay, "BATCH_ROWS", self.batch),
                mock.patch.object(sweeper, "BATCH_JOBS", self.batch),
            ):
                yield
        finally:
            structlog.configure(**logging)
            random.setstate(state)

    async def _live(self) -> None:
        for slot in range(self.replicas):
            self.fleet.start(slot)
        services = [
            Service(
                name,
                self.loop,
                self.rng,
                self.disk,
                self.faults,
                self.monitor,
                self.fleet,
                self.network,
                varied=self.varied,
            )
            for name in SERVICES
        ]
        listening = [
            self.monitor.watch(self.loop.create_task(service.listen(self.broker) if self.pushes else service.ask()))
            for service in services
            for _ in range(self.rng.randint(1, 2))
        ]
        living = [
            self.monitor.watch(self.loop.create_task(client.live(self.rng.uniform(0, self.window / 2), self.window)))
            for client in self.clients
        ]
        if self.varied:
            listening.append(self.monitor.watch(self.loop.create_task(self.people.meddle())))
        self._plan_trouble()
        await asyncio.sleep(self.window)
        self._heal()
        await self._rest(living)
        look_at_the_end(self.monitor, self.disk)
        await asyncio.sleep(VARIED_AFTERMATH if self.varied else AFTERMATH)
        look_at_the_end(self.monitor, self.disk)
        if self.faults.calm and self.varied:
            look_at_varied_calm(self.monitor, self.disk)
        elif self.faults.calm:
            freely = self.replicas == 1 and self.settings.max_unacked > len(self.clients)
            look_at_calm(self.monitor, self.disk, at_once=freely)
            for client in self.clients if self.replicas == 1 else ():
                late = client.told_after_ms
                self.monitor.require(late <= 100, "ends are told at once", client.job_id, f"after {late} ms")
        for task in (*listening, *living):
            task.cancel()

    async def _rest(self, living: list[asyncio.Task[None]]) -> None:
        deadline, healed_at = self.loop.time() + REST_WITHIN, LoopClock(self.loop).now()
        quiet_at = self.loop.time() + (ECHOES if self.varied else 0.0)
        while self.loop.time() < deadline:
            await asyncio.sleep(1.0)
            if self.varied:
                await self.people.settle()
            look_at_clocks(self.monitor, self.disk, healed_at, LoopClock(self.loop).now())
            ended = all(task.done() for task in living) and not any(r.job.live for r in self.disk.records.values())
            if ended and self.loop.time() >= quiet_at:
                break
        for task, client in zip(living, self.clients, strict=True):
            waits = not task.done()
            self.monitor.require(not waits, "every client is answered", client.job_id, f"{client.name} waits")

    def _heal(self) -> None:
        self.monitor.trace.note("world", "", "nothing goes wrong any more")
        self.faults.on = False
        self.disk.full = self.broker.bus.down = False
        self.fleet.heal()

    # Faults at random moments

    def _plan_trouble(self) -> None:
        acts: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "freeze": self._freeze,
            "bus_down": self._bus_down,
            "disk_full": self._disk_full,
            "drift": self._drift,
            "outbox_retry": self._outbox_retry,
        }
        for kind, times in self.faults.planned.items():
            for _ in range(0 if self.faults.calm else times):
                self.loop.call_later(self.rng.uniform(0, self.window), self._strike, kind, acts[kind])

    def _strike(self, kind: str, act: Callable[[], None]) -> None:
        """Run `act` not at a timer's exact instant but a few callbacks later, in the middle of other work."""

        def strike() -> None:
            if self.faults.on:
                self.faults.saw(kind)
                act()

        self.loop.after_steps(self.rng.randint(0, 60), strike)

    def _crash(self) -> None:
        downtime = self.rng.choice((0.0, 0.5, 3.0, 12.0)) * self.rng.random()
        for slot in range(self.replicas) if self.rng.random() < 0.5 else [self.rng.randrange(self.replicas)]:
            self.fleet.crash(slot, downtime)

    def _freeze(self) -> None:
        """Freeze some processes now, or each in the middle of its next sweep or outbox query."""
        seconds = self.rng.choice((0.5, 3.0, 10.0)) * self.rng.uniform(0.5, 1.0)
        names = self.fleet.names()
        names = names if self.rng.random() < 0.5 else names[:1]
        if self.rng.random() < 0.6:
            self._freeze_in = {(name, self.rng.choice(("due", "pending"))): seconds for name in names}
            return
        for name in names:
            self.fleet.freeze(name, seconds)

    def _reading(self, name: str, what: str) -> bool:
        seconds = self._freeze_in.pop((name, what), None)
        if seconds is None or not self.faults.on:
            return False
        self.fleet.freeze(name, seconds)
        return True

    def _bus_down(self) -> None:
        self.broker.bus.down = True
        self.loop.call_later(self.rng.uniform(0.2, 8.0), setattr, self.broker.bus, "down", False)

    def _disk_full(self) -> None:
        self.disk.full = True
        self.loop.call_later(self.rng.uniform(0.2, 4.0), setattr, self.disk, "full", False)

    def _drift(self) -> None:
        """Take away the outbox row or the clock of a waiting job, which only the repair can restore."""
        for job_id, record in self.disk.records.items():
            pending = [row for row in record.outbox.values() if row.status is OutboxStatus.PENDING]
            waits = {s.attempt.outbox_id for s in record.steps.values() if s.status is StepStatus.DISPATCHING}
            lost = next((row for row in pending if row.outbox_id in waits), None)
            if lost is not None:
                self.monitor.known.drifted.add(job_id)
                self.monitor.trace.note("world", job_id, "loses", lost.outbox_id)
                self.disk.lose_row(lost)
                self.faults.saw("drift_row")
                return
            if record.job.live and record.job.due_at is not None and not pending:
                self.monitor.known.drifted.add(job_id)
                self.monitor.trace.note("world", job_id, "loses its clock")
                record.job = replace(record.job, due_at=None)
                self.faults.saw("drift_clock")
                return

    def _outbox_retry(self) -> None:
        self.loop.create_task(self._ask_outbox_retry())

    async def _ask_outbox_retry(self) -> None:
        with suppress(Unanswered, LedgerFull):
            await self.network.call(lambda process: process.runtime.operations.retry_outbox(WHO, "now"))

    def _outcome(self) -> Outcome:
        jobs = Counter(record.job.status for record in self.disk.records.values())
        return Outcome(
            self.seed, self.monitor.trace.digest(), self.loop.steps, self.loop.time(), jobs, self.faults.counts
        )


def run(seed: int) -> Outcome:
    return World(seed).run()
