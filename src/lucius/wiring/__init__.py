"""The one place that names concrete adapters, and puts a control plane together from them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from lucius.adapters.config_file import ConfigFile
from lucius.adapters.expressions import CelTools
from lucius.adapters.protocol_check import findings
from lucius.adapters.protocols_dir import ProtocolsDir
from lucius.core.decision import Env
from lucius.drain import Drain
from lucius.engine.calls import CallRunner
from lucius.engine.dead_letters import DeadLetterRunner
from lucius.engine.embedded import QUIET_SECONDS, EmbeddedEngine
from lucius.engine.exchange import Exchange
from lucius.engine.notices import NoticeRunner
from lucius.engine.presence import LonePresence
from lucius.engine.relay import Relay
from lucius.engine.supervise import supervised
from lucius.engine.sweeper import Sweeper
from lucius.ids import new_job_id, new_lease_id
from lucius.observability.logs import log_decision
from lucius.observability.metrics import Metrics
from lucius.observability.readiness import Readiness, Role, readiness_of
from lucius.ports.bus import Publisher
from lucius.ports.calls import Caller
from lucius.ports.clock import Clock, SystemClock
from lucius.ports.config import ConfigSource
from lucius.ports.gates import Gate
from lucius.ports.peers import MOST_STRETCH, Presence
from lucius.service.acts import Limits
from lucius.service.admission import Admission
from lucius.service.auth import Authenticator, dev_key
from lucius.service.callbacks import Callbacks
from lucius.service.catalog import Catalog
from lucius.service.config import LimitDefaults
from lucius.service.directives import DirectiveWriter
from lucius.service.dispatch import Dispatcher
from lucius.service.hub import Hub
from lucius.service.ingress import Ingress
from lucius.service.jobs import Jobs
from lucius.service.operations import Operations
from lucius.service.queries import Queries
from lucius.service.reviews import Reviews
from lucius.service.tokens import TokenSigner
from lucius.settings import Settings, SettingsError
from lucius.wiring.adapters import Store, open_caller, open_dead_letters, open_gate, open_ledger, open_publisher
from lucius.wiring.keys import token_secrets, with_shared_secrets

if TYPE_CHECKING:
    from lucius.engine.temporal.setup import TemporalEngine

log = structlog.get_logger(__name__)

SWEEP_INTERVAL = 0.2
SHARED_SWEEP_INTERVAL = 2.0  # replicas tell each other what is due sooner


class Runtime(Struct, frozen=True, kw_only=True):
    """A control plane, wired and ready to serve."""

    settings: Settings
    store: Store
    hub: Hub
    jobs: Jobs
    auth: Authenticator
    admission: Admission
    ingress: Ingress
    callbacks: Callbacks
    dispatcher: Dispatcher
    queries: Queries
    operations: Operations
    reviews: Reviews
    protocols: Catalog
    config: ConfigSource
    metrics: Metrics
    engine: EmbeddedEngine
    temporal: "TemporalEngine | None"
    publisher: Publisher | None
    readiness: Readiness
    drain: Drain
    clock: Clock


def build(
    settings: Settings,
    store: Store,
    publisher: Publisher | None,
    clock: Clock,
    env: Env,
    caller: Caller | None = None,
    role: Role = Role.WHOLE,
    drain: Drain | None = None,
    gate: Gate | None = None,
) -> Runtime:
    """Put the parts together. Opens and starts nothing."""
    drain = drain or Drain()
    shared = store.presence is not None
    hub, metrics = Hub(clock if shared else None), Metrics(store, clock)
    if store.presence is not None:
        hub.stretch = store.presence.stretch
    presence = store.presence or LonePresence(clock.now())
    temporal = _temporal(settings, store, publisher, presence, clock, env, role, metrics)
    jobs = temporal.jobs if temporal is not None else Jobs(store, clock, env)
    signer = TokenSigner(token_secrets(settings))
    config = ConfigFile(settings.config_path)
    folders = (settings.protocols_dir,) if settings.protocols_dir else ()
    files = ProtocolsDir(env.tools, *folders)
    protocols = Catalog(files, store, clock, lambda protocol: findings(protocol, env.tools))
    auth = Authenticator((dev_key(settings.dev_api_key),) if settings.dev_api_key else ())
    auth.use(config.current())
    writer = DirectiveWriter(settings.orchestrator_url, signer, settings.late_window_ms, settings.defaults)
    dispatcher = Dispatcher(
        ledger=store,
        outbox=store,
        reader=store,
        jobs=jobs,
        hub=hub,
        writer=writer,
        clock=clock,
        max_unacked=settings.max_unacked,
        jitter=env.jitter,
        on_failure=metrics.loop_failed,
    )
    if publisher is None:
        jobs.hands_out = dispatcher
    defaults = LimitDefaults(settings.global_inflight, settings.tenant_inflight)
    limits = Limits(config, defaults)
    admission = Admission(gate, store)
    ingress = Ingress(
        ledger=store,
        jobs=jobs,
        admission=admission,
        protocols=protocols,
        config=config,
        limits=defaults,
        workspace_root=settings.workspace_root,
        new_job_id=new_job_id,
        engine=settings.new_jobs_engine,
    )
    queries = Queries(store, store, hub, env, settings.max_unacked, settings.temporal_workflows_url)
    caller = caller or open_caller(settings, config, clock)
    calls = CallRunner(
        ledger=store,
        jobs=jobs,
        dispatcher=dispatcher,
        caller=caller,
        exchange=Exchange(caller=caller, ledger=store, clock=clock, env=env),
        hub=hub,
        clock=clock,
        retry_interval=settings.outbox_retry_interval,
        on_failure=metrics.loop_failed,
    )
    notices = NoticeRunner(
        ledger=store,
        outbox=store,
        jobs=jobs,
        caller=caller,
        hub=hub,
        clock=clock,
        interval=settings.outbox_retry_interval,
        on_failure=metrics.loop_failed,
    )
    engine = _engine(settings, store, jobs, dispatcher, publisher, calls, notices, hub, presence, clock, metrics, env)
    if temporal is not None:
        temporal.prepare(store, dispatcher, publisher, caller, clock, env)
    return Runtime(
        settings=settings,
        store=store,
        hub=hub,
        jobs=jobs,
        auth=auth,
        admission=admission,
        ingress=ingress,
        callbacks=Callbacks(jobs, store, signer, clock, settings.late_window_ms),
        dispatcher=dispatcher,
        queries=queries,
        operations=Operations(store, jobs, queries, hub, limits),
        reviews=Reviews(store, store, jobs, queries, limits),
        protocols=protocols,
        config=config,
        metrics=metrics,
        engine=engine,
        temporal=temporal,
        publisher=publisher,
        readiness=readiness_of(
            role,
            ledger=store,
            refused=jobs.refused,
            publisher=publisher,
            protocols=protocols,
            engine=temporal if role is Role.WORKER and temporal is not None else engine,
            presence=store.presence,
            clock=clock,
            draining=drain.asked.is_set,
            away=temporal.away if temporal is not None else None,
        ),
        drain=drain,
        clock=clock,
    )


def _temporal(
    settings: Settings,
    store: Store,
    publisher: Publisher | None,
    presence: Presence,
    clock: Clock,
    env: Env,
    role: Role,
    metrics: Metrics,
) -> "TemporalEngine | None":
    if settings.engine != "temporal":
        return None
    try:
        from lucius.engine.temporal.setup import TemporalEngine
    except ModuleNotFoundError as error:
        raise SettingsError(f"LUCIUS_ENGINE=temporal: {error}; install lucius[temporal]") from None
    works = role is Role.WORKER or (role is Role.WHOLE and not settings.shares_ledger)
    return TemporalEngine(
        settings, store, presence, clock, env, publishes=publisher is not None, works=works, on_repair=metrics.swept
    )


def _engine(
    settings: Settings,
    store: Store,
    jobs: Jobs,
    dispatcher: Dispatcher,
    publisher: Publisher | None,
    calls: CallRunner,
    notices: NoticeRunner,
    hub: Hub,
    presence: Presence,
    clock: Clock,
    metrics: Metrics,
    env: Env,
) -> EmbeddedEngine:
    sweeper = Sweeper(
        ledger=store,
        jobs=jobs,
        presence=presence,
        clock=clock,
        interval=settings.sweep_interval
        or (SHARED_SWEEP_INTERVAL * random.uniform(0.8, 1.2) if store.presence else SWEEP_INTERVAL),
        repair_interval=settings.repair_interval,
        on_action=metrics.swept,
        wake=hub.due,
        jitter=env.jitter,
    )
    intervals = (settings.sweep_interval, settings.repair_interval, settings.outbox_retry_interval)
    rarer = MOST_STRETCH if store.presence else 1
    quiet_seconds = QUIET_SECONDS + rarer * max(*intervals, 3 * settings.publish_timeout)
    if publisher is None:
        return EmbeddedEngine(sweeper, None, calls, notices, metrics.loop_failed, quiet_seconds)
    relay = Relay(
        outbox=store,
        jobs=jobs,
        dispatcher=dispatcher,
        publisher=publisher,
        hub=hub,
        clock=clock,
        retry_interval=settings.outbox_retry_interval,
        publish_timeout=settings.publish_timeout,
        jitter=env.jitter,
        shared=store.presence is not None,
        on_failure=metrics.loop_failed,
        at_work_since=sweeper.at_work_since,
    )
    letters = open_dead_letters(settings)
    dead_letters = None
    if letters is not None:
        dead_letters = DeadLetterRunner(
            letters, jobs, clock, settings.outbox_retry_interval, env.jitter, metrics.loop_failed
        )
    return EmbeddedEngine(sweeper, relay, calls, notices, metrics.loop_failed, quiet_seconds, dead_letters=dead_letters)


@asynccontextmanager
async def open_runtime(
    settings: Settings, clock: Clock | None = None, role: Role = Role.WHOLE, drain: Drain | None = None
) -> AsyncIterator[Runtime]:
    """A control plane, with its engine running unless another process has it; closed in order when the block ends."""
    if role is not Role.WHOLE and not settings.shares_ledger:
        raise SettingsError(
            f"a {settings.ledger_scheme} ledger belongs to one process, which hosts both API and engine: it can't run "
            f"the {role} alone; that needs a ledger that processes can share"
        )
    env = Env(new_id=new_lease_id, jitter=random.random, defaults=settings.defaults, tools=CelTools())
    store = await open_ledger(settings)
    try:
        settings = await with_shared_secrets(settings, store.secrets)
        clock = clock or store.clock or SystemClock()
        runtime = build(
            settings,
            store,
            open_publisher(settings, clock),
            clock,
            env,
            role=role,
            drain=drain,
            gate=open_gate(settings),
        )
        await runtime.protocols.refresh()
        attach(runtime)
        if store.presence is not None and role in (Role.WHOLE, Role.API):
            await store.presence.serve(lambda: not runtime.drain.asked.is_set())
        if role in (Role.WHOLE, Role.ENGINE):
            await runtime.engine.start()
            runtime.hub.relays = runtime.publisher is not None
        loops = {"reload": lambda: _reload(runtime), **runtime.admission.loops()}
        if runtime.temporal is not None:
            await runtime.temporal.start()
            loops |= {"temporal": runtime.temporal.watch}
            if role in (Role.WHOLE, Role.ENGINE):
                loops |= runtime.temporal.loops(runtime.hub.stretch)
        tasks = [asyncio.create_task(supervised(*loop, runtime.metrics.loop_failed)) for loop in loops.items()]
        try:
            yield runtime
        finally:
            for task in tasks:
                task.cancel()
            runtime.hub.close()
            if runtime.temporal is not None:
                await runtime.drain.unless_at_once(runtime.temporal.stop(runtime.drain.left()))
            await runtime.drain.unless_at_once(runtime.engine.stop(runtime.drain.left()))
            await runtime.engine.stop(0)
            await runtime.admission.close()
            if runtime.publisher is not None:
                await runtime.publisher.close()
    finally:
        await store.close()


def attach(runtime: Runtime) -> None:
    """Let what follows a durable decision follow it: wake-ups, metrics, logs."""
    runtime.hub.observers.extend((runtime.metrics.committed, log_decision, runtime.admission.committed))
    runtime.store.on_commit, runtime.store.on_end = runtime.hub.committed, runtime.hub.ended
    runtime.store.on_flush = runtime.metrics.flushed
    runtime.store.on_wake = runtime.hub.heard
    if runtime.temporal is not None:
        runtime.hub.on_told.append(runtime.temporal.overheard.hear)
    runtime.store.awaited = runtime.hub.awaits
    for problem in (*runtime.protocols.problems(), *runtime.config.problems()):
        log.error("refused, the rest goes on", problem=str(problem))


async def _reload(runtime: Runtime) -> None:
    presence = runtime.store.presence
    with suppress(TimeoutError):
        async with asyncio.timeout(runtime.settings.reload_interval * (presence.stretch() if presence else 1)):
            await runtime.hub.protocols.wait()
    runtime.hub.protocols.clear()
    if await runtime.protocols.refresh():
        log.info("protocols reloaded", problems=[str(problem) for problem in runtime.protocols.problems()])
    refused = runtime.config.problems()
    if runtime.config.refresh():
        runtime.auth.use(runtime.config.current())
        log.info("config reloaded")
    for problem in runtime.config.problems():
        if problem not in refused:
            log.error("config refused, the one before stays in force", problem=str(problem))
