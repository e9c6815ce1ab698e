"""Opens the adapters that the settings' URLs choose; an adapter's packages are imported only if it is chosen."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lucius.bootstrap.keys import webhook_master, webhook_secrets
from lucius.bootstrap.settings import Settings
from lucius.ports.admission import AdmissionCache
from lucius.ports.archive import ArchiveFiles, FinishedJobs
from lucius.ports.bus import DeadLetters, Publisher
from lucius.ports.clock import Clock
from lucius.ports.config import ConfigSource
from lucius.ports.errors import CallRefused, SettingsError
from lucius.ports.http import Caller
from lucius.ports.store import Store
from lucius.usecases.access.webhook_secrets import WebhookSecrets
from lucius.usecases.submit.ref_policy import RefPolicies


async def open_ledger(settings: Settings) -> Store:
    """Open the ledger. Raises LedgerBusy, LedgerDown, LedgerTooNew, LedgerTooOld, LedgerCorrupt or SettingsError."""
    scheme, _, rest = settings.ledger_url.partition(":")
    match scheme:
        case "sqlite":
            from lucius.adapters.ledger.sqlite.store import open_sqlite

            path = Path(rest.removeprefix("///"))  # sqlite:///relative.db, sqlite:////absolute.db
            return open_sqlite(path, max_page_count=settings.ledger_max_pages)
        case "memory":
            from lucius.adapters.ledger.memory.store import open_memory

            return open_memory()
        case "postgresql" | "postgres":
            try:
                from lucius.adapters.ledger.postgres.store import open_postgres
            except ModuleNotFoundError as error:
                raise SettingsError(f"LUCIUS_LEDGER_URL: {error}; install lucius[postgres]") from None
            return await open_postgres(settings.ledger_url, settings.ledger_connections)
        case _:
            known = "sqlite:///path, memory:, postgresql://…"
            raise SettingsError(f"LUCIUS_LEDGER_URL: no ledger for {scheme!r}; known: {known}")


@asynccontextmanager
async def open_finished_jobs(settings: Settings) -> AsyncIterator[FinishedJobs]:
    """Open the ledger for archiving finished jobs. Raises the same errors as `open_ledger`."""
    scheme, _, rest = settings.ledger_url.partition(":")
    match scheme:
        case "sqlite":
            from lucius.adapters.ledger.sqlite.archive import SqliteFinishedJobs

            with SqliteFinishedJobs.open(Path(rest.removeprefix("///"))) as jobs:
                yield jobs
        case "postgresql" | "postgres":
            try:
                from lucius.adapters.ledger.postgres.archive import PostgresFinishedJobs
            except ModuleNotFoundError as error:
                raise SettingsError(f"LUCIUS_LEDGER_URL: {error}; install lucius[postgres]") from None
            async with PostgresFinishedJobs.open(settings.ledger_url) as shared:
                yield shared
        case _:
            known = "sqlite:///path, postgresql://…"
            raise SettingsError(f"LUCIUS_LEDGER_URL: nothing to archive in {scheme!r}; known: {known}")


def open_archive(settings: Settings, folder: Path | None, *, writing: bool) -> AbstractContextManager[ArchiveFiles]:
    """Open the archive in `folder`; by default in a part of the workspace that no tenant id can name.

    Raises SettingsError or ArchiveError.
    """
    from lucius.adapters.archive.folder import ArchiveFolder

    if folder is None:
        root = urlsplit(settings.workspace_root)
        if root.scheme != "file" or not root.path.startswith("/"):
            raise SettingsError("LUCIUS_WORKSPACE_ROOT is no file:///folder: say where archives are with --archive DIR")
        folder = Path(unquote(root.path)) / "lucius" / "_archive"
    return ArchiveFolder.for_writing(folder) if writing else nullcontext(ArchiveFolder(folder))


def open_publisher(settings: Settings, clock: Clock) -> Publisher | None:
    """Open the bus for the relay; return None for a bus from which services pull."""
    match settings.bus_url.partition(":")[0]:
        case "local":
            return None
        case "memory":
            from lucius.adapters.bus.memory import MemoryBus

            return MemoryBus()
        case "redis" | "rediss" | "unix":
            with _understood("LUCIUS_BUS_URL", settings.bus_url):
                from lucius.adapters.bus.redis.publisher import RedisPublisher

                return RedisPublisher(settings.bus_url, max_waiting=4 * settings.max_unacked, now=clock.now)
        case other:
            raise SettingsError(f"LUCIUS_BUS_URL: no bus for {other!r}; known: local:, memory:, redis://…")


def open_dead_letters(settings: Settings) -> DeadLetters | None:
    """Open the bus's dead letters; return None for a bus that delivers each message only once."""
    if settings.bus_url.partition(":")[0] not in ("redis", "rediss", "unix"):
        return None
    with _understood("LUCIUS_BUS_URL", settings.bus_url):
        from lucius.adapters.bus.redis.dead_letters import RedisDeadLetters

        return RedisDeadLetters(settings.bus_url)


def open_admission_cache(settings: Settings) -> AdmissionCache | None:
    """Open the cache that refuses commands before the ledger is read; None if not configured. Connects lazily."""
    if not settings.gate_url:
        return None
    with _understood("LUCIUS_GATE_URL", settings.gate_url):
        from lucius.adapters.admission.redis import RedisAdmissionCache

        return RedisAdmissionCache(settings.gate_url)


@contextmanager
def _understood(variable: str, url: str) -> Iterator[None]:
    """Raise SettingsError for an invalid Redis URL, or if the Redis packages are not installed."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{variable}: redis:// needs the extra: pip install 'lucius[redis]'") from error
    except ValueError as error:
        said = str(error)
        if "@" in url:  # the error may quote the text read as the port, which may be part of a password
            said = "not a valid URL; write special characters in a password as %XX"
        raise SettingsError(f"{variable}: {said}") from None


def open_webhook_secrets(settings: Settings, config: ConfigSource) -> WebhookSecrets:
    """Return the tenants' webhook secrets. Raises SettingsError for an unusable master secret."""
    from lucius.adapters.http.signing import parse_keys

    master = webhook_master(settings)
    try:
        parse_keys(master)
    except ValueError as error:
        raise SettingsError(f"LUCIUS_WEBHOOK_MASTER_SECRET: {error}") from None
    return WebhookSecrets(settings.webhook_secrets, master, config)


def open_caller(
    settings: Settings, config: ConfigSource, clock: Clock, tenant_secrets: WebhookSecrets, refs: RefPolicies
) -> Caller:
    """Open the HTTP client for the steps that make external calls. Raises SettingsError."""
    from lucius.adapters.http.caller import HttpCaller

    try:
        return HttpCaller(
            policy=lambda: config.current().calls,
            clock=clock,
            orchestrator_url=settings.orchestrator_url,
            secrets=settings.secrets,
            webhook_secrets=webhook_secrets(settings),
            tenant_secrets=tenant_secrets.secrets,
            callbacks=lambda: config.current().callbacks,
            tenant_hosts=lambda tenant: found[1] if (found := refs.callback_hosts(tenant)) else None,
        )
    except CallRefused as refused:
        raise SettingsError(f"LUCIUS_ORCHESTRATOR_URL: {refused.message}") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None
