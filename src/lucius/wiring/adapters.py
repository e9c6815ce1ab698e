"""A URL picks each adapter, whose packages are imported only when it is chosen."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from lucius.core.decision import Decision, JobView
from lucius.ports.archive import ArchiveFiles, FinishedJobs
from lucius.ports.bus import DeadLetters, Publisher
from lucius.ports.calls import Caller
from lucius.ports.clock import Clock
from lucius.ports.config import ConfigSource
from lucius.ports.errors import CallRefused
from lucius.ports.gates import Gate
from lucius.ports.inbox import Inbox
from lucius.ports.ledger import Ledger, Outbox, Reader, ReviewReader
from lucius.ports.peers import Presence, SharedSecrets, Wake
from lucius.ports.protocols import ProtocolStore
from lucius.settings import Settings, SettingsError
from lucius.wiring.keys import webhook_secrets


class Store(Ledger, Outbox, Reader, ReviewReader, ProtocolStore, Inbox, Protocol):
    """A ledger that can be read from as well, and that says when a decision has become durable, here or elsewhere.

    One that several processes share knows whether they are there.
    """

    presence: Presence | None
    secrets: SharedSecrets | None
    clock: Clock | None
    awaited: Callable[[str, int], bool]

    on_commit: Callable[[Decision], None] | None
    on_end: Callable[[JobView], None] | None
    on_flush: Callable[[int, float], None] | None
    on_wake: Callable[[Wake], None] | None


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


def open_publisher(settings: Settings, clock: Clock) -> Publisher | None:
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

                return RedisPublisher(settings.bus_url, most_waiting=4 * settings.max_unacked, now=clock.now)
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
            webhook_secrets=webhook_secrets(settings),
            callbacks=lambda: config.current().callbacks,
        )
    except CallRefused as refused:
        raise SettingsError(f"LUCIUS_ORCHESTRATOR_URL: {refused.message}") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None
