"""The Temporal engine as the settings want it: what tells workflows, and, where it is asked for, what runs them."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from lucius.core.decision import Env
from lucius.engine.exchange import Exchange
from lucius.engine.temporal.absence import Absence
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.client import Address, connect, tls_of
from lucius.engine.temporal.jobs import Store, TemporalJobs
from lucius.engine.temporal.overheard import Overheard
from lucius.engine.temporal.wire import Begin
from lucius.engine.temporal.worker import Slots, TemporalWorker
from lucius.engine.temporal.workflows import Workflows
from lucius.ports.bus import Publisher
from lucius.ports.calls import Caller
from lucius.ports.clock import Clock
from lucius.ports.peers import Presence
from lucius.service.dispatch import Dispatcher
from lucius.settings import Settings, SettingsError

INBOX_SECONDS, WORKFLOWS_SECONDS, WATCH_SECONDS = 2.0, 60.0, 2.0


class TemporalEngine:
    """`works` if this process runs workflows, too."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        presence: Presence,
        clock: Clock,
        env: Env,
        *,
        publishes: bool,
        works: bool,
        on_repair: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._presence = presence
        self._connection = _Connection(address_of(settings), settings.temporal_metrics)
        self._works = works
        self._worker: TemporalWorker | None = None
        workflows = Workflows(
            self._connection,
            settings.temporal_task_queue,
            Begin(publishes=publishes, defaults=env.defaults),
            clock,
            searchable=settings.temporal_search_attributes,
            eager=works,
        )
        self._workflows = workflows
        self._ahead = Ahead()
        self.overheard = Overheard(store, self._ahead)
        self.jobs = TemporalJobs(
            store,
            clock,
            env,
            workflows,
            self._ahead,
            on_repair=on_repair,
            refuses_when_down=settings.temporal_down == "refuse",
        )

    def prepare(
        self,
        store: Store,
        dispatcher: Dispatcher,
        publisher: Publisher | None,
        caller: Caller,
        clock: Clock,
        env: Env,
    ) -> None:
        """What needs the parts that need `jobs`."""
        if not self._works:
            return
        activities = Activities(
            ledger=store,
            reader=store,
            inbox=store,
            jobs=self.jobs,
            ahead=self._ahead,
            dispatcher=dispatcher,
            publisher=publisher,
            caller=caller,
            exchange=Exchange(caller=caller, ledger=store, clock=clock, env=env),
            clock=clock,
            tools=env.tools,
            absence=Absence(self.jobs, self._presence, clock, lambda: self._workflows.back_at),
        )
        self._worker = TemporalWorker(
            self._connection, self._settings.temporal_task_queue, activities, env.tools, slots_of(self._settings)
        )

    async def start(self) -> None:
        if self._worker is not None:
            await self._worker.start()

    def loops(self, stretch: Callable[[], float]) -> dict[str, Callable[[], Awaitable[None]]]:
        """What looks after the jobs of workflows; `stretch` times rarer, as others look, too."""

        async def inbox() -> None:
            if not await self.jobs.read_inbox():
                await asyncio.sleep(INBOX_SECONDS * stretch())

        async def workflows() -> None:
            await asyncio.sleep(WORKFLOWS_SECONDS * stretch() * random.uniform(0.5, 1))
            await self.jobs.compare_all()

        return {"inbox": inbox, "workflows": workflows}

    async def watch(self) -> None:
        """Whether Temporal answers, for those who must know before they need it."""
        await self._workflows.check()
        await asyncio.sleep(WATCH_SECONDS)

    @property
    def running(self) -> bool:
        return self._worker is not None and self._worker.running

    def away(self) -> str:
        """Why Temporal could not be reached the last time; empty if it could."""
        return self._workflows.down

    def troubles(self) -> dict[str, str]:
        return self._worker.troubles() if self._worker is not None else {}

    async def stop(self, grace: float) -> None:
        await self.overheard.close()
        await self.jobs.close()
        if self._worker is not None:
            await self._worker.stop(grace)


class _Connection:
    """One for the whole process, made when it is first needed."""

    def __init__(self, address: Address, metrics: str = "") -> None:
        tls_of(address)  # files that can't be used are found at the start
        self._address = address
        self._runtime = measured(metrics) if metrics else None
        self._client: Client | None = None
        self._trying: asyncio.Task[Client] | None = None

    async def __call__(self) -> Client:
        """Whoever comes while one tries hears what became of that: those who wait in a row would each try again."""
        if self._client is not None:
            return self._client
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(connect(self._address, self._runtime))
        self._client = await asyncio.shield(self._trying)
        return self._client


def measured(address: str) -> Runtime:
    """What the SDK counts can be read there, by Prometheus. Raises SettingsError if nobody can listen there."""
    metrics = PrometheusConfig(bind_address=address, durations_as_seconds=True, counters_total_suffix=True)
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=metrics))
    except ValueError as error:
        raise SettingsError(f"LUCIUS_TEMPORAL_METRICS: can't listen on {address}: {error}") from None


def slots_of(settings: Settings) -> Slots:
    return Slots(
        workflows=settings.temporal_workflow_slots,
        activities=settings.temporal_activity_slots,
        cached=settings.temporal_cached_workflows,
        pollers=settings.temporal_pollers,
        drain_seconds=settings.drain_seconds,
    )


def address_of(settings: Settings) -> Address:
    return Address(
        target=settings.temporal_address,
        namespace=settings.temporal_namespace,
        task_queue=settings.temporal_task_queue,
        api_key=settings.temporal_api_key,
        tls=settings.temporal_tls,
        ca_file=settings.temporal_ca_file,
        cert_file=settings.temporal_cert_file,
        key_file=settings.temporal_key_file,
        server_name=settings.temporal_server_name,
        keys=settings.temporal_keys,
    )
