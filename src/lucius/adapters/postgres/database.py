"""Connections, and saying in words what PostgreSQL says in codes."""

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from asyncpg import Record
from asyncpg.pool import PoolConnectionProxy

from lucius.adapters.postgres.schema import MIGRATIONS, Migration
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerDown, LedgerError, LedgerFull, LedgerTooNew

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 120.0  # opening one costs as much as many looks
COMMAND_SECONDS = 30.0
PATIENCE_SECONDS = 5.0
"""How long somebody who reads waits for a server that is being restarted, before he is told that it is down."""

MIGRATION_LOCK_MS = 500
"""DDL that waits for a lock makes everybody else wait behind it; rather it gives up and tries again."""
MIGRATION_TRIES = 100

OLDEST_SERVER = 13
MAX_SCHEMA = 48  # PostgreSQL cuts names off, also those made from this one
APPLICATION = "lucius"

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
        self.where = f"{parts.hostname or 'localhost'}{parts.path}"  # never the password
        self._dsn = urlunsplit(parts._replace(query=urlencode(query)))
        self._connections = connections
        self._pool: asyncpg.Pool[Record] | None = None

    async def open(self, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Raises LedgerDown, LedgerTooNew or LedgerError."""
        try:
            first = await self.connect()
            try:
                await _migrate(first, self.schema, migrations)
            finally:
                await first.close()
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
            unusable = (
                "LUCIUS_LEDGER_URL: not a URL that can be used; special characters in a password are written as %XX"
            )
            raise LedgerError(unusable) from None

    async def connect(self, application_name: str = APPLICATION) -> "asyncpg.Connection[Record]":
        """A connection of one's own. Raises LedgerDown and the like."""
        with self.in_words():
            return await asyncpg.connect(self._dsn, **self._options(application_name))

    def _options(self, application_name: str = APPLICATION) -> dict[str, Any]:
        return {
            "timeout": CONNECT_SECONDS,
            "command_timeout": COMMAND_SECONDS,
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
                if loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(random.uniform(0.5, 1) * pause)
            pause = min(pause * 2, 0.5)


async def _leave_as_it_is(connection: Any) -> None:
    """Nothing here changes a session, and resetting it would be a round trip more for every statement."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
        case _ if isinstance(error, _GONE):
            return LedgerDown(f"ledger {where} can't be reached ({type(error).__name__}: {error})")
        case _:
            return LedgerError(f"ledger {where}: {error}")


async def _migrate(connection: "asyncpg.Connection[Record]", schema: str, migrations: Sequence[Migration]) -> None:
    if connection.get_server_version().major < OLDEST_SERVER:
        raise LedgerError(f"Lucius needs PostgreSQL {OLDEST_SERVER} or newer")
    if await _version(connection, schema, len(migrations)) >= len(migrations):
        return
    for _ in range(MIGRATION_TRIES):
        try:
            async with connection.transaction():
                await _migrate_under_lock(connection, schema, migrations)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(random.uniform(0.1, 0.5))
        else:
            return
    raise LedgerBusy(
        f"schema {schema} is in use all the time and can't be migrated; start again when there is less load"
    )


async def _migrate_under_lock(
    connection: "asyncpg.Connection[Record]", schema: str, migrations: Sequence[Migration]
) -> None:
    """Once, whoever comes first; and all of it or nothing."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", zlib.crc32(f"lucius/{schema}".encode()))
    await connection.execute(f"SET LOCAL lock_timeout = {MIGRATION_LOCK_MS}")
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted(schema)):
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")  # which not everybody may who owns one
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_version (version integer PRIMARY KEY, compatible_with integer NOT NULL)"
    )
    done = await _version(connection, schema, len(migrations))
    for number, migration in enumerate(migrations[done:], start=done + 1):
        for statement in migration.statements:
            await connection.execute(statement)
        await connection.execute("INSERT INTO schema_version VALUES ($1, $2)", number, migration.compatible_with)


async def _version(connection: "asyncpg.Connection[Record]", schema: str, known: int) -> int:
    """Raises LedgerTooNew if code that knows so many migrations must not touch it."""
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{quoted(schema)}.schema_version"):
        return 0
    found = await connection.fetchrow("SELECT max(version), max(compatible_with) FROM schema_version")
    version, compatible_with = (found[0] or 0, found[1] or 0) if found else (0, 0)
    if compatible_with > known:
        raise LedgerTooNew(
            f"schema {schema} has version {version} and needs a Lucius that knows version {compatible_with}; this one "
            f"knows {known}: start the newer Lucius"
        )
    return int(version)
