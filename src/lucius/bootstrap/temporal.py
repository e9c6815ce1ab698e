"""Wires the Temporal engine: the client that signals workflows and, if asked, the worker that runs them."""

import asyncio
from collections.abc import Callable

from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from lucius.bootstrap.settings import Settings
from lucius.core.model.decision import Env
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.outbound.http_attempt import HttpAttempt
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.background import Background
from lucius.engine.temporal.client import TemporalAddress, connect, tls_of
from lucius.engine.temporal.downtime_grace import DowntimeGrace
from lucius.engine.temporal.engine import TEMPORAL, TemporalEngine
from lucius.engine.temporal.fastpath.fastpath import Fastpath
from lucius.engine.temporal.inbox_redelivery import InboxRedelivery
from lucius.engine.temporal.messages import WorkflowArgs
from lucius.engine.temporal.shortcuts import NoShortcuts
from lucius.engine.temporal.worker import TemporalWorker, WorkerSlots
from lucius.engine.temporal.workflow_client import WorkflowClient
from lucius.engine.temporal.workflow_comparison import WorkflowComparison
from lucius.observability.metrics import Metrics
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.errors import SettingsError
from lucius.ports.http import Caller
from lucius.ports.peers import EngineLiveness
from lucius.ports.store import Store
from lucius.usecases.handover.broker import HandoverBroker
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.unacked_caps import UnackedCaps
from lucius.usecases.notifier import Notifier


def open_temporal_engine(
    settings: Settings,
    store: Store,
    liveness: EngineLiveness,
    clock: Clock,
    env: Env,
    broker: HandoverBroker | None,
    notifier: Notifier,
    metrics: Metrics,
    publisher: Publisher | None,
    *,
    directive_loader: DirectiveLoader,
    unacked_caps: UnackedCaps,
    caller: Callable[[], Caller],
    hosts_worker: bool,
    repairs: bool,
) -> TemporalEngine:
    """Build the Temporal engine of this process; `caller` returns a part that in turn needs the engine.

    With `hosts_worker`, the process also runs workflows; with `repairs`, it finds messages and workflows left behind.
    """
    connection = _Connection(address_of(settings), settings.temporal_metrics)
    workflows = WorkflowClient(
        connection,
        settings.temporal_task_queue,
        WorkflowArgs(publishes=publisher is not None, defaults=env.defaults),
        clock,
        searchable=settings.temporal_search_attributes,
        eager=hosts_worker and settings.temporal_fastpath,
    )
    shortcuts = Fastpath(store.ledger, store.inbox, env.tools) if settings.temporal_fastpath else NoShortcuts()
    notifier.on_inbox_ids.append(shortcuts.on_announcement)

    def make_worker() -> TemporalWorker:
        activities = Activities(
            ledger=store.ledger,
            jobs=store.jobs,
            inbox=store.inbox,
            engine=engine,
            shortcuts=shortcuts,
            directive_loader=directive_loader,
            unacked_caps=unacked_caps,
            publisher=publisher,
            caller=caller(),
            http_attempt=HttpAttempt(caller=caller(), ledger=store.ledger, clock=clock, env=env),
            clock=clock,
            downtime_grace=DowntimeGrace(engine, liveness, clock, lambda: workflows.back_at),
        )
        return TemporalWorker(connection, settings.temporal_task_queue, activities, env.tools, slots_of(settings))

    engine = TemporalEngine(
        store.ledger,
        store.jobs,
        store.inbox,
        clock,
        EmbeddedEngine(store.ledger, clock, env, broker, engines=frozenset({"", TEMPORAL})),
        workflows,
        shortcuts,
        Background(
            workflows,
            InboxRedelivery(store.ledger, store.inbox, clock, workflows, liveness.poll_backoff),
            WorkflowComparison(store.ledger, workflows, metrics.swept, liveness.poll_backoff),
            make_worker=make_worker if hosts_worker else None,
            repairs=repairs,
            on_failure=metrics.loop_failed,
        ),
        on_repair=metrics.swept,
        freed=notifier.freed,
        refuses_when_down=settings.temporal_down == "refuse",
    )
    return engine


class _Connection:
    """Temporal connection of the process, opened on first use."""

    def __init__(self, address: TemporalAddress, metrics: str = "") -> None:
        tls_of(address)  # reports unusable certificate files at start-up
        self._address = address
        self._runtime = measured(metrics) if metrics else None
        self._client: Client | None = None
        self._trying: asyncio.Task[Client] | None = None

    async def __call__(self) -> Client:
        """Return the client; concurrent callers share one attempt, as queued ones would each retry in turn."""
        if self._client is not None:
            return self._client
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(connect(self._address, self._runtime))
        self._client = await asyncio.shield(self._trying)
        return self._client


def measured(address: str) -> Runtime:
    """Serve the SDK's metrics at `address` for Prometheus. Raises SettingsError if it can't listen there."""
    metrics = PrometheusConfig(bind_address=address, durations_as_seconds=True, counters_total_suffix=True)
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=metrics))
    except ValueError as error:
        raise SettingsError(f"LUCIUS_TEMPORAL_METRICS: can't listen on {address}: {error}") from None


def slots_of(settings: Settings) -> WorkerSlots:
    return WorkerSlots(
        workflows=settings.temporal_workflow_slots,
        activities=settings.temporal_activity_slots,
        cached=settings.temporal_cached_workflows,
        pollers=settings.temporal_pollers,
        drain_seconds=settings.drain_seconds,
    )


def address_of(settings: Settings) -> TemporalAddress:
    return TemporalAddress(
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
