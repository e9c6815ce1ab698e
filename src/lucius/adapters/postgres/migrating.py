"""Bringing a schema up to date: whoever comes first does it. Other new ones wait, while the old code goes on."""

import asyncio
import random
import zlib
from collections.abc import Sequence

import asyncpg
import structlog
from asyncpg import Record

from lucius.adapters.postgres.schema import Migration
from lucius.adapters.postgres.texts import quoted
from lucius.ports.errors import LedgerBusy, LedgerError, LedgerTooNew

log = structlog.get_logger(__name__)

OLDEST_SERVER = 13
MIGRATION_LOCK_MS = 500
"""DDL that waits for a lock makes everybody else wait behind it; rather it gives up and tries again."""
MIGRATION_TRIES = 100
LOOK_SECONDS = 0.2

_TABLE = "CREATE TABLE IF NOT EXISTS schema_version (version integer PRIMARY KEY, compatible_with integer NOT NULL)"
_DONE = "INSERT INTO schema_version VALUES ($1, $2)"


async def is_older(connection: "asyncpg.Connection[Record]", schema: str, migrations: Sequence[Migration]) -> bool:
    """Raises LedgerTooNew, or LedgerError for a server that is too old."""
    if connection.get_server_version().major < OLDEST_SERVER:
        raise LedgerError(f"Lucius needs PostgreSQL {OLDEST_SERVER} or newer")
    return await _version(connection, schema, len(migrations)) < len(migrations)


async def migrate(connection: "asyncpg.Connection[Record]", schema: str, migrations: Sequence[Migration]) -> None:
    """Over a connection that waits for as long as it takes, and is closed afterwards: until then it has the lock."""
    await _lock(connection, schema)
    done = await _version(connection, schema, len(migrations))
    for number, migration in enumerate(migrations[done:], start=done + 1):
        if migration.in_transaction:
            await _apply_at_once(connection, schema, number, migration)
        else:
            await _apply(connection, number, migration)


async def _lock(connection: "asyncpg.Connection[Record]", schema: str) -> None:
    """Asked for again and again: an index that is built beside commits waits for every statement that is under way, so
    one that waited for the lock would wait for whoever waits for it."""
    key, told = zlib.crc32(f"lucius/{schema}".encode()), False
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", key):
        if not told:
            log.warning("another process migrates the ledger, waiting until it is through", schema=schema)
            told = True
        await asyncio.sleep(random.uniform(0.5, 1) * LOOK_SECONDS)


async def _apply_at_once(
    connection: "asyncpg.Connection[Record]", schema: str, number: int, migration: Migration
) -> None:
    """All of it or nothing."""
    for _ in range(MIGRATION_TRIES):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {MIGRATION_LOCK_MS}")
                await _make_schema(connection, schema)
                await _apply(connection, number, migration)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(random.uniform(0.1, 0.5))
        else:
            return
    raise LedgerBusy(
        f"schema {schema} is in use all the time and can't be migrated; start again when there is less load"
    )


async def _apply(connection: "asyncpg.Connection[Record]", number: int, migration: Migration) -> None:
    for statement in migration.statements:
        await connection.execute(statement)
    await connection.execute(_DONE, number, migration.compatible_with)


async def _make_schema(connection: "asyncpg.Connection[Record]", schema: str) -> None:
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted(schema)):
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")  # which not everybody may who owns one
    await connection.execute(_TABLE)


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
