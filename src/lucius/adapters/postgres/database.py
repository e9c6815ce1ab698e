"""Connections, and saying in words what PostgreSQL says in codes."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import structlog
from asyncpg import Record
from asyncpg.pool import PoolConnectionProxy

from lucius.adapters.postgres.migrating import is_older, migrate
from lucius.adapters.postgres.schema import MIGRATIONS, Migration
from lucius.adapters.postgres.texts import quoted
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerDown, LedgerError, LedgerFull

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 120.0  # opening one costs as much as many looks
COMMAND_SECONDS = 30.0
PATIENCE_SECONDS = 5.0
"""How long somebody who reads waits for a server that is being restarted, before he is told that it is down."""

MAX_SCHEMA = 48  # PostgreSQL cuts names off, also those made from this one
APPLICATION = "lucius"

UNUSABLE = "LUCIUS_LEDGER_URL: not a URL that can be used; special characters in a password are written as %XX"

_NEEDS_TLS = ("require", "verify-ca", "verify-full")
"""The modes in which files that the URL names are read, and must be there."""

Answer = TypeVar("Answer")
Connection: TypeAlias = "PoolConnectionProxy[Record]"

_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection was closed under us
    asyncpg.InternalClientError,  # the server has said goodbye, and the line is not down yet
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    ConnectionError,
    TimeoutError,
    OSError,
)


class Database:
    """A pool on one schema of one database."""

    def __init__(self, url: str, connections: int) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.schema = query.pop("schema", "lucius")
        if len(self.schema.encode()) > MAX_SCHEMA:
            raise LedgerError(f"LUCIUS_LEDGER_URL: the schema's name may have at most {MAX_SCHEMA} bytes")
        if "@" in f"{parts.query}{parts.fragment}":  # then half a password stands where the host should
            raise LedgerError(UNUSABLE)
        self.where = _where(parts, query)
        self._query = query
        self._dsn = urlunsplit(parts._replace(query=urlencode(query)))
        self._connections = connections
        self._pool: asyncpg.Pool[Record] | None = None
        self._knows = len(MIGRATIONS)
        self.outdated = ""
        """Why this process must not use it any more."""

    async def open(self, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Raises LedgerDown, LedgerTooNew or LedgerError."""
        self._knows = len(migrations)
        _check_files(self._query)
        try:
            await self._bring_up_to_date(migrations)
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._connections,
                max_inactive_connection_lifetime=IDLE_SECONDS,
                reset=_leave_as_it_is,
                **self._options(),
            )
        except (asyncpg.PostgresError, *_GONE) as error:
            raise translated(error, self.where) from error
        except ValueError:  # it would quote what it took for the port, which may be half a password
            raise LedgerError(UNUSABLE) from None

    def needs(self, version: int) -> None:
        """Code that knows fewer migrations must not touch it any more: it would erase what newer code wrote."""
        if version > self._knows and not self.outdated:
            self.outdated = (
                f"ledger {self.where} was migrated and needs a Lucius that knows version {version}; this one knows "
                f"{self._knows}: start the newer Lucius"
            )
            log.error("this process must not use the ledger any more", reason=self.outdated)

    async def _bring_up_to_date(self, migrations: Sequence[Migration]) -> None:
        first = await self.connect()
        try:
            is_old = await is_older(first, self.schema, migrations)
        finally:
            await first.close()
        if is_old:
            own = await self.connect(patient=True)  # to build an index may take hours
            try:
                await migrate(own, self.schema, migrations)
            finally:
                await own.close()

    async def connect(self, application_name: str = APPLICATION, patient: bool = False) -> "asyncpg.Connection[Record]":
        """A connection of one's own. Raises LedgerDown and the like."""
        with self.in_words():
            return await asyncpg.connect(self._dsn, **self._options(application_name, patient))

    def _options(self, application_name: str = APPLICATION, patient: bool = False) -> dict[str, Any]:
        return {
            "timeout": CONNECT_SECONDS,
            "command_timeout": None if patient else COMMAND_SECONDS,
            "target_session_attrs": "read-write",
            # Statements here take a fraction of a millisecond; compiling one would take a hundred.
            "server_settings": {"jit": "off", "search_path": quoted(self.schema), "application_name": application_name},
        }

    async def close(self) -> None:
        if self._pool is not None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._pool.close()
            except (TimeoutError, asyncpg.InterfaceError):
                self._pool.terminate()

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """For what is done with a connection of one's own: raises LedgerDown and the like."""
        try:
            yield
        except (asyncpg.PostgresError, *_GONE) as error:
            raise translated(error, self.where) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Raises LedgerDown and the like, also for what the block does with it."""
        assert self._pool is not None, "the database is not open"
        if self.outdated:
            raise LedgerDown(self.outdated)
        try:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                yield connection
        except asyncpg.ReadOnlySQLTransactionError as error:
            await self._pool.expire_connections()  # by the same name there may be one that can be written, by now
            raise translated(error, self.where) from error
        except (asyncpg.PostgresError, *_GONE) as error:
            raise translated(error, self.where) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def rows(self, sql: str, *values: Any) -> list[Record]:
        return await self._patiently(lambda connection: connection.fetch(sql, *values))

    async def row(self, sql: str, *values: Any) -> Record | None:
        return await self._patiently(lambda connection: connection.fetchrow(sql, *values))

    async def _patiently(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """What only reads may be asked again: a server that restarts is back soon."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PATIENCE_SECONDS, 0.02
        while True:
            try:
                async with self.connection() as connection:
                    return await ask(connection)
            except LedgerDown:
                if self.outdated or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(random.uniform(0.5, 1) * pause)
            pause = min(pause * 2, 0.5)


def _where(parts: SplitResult, query: dict[str, str]) -> str:
    """`host:port/database`, as far as the URL says so. Never who may go there: what stands before an `@` is left out
    even if a slash in the password made a path of it."""
    given = parts.netloc or ":".join(filter(None, (query.get("host", "localhost"), query.get("port"))))
    return f"{given}{parts.path}".rpartition("@")[2]


def _check_files(query: dict[str, str]) -> None:
    """Before we connect, or a file that is not there would look like a server that is not. Raises LedgerError."""
    if query.get("sslmode") not in _NEEDS_TLS:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in ("sslrootcert", "sslcrl", "sslcert", "sslkey"):
        path = query.get(name)
        if not path:
            continue
        try:
            if name in ("sslrootcert", "sslcrl"):
                context.load_verify_locations(path)
            else:
                open(path, "rb").close()
        except OSError as error:
            raise LedgerError(f"LUCIUS_LEDGER_URL: {name}: can't use {path} ({error.strerror or error})") from error


async def _leave_as_it_is(connection: Any) -> None:
    """Nothing here changes a session, and resetting it would be a round trip more for every statement."""


def translated(error: BaseException, where: str) -> LedgerError:
    match error:
        case asyncpg.DiskFullError():
            return LedgerFull(f"no space left for ledger {where} ({error}): free some, nothing accepted is lost")
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError() | asyncpg.LockNotAvailableError():
            return LedgerBusy(f"ledger {where} is contended ({error})")
        case asyncpg.ReadOnlySQLTransactionError():
            return LedgerDown(f"ledger {where} takes no writes ({error}): it is a standby, or was made one")
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidCatalogNameError():
            return LedgerError(f"ledger {where}: {error}; check user, password and database in LUCIUS_LEDGER_URL")
        case asyncpg.InsufficientPrivilegeError():
            return LedgerError(f"ledger {where}: {error}; the user must own its schema, or be allowed to create it")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError() | asyncpg.UndefinedColumnError():
            return LedgerCorrupt(f"ledger {where} lacks what its version promises ({error}); restore it from a backup")
        case asyncpg.ClientConfigurationError():  # also for a CA file that is looked for where none was named
            return LedgerError(f"ledger {where}: {error}; check LUCIUS_LEDGER_URL")
        case _ if isinstance(error, _GONE):
            return LedgerDown(f"ledger {where} can't be reached ({type(error).__name__}: {error})")
        case _:
            return LedgerError(f"ledger {where}: {error}")
