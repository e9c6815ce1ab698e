"""Connection pool and translation of PostgreSQL errors to ledger errors."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import structlog
from asyncpg import Record
from asyncpg.pool import PoolConnectionProxy

from lucius.adapters.ledger.postgres.migrate import migrate, needs_migration
from lucius.adapters.ledger.postgres.schema import MIGRATIONS, Migration
from lucius.adapters.ledger.postgres.text_encoding import quote_identifier
from lucius.backoff import Backoff
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerDown, LedgerError, LedgerFull

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 120.0  # opening a connection costs as much as many queries
COMMAND_SECONDS = 30.0
READ_RETRY_SECONDS = 5.0
"""How long reads are retried while the server restarts, before LedgerDown is raised."""
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.01, 0.5

MAX_SCHEMA_NAME_BYTES = 48  # PostgreSQL truncates longer names, also those derived from this one
APPLICATION_NAME = "lucius"

INVALID_URL = "LUCIUS_LEDGER_URL: not a valid URL; write special characters in a password as %XX"

_VERIFIED_TLS_MODES = ("require", "verify-ca", "verify-full")
"""`sslmode` values for which the certificate files named in the URL are read and must exist."""

Result = TypeVar("Result")
Connection: TypeAlias = "PoolConnectionProxy[Record]"

_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection was closed while in use
    asyncpg.InternalClientError,  # the server is closing, but the socket is still open
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
    """Connection pool on one schema of one database."""

    def __init__(self, url: str, connections: int) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.schema = query.pop("schema", "lucius")
        if len(self.schema.encode()) > MAX_SCHEMA_NAME_BYTES:
            raise LedgerError(f"LUCIUS_LEDGER_URL: the schema's name may have at most {MAX_SCHEMA_NAME_BYTES} bytes")
        if "@" in f"{parts.query}{parts.fragment}":  # an unescaped character split the password
            raise LedgerError(INVALID_URL)
        self.address = _address(parts, query)
        self._query = query
        self._dsn = urlunsplit(parts._replace(query=urlencode(query)))
        self._connections = connections
        self._pool: asyncpg.Pool[Record] | None = None
        self._known_version = len(MIGRATIONS)
        self.outdated_reason = ""
        """Why this process must not use the database any more; empty if it may."""

    async def open(self, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Migrate the schema if needed and open the pool.

        Raises LedgerDown, LedgerTooNew, LedgerTooOld or LedgerError.
        """
        self._known_version = len(migrations)
        _check_files(self._query)
        try:
            await self._migrate_if_outdated(migrations)
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._connections,
                max_inactive_connection_lifetime=IDLE_SECONDS,
                reset=_skip_reset,
                **self._options(),
            )
        except (asyncpg.PostgresError, *_UNAVAILABLE) as error:
            raise translate_error(error, self.address) from error
        except ValueError:  # its text quotes the supposed port, which may be part of the password
            raise LedgerError(INVALID_URL) from None

    def require_version(self, version: int) -> None:
        """Block further use if the schema requires a newer version: older code would erase fields it does not know."""
        if version > self._known_version and not self.outdated_reason:
            self.outdated_reason = (
                f"ledger {self.address} was migrated and needs a Lucius that knows version {version}; this one knows "
                f"{self._known_version}: start the newer Lucius"
            )
            log.error("this process must not use the ledger any more", reason=self.outdated_reason)

    async def _migrate_if_outdated(self, migrations: Sequence[Migration]) -> None:
        first = await self.connect()
        try:
            is_old = await needs_migration(first, self.schema, migrations)
        finally:
            await first.close()
        if is_old:
            own = await self.connect(no_timeout=True)  # building an index may take hours
            try:
                await migrate(own, self.schema, migrations)
            finally:
                await own.close()

    async def connect(
        self, application_name: str = APPLICATION_NAME, no_timeout: bool = False
    ) -> "asyncpg.Connection[Record]":
        """Open a connection outside the pool. Raises LedgerError."""
        with self.translate_errors():
            return await asyncpg.connect(self._dsn, **self._options(application_name, no_timeout))

    def _options(self, application_name: str = APPLICATION_NAME, no_timeout: bool = False) -> dict[str, Any]:
        return {
            "timeout": CONNECT_SECONDS,
            "command_timeout": None if no_timeout else COMMAND_SECONDS,
            "target_session_attrs": "read-write",
            # Statements take a fraction of a millisecond; JIT compilation would take about a hundred milliseconds.
            "server_settings": {
                "jit": "off",
                "search_path": quote_identifier(self.schema),
                "application_name": application_name,
            },
        }

    async def close(self) -> None:
        if self._pool is not None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._pool.close()
            except (TimeoutError, asyncpg.InterfaceError):
                self._pool.terminate()

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors of a block that uses a connection outside the pool."""
        try:
            yield
        except (asyncpg.PostgresError, *_UNAVAILABLE) as error:
            raise translate_error(error, self.address) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Borrow a connection from the pool; errors of the block are translated to LedgerError too."""
        assert self._pool is not None, "the database is not open"
        if self.outdated_reason:
            raise LedgerDown(self.outdated_reason)
        try:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                yield connection
        except asyncpg.ReadOnlySQLTransactionError as error:
            await self._pool.expire_connections()  # after a failover, new connections may reach the primary
            raise translate_error(error, self.address) from error
        except (asyncpg.PostgresError, *_UNAVAILABLE) as error:
            raise translate_error(error, self.address) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Borrow a connection and run the block in a transaction."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def fetch_rows(self, sql: str, *values: Any) -> list[Record]:
        """Run a statement, retrying while the server restarts; only for statements that may run twice."""
        return await self._fetch_with_retry(lambda connection: connection.fetch(sql, *values))

    async def fetch_row(self, sql: str, *values: Any) -> Record | None:
        """Like `fetch_rows`, for the first row."""
        return await self._fetch_with_retry(lambda connection: connection.fetchrow(sql, *values))

    async def _fetch_with_retry(self, fetch: Callable[[Connection], Awaitable[Result]]) -> Result:
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + READ_RETRY_SECONDS, Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            try:
                async with self.connection() as connection:
                    return await fetch(connection)
            except LedgerDown:
                pause = backoff.pause()
                if self.outdated_reason or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)


def _address(parts: SplitResult, query: dict[str, str]) -> str:
    """Return `host:port/database` without credentials.

    Everything before an `@` is left out, even if a slash in the password made it part of the path.
    """
    host = parts.netloc or ":".join(filter(None, (query.get("host", "localhost"), query.get("port"))))
    return f"{host}{parts.path}".rpartition("@")[2]


def _check_files(query: dict[str, str]) -> None:
    """Check certificate files: when connecting, a missing one looks like an unreachable server. Raises LedgerError."""
    if query.get("sslmode") not in _VERIFIED_TLS_MODES:
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


async def _skip_reset(connection: Any) -> None:
    """Skip the pool's reset: no statement changes session state, and a reset costs one round trip per statement."""


def translate_error(error: BaseException, address: str) -> LedgerError:
    """Return the ledger error for an error of asyncpg or the network."""
    match error:
        case asyncpg.DiskFullError():
            return LedgerFull(f"no space left for ledger {address} ({error}): free some, nothing accepted is lost")
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError() | asyncpg.LockNotAvailableError():
            return LedgerBusy(f"ledger {address} is contended ({error})")
        case asyncpg.ReadOnlySQLTransactionError():
            return LedgerDown(f"ledger {address} accepts no writes ({error}): it is a standby, or became one")
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidCatalogNameError():
            return LedgerError(f"ledger {address}: {error}; check user, password and database in LUCIUS_LEDGER_URL")
        case asyncpg.InsufficientPrivilegeError():
            return LedgerError(f"ledger {address}: {error}; the user must own its schema, or be allowed to create it")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError() | asyncpg.UndefinedColumnError():
            return LedgerCorrupt(f"ledger {address} lacks objects of its version ({error}); restore it from a backup")
        case asyncpg.ClientConfigurationError():  # also raised for a missing default CA file
            return LedgerError(f"ledger {address}: {error}; check LUCIUS_LEDGER_URL")
        case _ if isinstance(error, _UNAVAILABLE):
            return LedgerDown(f"ledger {address} can't be reached ({type(error).__name__}: {error})")
        case _:
            return LedgerError(f"ledger {address}: {error}")
