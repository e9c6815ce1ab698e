"""Opens a control plane, runs it, and closes all of it in order."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from lucius.adapters.expressions.expressions import CelTools
from lucius.bootstrap.adapters import open_admission_cache, open_ledger, open_publisher
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.drain import Drain
from lucius.bootstrap.ids import new_lease_id
from lucius.bootstrap.keys import with_shared_secrets
from lucius.bootstrap.reload import Reloader
from lucius.bootstrap.settings import Settings, check_workspace_root
from lucius.core.model.decision import Env
from lucius.engine.supervisor import supervised
from lucius.observability.logs import log_decision
from lucius.observability.readiness import Role
from lucius.ports.clock import Clock, SystemClock
from lucius.ports.errors import SettingsError
from lucius.ports.store import Store
from lucius.private_files import make_data_folder
from lucius.usecases.submit.tenant_pacing import TenantPacer

log = structlog.get_logger(__name__)

NO_KEYS = (
    "NO API KEY IS CONFIGURED, so every request that needs one is refused: list keys under api_keys in the file that "
    "LUCIUS_CONFIG names, or set LUCIUS_DEV_API_KEY (docs/how-to/keys.md)"
)


@asynccontextmanager
async def open_runtime(
    settings: Settings, clock: Clock | None = None, role: Role = Role.WHOLE, drain: Drain | None = None
) -> AsyncIterator[ControlPlane]:
    """Open a control plane and start its engine unless another process runs it; close all in order on exit."""
    check_workspace_root(settings)
    if role is not Role.WHOLE and not settings.shares_ledger:
        raise SettingsError(
            f"a {settings.ledger_scheme} ledger belongs to one process, which hosts both API and engine: it can't run "
            f"the {role} alone; that needs a ledger that processes can share"
        )
    env = Env(new_id=new_lease_id, jitter=random.random, defaults=settings.defaults, tools=CelTools())
    _open_data_folder(settings)
    async with AsyncExitStack() as parts:
        store = await open_ledger(settings)
        await parts.enter_async_context(_closed("ledger", store.close))
        settings = await with_shared_secrets(settings, store.secrets)
        clock = clock or store.clock or SystemClock()
        publisher = open_publisher(settings, clock)
        if publisher is not None:
            await parts.enter_async_context(_closed("bus", publisher.close))
        admission_cache = open_admission_cache(settings)
        if admission_cache is not None:
            await parts.enter_async_context(_closed("admission cache", admission_cache.close))
        pacer = _pacer(settings, store)
        runtime = ControlPlane(
            settings,
            store,
            publisher,
            clock,
            env,
            role=role,
            drain=drain,
            admission_cache=admission_cache,
            pacer=pacer,
        )
        await runtime.protocols.refresh()
        attach(runtime)
        if role in (Role.WHOLE, Role.API) and not (settings.dev_api_key or runtime.config.current().api_keys):
            log.warning(NO_KEYS)
        if pacer is not None:
            runtime.notifier.observers.append(pacer.committed)
            runtime.metrics.paced_tenants.set_function(pacer.paced_tenants)
        if store.liveness is not None and role in (Role.WHOLE, Role.API):
            await store.liveness.advertise(lambda: not runtime.drain.asked.is_set())
        await parts.enter_async_context(_closed("services", runtime.services.flush))
        await _start(runtime, role, parts)
        yield runtime


async def _start(runtime: ControlPlane, role: Role, parts: AsyncExitStack) -> None:
    """Start the engine's loops, the engine and the background tasks, each of which `parts` stops."""
    drain = runtime.drain
    await parts.enter_async_context(_closed("loops", lambda: runtime.loops.stop(0)))
    await parts.enter_async_context(_closed("loops", lambda: drain.unless_at_once(runtime.loops.stop(drain.left()))))
    await parts.enter_async_context(_closed("engine", lambda: drain.unless_at_once(runtime.engine.stop(drain.left()))))
    tasks: list[asyncio.Task[None]] = []
    await parts.enter_async_context(_closed("background tasks", lambda: _stop_background(runtime, tasks)))
    if role in (Role.WHOLE, Role.ENGINE):
        await runtime.loops.start()
        runtime.notifier.relays = runtime.publisher is not None
    await runtime.engine.start()
    loops = {
        "reload": Reloader(runtime).run_once,
        "services": runtime.services.run_once,
        **runtime.admission.loops(),
    }
    tasks += [asyncio.create_task(supervised(*loop, runtime.metrics.loop_failed)) for loop in loops.items()]


async def _stop_background(runtime: ControlPlane, tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    runtime.notifier.close()
    if tasks:
        await runtime.drain.unless_at_once(asyncio.wait(tasks, timeout=runtime.drain.left()))


@asynccontextmanager
async def _closed(name: str, close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Close a part after the block. If an error ends the block, a failure to close is logged and does not hide it."""
    try:
        yield
    except BaseException:
        try:
            await close()
        except Exception:
            log.exception("a part could not be closed", part=name)
        raise
    await close()


def _open_data_folder(settings: Settings) -> None:
    """Restrict the data directory to its owner, if this process keeps anything in it."""
    if settings.data_dir.exists() or not settings.shares_ledger:
        try:
            make_data_folder(settings.data_dir)
        except OSError as error:
            raise SettingsError(f"LUCIUS_DATA_DIR: can't use {settings.data_dir}: {error.strerror}") from None


def _pacer(settings: Settings, store: Store) -> TenantPacer | None:
    if settings.tenant_share == 1:
        return None
    return TenantPacer(lambda: time.thread_time() + store.blocked_time.seconds, max_share=settings.tenant_share)


def attach(runtime: ControlPlane) -> None:
    """Connect the observers of committed decisions: wake-ups, metrics, logs."""
    runtime.notifier.observers.extend((runtime.metrics.committed, log_decision, runtime.admission.committed))
    hooks = runtime.store.hooks
    hooks.on_commit, hooks.on_end = runtime.notifier.committed, runtime.notifier.ended
    hooks.on_flush = runtime.metrics.flushed
    hooks.on_wake = runtime.notifier.apply_wake
    hooks.awaited = runtime.notifier.awaits
    for refused in (*runtime.protocols.problems(), *runtime.config.problems()):
        for problem in refused.everything:
            log.error("configuration or protocol file refused; everything else is served", problem=str(problem))
