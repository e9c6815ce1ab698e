"""The one module that names concrete adapters: a URL picks each, imported only when chosen."""

import asyncio
import base64
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

import structlog
from msgspec import Struct
from msgspec.structs import replace

from lucius.adapters.config_file import ConfigFile
from lucius.adapters.expressions import CelTools
from lucius.adapters.protocol_check import findings
from lucius.adapters.protocols_dir import ProtocolsDir
from lucius.core.decision import Decision, Env
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
from lucius.ports.archive import ArchiveFiles, FinishedJobs
from lucius.ports.bus import DeadLetters, Publisher
from lucius.ports.calls import Caller
from lucius.ports.clock import Clock, SystemClock
from lucius.ports.config import ConfigSource
from lucius.ports.errors import CallRefused
from lucius.ports.gates import Gate
from lucius.ports.inbox import Inbox
from lucius.ports.ledger import Ledger, Outbox, Reader, ReviewReader
from lucius.ports.peers import MOST_STRETCH, Presence, SharedSecrets, Wake
from lucius.ports.protocols import ProtocolStore
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
from lucius.service.tokens import MIN_SECRET, TokenSigner
from lucius.settings import Settings, SettingsError

if TYPE_CHECKING:
    from lucius.engine.temporal.setup import TemporalEngine

log = structlog.get_logger(__name__)

SWEEP_INTERVAL = 0.2
SHARED_SWEEP_INTERVAL = 2.0  # replicas tell each other what is due sooner


class Store(Ledger, Outbox, Reader, ReviewReader, ProtocolStore, Inbox, Protocol):
    """A ledger that can be read from as well, and that says when a decision has become durable, here or elsewhere.

    One that several processes share knows whether they are there.
    """

    presence: Presence | None
    secrets: SharedSecrets | None
    clock: Clock | None
    awaited: Callable[[str, int], bool]

    on_commit: Callable[[Decision], None] | None
    on_flush: Callable[[int, float], None] | None
    on_wake: Callable[[Wake], None] | None


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


async def open_ledger(settings: Settings) -> Store:
    """Raises LedgerBusy, LedgerDown, LedgerTooNew, LedgerCorrupt or SettingsError."""
    scheme, _, rest = settings.ledger_url.partition(":")
    match scheme:
        case "sqlite":
            from lucius.adapters.ledger_sqlite import SqliteLedger

            path = Path(rest.removeprefix("///"))  # sqlite:///relative.db, sqlite:////absolute.db
            path.parent.mkdir(parents=True, exist_ok=True)
            return SqliteLedger.open(path, max_page_count=settings.ledger_max_pages)
        case "memory":
            from lucius.adapters.ledger_memory import MemoryLedger

            return MemoryLedger()
        case "postgresql" | "postgres":
            try:
                from lucius.adapters.ledger_postgres import PostgresLedger
            except ModuleNotFoundError as error:
                raise SettingsError(f"LUCIUS_LEDGER_URL: {error}; install lucius[postgres]") from None
            return await PostgresLedger.open(settings.ledger_url, settings.ledger_connections)
        case _:
            known = "sqlite:///path, memory:, postgresql://…"
            raise SettingsError(f"LUCIUS_LEDGER_URL: no ledger for {scheme!r}; known: {known}")


@asynccontextmanager
async def open_finished_jobs(settings: Settings) -> AsyncIterator[FinishedJobs]:
    """The ledger's other door. Raises what `open_ledger` does."""
    scheme, _, rest = settings.ledger_url.partition(":")
    match scheme:
        case "sqlite":
            from lucius.adapters.sqlite.archive import SqliteFinishedJobs

            with SqliteFinishedJobs.open(Path(rest.removeprefix("///"))) as jobs:
                yield jobs
        case "postgresql" | "postgres":
            try:
                from lucius.adapters.postgres.archive import PostgresFinishedJobs
            except ModuleNotFoundError as error:
                raise SettingsError(f"LUCIUS_LEDGER_URL: {error}; install lucius[postgres]") from None
            async with PostgresFinishedJobs.open(settings.ledger_url) as shared:
                yield shared
        case _:
            known = "sqlite:///path, postgresql://…"
            raise SettingsError(f"LUCIUS_LEDGER_URL: nothing to archive in {scheme!r}; known: {known}")


def open_archive(settings: Settings, folder: Path | None, *, writing: bool) -> AbstractContextManager[ArchiveFiles]:
    """Where finished jobs go: the folder, or a place in the workspace that no tenant can have. Raises SettingsError or
    ArchiveError."""
    from lucius.adapters.archive_folder import ArchiveFolder

    if folder is None:
        root = urlsplit(settings.workspace_root)
        if root.scheme != "file" or not root.path.startswith("/"):
            raise SettingsError("LUCIUS_WORKSPACE_ROOT is no file:///folder: say where archives are with --archive DIR")
        folder = Path(unquote(root.path)) / "lucius" / "_archive"
    return ArchiveFolder.for_writing(folder) if writing else nullcontext(ArchiveFolder(folder))


def open_publisher(settings: Settings) -> Publisher | None:
    """What the relay publishes to; None for a bus that services pull from."""
    match settings.bus_url.partition(":")[0]:
        case "local":
            return None
        case "memory":
            from lucius.adapters.bus_memory import MemoryBus

            return MemoryBus()
        case "redis" | "rediss" | "unix":
            with _understood("LUCIUS_BUS_URL", settings.bus_url):
                from lucius.adapters.bus_redis.publisher import RedisPublisher

                return RedisPublisher(settings.bus_url, most_waiting=4 * settings.max_unacked)
        case other:
            raise SettingsError(f"LUCIUS_BUS_URL: no bus for {other!r}; known: local:, memory:, redis://…")


def open_dead_letters(settings: Settings) -> DeadLetters | None:
    """What the bus puts aside; None for one that gives each message out but once."""
    if settings.bus_url.partition(":")[0] not in ("redis", "rediss", "unix"):
        return None
    with _understood("LUCIUS_BUS_URL", settings.bus_url):
        from lucius.adapters.bus_redis.dead_letters import RedisDeadLetters

        return RedisDeadLetters(settings.bus_url)


def open_gate(settings: Settings) -> Gate | None:
    """What refuses before the ledger is asked; None unless it is wanted. Connects to nothing yet."""
    if not settings.gate_url:
        return None
    with _understood("LUCIUS_GATE_URL", settings.gate_url):
        from lucius.adapters.gates_redis import RedisGate

        return RedisGate(settings.gate_url)


@contextmanager
def _understood(variable: str, url: str) -> Iterator[None]:
    """Raises SettingsError for a Redis URL that can't be one, or whose packages are not there."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{variable}: redis:// needs the extra: pip install 'lucius[redis]'") from error
    except ValueError as error:
        said = str(error)
        if "@" in url:  # it may quote what it took for the port, which may be half a password
            said = "not a URL that can be used; special characters in a password are written as %XX"
        raise SettingsError(f"{variable}: {said}") from None


def open_caller(settings: Settings, config: ConfigSource, clock: Clock) -> Caller:
    """What sends HTTP for the steps that call out. Raises SettingsError."""
    from lucius.adapters.http_caller import HttpCaller

    try:
        return HttpCaller(
            policy=lambda: config.current().calls,
            clock=clock,
            orchestrator_url=settings.orchestrator_url,
            secrets=settings.secrets,
            webhook_secrets=_webhook_secrets(settings),
            callbacks=lambda: config.current().callbacks,
        )
    except CallRefused as refused:
        raise SettingsError(f"LUCIUS_ORCHESTRATOR_URL: {refused.message}") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None


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
    temporal = _temporal(settings, store, publisher, clock, env, role, metrics)
    jobs = temporal.jobs if temporal is not None else Jobs(store, clock, env)
    signer = TokenSigner(_token_secrets(settings))
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
    )
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
    engine = _engine(settings, store, jobs, dispatcher, publisher, calls, notices, hub, clock, metrics, env)
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
        settings, store, clock, env, publishes=publisher is not None, works=works, on_repair=metrics.swept
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
    clock: Clock,
    metrics: Metrics,
    env: Env,
) -> EmbeddedEngine:
    sweeper = Sweeper(
        ledger=store,
        jobs=jobs,
        presence=store.presence or LonePresence(clock.now()),
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
    )
    letters = open_dead_letters(settings)
    dead_letters = DeadLetterRunner(letters, jobs, settings.outbox_retry_interval) if letters else None
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
        settings = await _with_shared_secrets(settings, store)
        runtime = build(
            settings,
            store,
            open_publisher(settings),
            clock or store.clock or SystemClock(),
            env,
            role=role,
            drain=drain,
            gate=open_gate(settings),
        )
        await runtime.protocols.refresh()
        attach(runtime)
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
    runtime.store.on_commit = runtime.hub.committed
    runtime.store.on_flush = runtime.metrics.flushed
    runtime.store.on_wake = runtime.hub.heard
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


async def _with_shared_secrets(settings: Settings, store: Store) -> Settings:
    """Replicas need the same: what the environment does not say comes from the ledger that they share."""
    if store.secrets is None:
        return settings
    tokens, webhooks = settings.token_secrets, settings.webhook_secrets
    if not tokens:
        tokens = (await store.secrets.secret("token", secrets.token_hex(32)),)
    if "DEFAULT" not in webhooks:
        webhooks = {**webhooks, "DEFAULT": await store.secrets.secret("webhook", _new_webhook_secret())}
    return replace(settings, token_secrets=tokens, webhook_secrets=webhooks)


def _token_secrets(settings: Settings) -> tuple[bytes, ...]:
    """The secrets of the settings, or one of our own that outlives a restart."""
    if any(len(secret) < MIN_SECRET for secret in settings.token_secrets):
        raise SettingsError(f"LUCIUS_TOKEN_SECRET: each secret needs at least {MIN_SECRET} characters")
    if settings.token_secrets:
        return tuple(secret.encode() for secret in settings.token_secrets)
    path = settings.data_dir / "token.secret"
    kept = path.read_bytes() if path.exists() else b""
    return (kept if len(kept) >= MIN_SECRET else _new_secret(path, secrets.token_hex(32)),)


def _webhook_secrets(settings: Settings) -> dict[str, str]:
    """The secrets of the settings, and a default of our own that outlives a restart: nothing goes out unsigned."""
    path = settings.webhook_secret_file
    if path is None:
        return settings.webhook_secrets
    kept = path.read_text().strip() if path.exists() else ""
    return {**settings.webhook_secrets, "DEFAULT": kept or _new_secret(path, _new_webhook_secret()).decode()}


def _new_webhook_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def _new_secret(path: Path, made: str) -> bytes:
    """Whole or not there: a half-written secret would keep every later start from working."""
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = made.encode()
    draft = path.with_suffix(f".{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return secret
