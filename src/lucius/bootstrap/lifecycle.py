"""Opens a control plane, runs it, and closes all of it in order."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from lucius.adapters.expressions.expressions import CelTools
from lucius.bootstrap.adapters import open_admission_cache, open_ledger, open_publisher
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.drain import Drain
from lucius.bootstrap.ids import new_lease_id
from lucius.bootstrap.keys import with_shared_secrets
from lucius.bootstrap.own_files import ref_defaults
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
    store = await open_ledger(settings)
    try:
        settings = await with_shared_secrets(settings, store.secrets)
        clock = clock or store.clock or SystemClock()
        pacer = _pacer(settings, store)
        runtime = ControlPlane(
            settings,
            store,
            open_publisher(settings, clock),
            clock,
            env,
            role=role,
            drain=drain,
            admission_cache=open_admission_cache(settings),
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
        loops = {"reload": lambda: reload(runtime), "services": runtime.services.run_once, **runtime.admission.loops()}
        tasks: list[asyncio.Task[None]] = []
        try:
            if role in (Role.WHOLE, Role.ENGINE):
                await runtime.loops.start()
                runtime.notifier.relays = runtime.publisher is not None
            await runtime.engine.start()
            tasks += [asyncio.create_task(supervised(*loop, runtime.metrics.loop_failed)) for loop in loops.items()]
            yield runtime
        finally:
            for task in tasks:
                task.cancel()
            runtime.notifier.close()
            await runtime.drain.unless_at_once(runtime.engine.stop(runtime.drain.left()))
            await runtime.drain.unless_at_once(runtime.loops.stop(runtime.drain.left()))
            await runtime.loops.stop(0)
            await runtime.admission.close()
            await runtime.services.flush()
            if runtime.publisher is not None:
                await runtime.publisher.close()
    finally:
        await store.close()


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


async def reload(runtime: ControlPlane) -> None:
    """Wait for a changed file, at most `reload_interval`; then use the new protocols, config and keys."""
    liveness = runtime.store.liveness
    with suppress(TimeoutError):
        async with asyncio.timeout(runtime.settings.reload_interval * (liveness.poll_backoff() if liveness else 1)):
            await runtime.notifier.protocols.wait()
    runtime.notifier.protocols.clear()
    if await runtime.protocols.refresh():
        log.info("protocols reloaded", problems=[str(problem) for problem in runtime.protocols.problems()])
    refused = runtime.config.problems()
    if runtime.config.refresh():
        runtime.auth.use(runtime.config.current())
        if runtime.config.problems():
            log.warning("API keys revoked; the rest of the new config is refused")
        else:
            log.info("config reloaded")
    runtime.refs.use_defaults(ref_defaults(runtime.settings))  # symbolic links may lead elsewhere now
    for problem in runtime.config.problems():
        if problem not in refused:
            log.error("config refused; the previous one stays in force", problem=str(problem))
