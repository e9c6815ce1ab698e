"""Applies schema migrations: the first replica of a new version migrates, others wait, and old code keeps running."""

import asyncio
import random
import zlib
from collections.abc import Sequence

import asyncpg
import structlog
from asyncpg import Record

from lucius.adapters.ledger.postgres.schema import Migration
from lucius.adapters.ledger.postgres.text_encoding import quote_identifier
from lucius.adapters.ledger.sql_files import load_statements
from lucius.ports.errors import LedgerBusy, LedgerError, LedgerTooNew, LedgerTooOld

log = structlog.get_logger(__name__)

MIN_SERVER_VERSION = 13
LOCK_TIMEOUT_MS = 500
"""Statements queue behind DDL that waits for a lock, so a migration gives up soon and retries."""
MAX_MIGRATION_ATTEMPTS = 100
LOCK_POLL_SECONDS = 0.2
DEVELOPMENT_TABLES = ("schema_version", "schema_migrations")
"""Version tables of unreleased development versions."""

_SQL = load_statements(__package__, "migrate")
_TABLE = _SQL["table"]
_DONE = _SQL["done"]
_FIND_DEVELOPMENT_TABLE = _SQL["find_development_table"]


async def needs_migration(
    connection: "asyncpg.Connection[Record]", schema: str, migrations: Sequence[Migration]
) -> bool:
    """Return True if the schema lacks some of `migrations`.

    Raises LedgerTooNew, LedgerTooOld, or LedgerError for a server that is too old.
    """
    if connection.get_server_version().major < MIN_SERVER_VERSION:
        raise LedgerError(f"Lucius needs PostgreSQL {MIN_SERVER_VERSION} or newer")
    return await _version(connection, schema, len(migrations)) < len(migrations)


async def migrate(connection: "asyncpg.Connection[Record]", schema: str, migrations: Sequence[Migration]) -> None:
    """Apply the missing migrations.

    The connection needs to have no command timeout, and the caller closes it afterwards: until then it holds the lock.
    """
    await _lock(connection, schema)
    done = await _version(connection, schema, len(migrations))
    for number, migration in enumerate(migrations[done:], start=done + 1):
        if migration.in_transaction:
            await _apply_in_transaction(connection, schema, number, migration)
        else:
            await _apply(connection, number, migration)


async def _lock(connection: "asyncpg.Connection[Record]", schema: str) -> None:
    """Poll for the migration lock.

    CREATE INDEX CONCURRENTLY waits for every running statement; a statement that waited for the lock would deadlock
    with the migration that holds it.
    """
    key, has_logged = zlib.crc32(f"lucius/{schema}".encode()), False
    while not await connection.fetchval(_SQL["try_lock"], key):
        if not has_logged:
            log.warning("another process is migrating the ledger, waiting for it to finish", schema=schema)
            has_logged = True
        await asyncio.sleep(random.uniform(0.5, 1) * LOCK_POLL_SECONDS)


async def _apply_in_transaction(
    connection: "asyncpg.Connection[Record]", schema: str, number: int, migration: Migration
) -> None:
    """Apply one migration atomically. Raises LedgerBusy if a lock can't be had."""
    for _ in range(MAX_MIGRATION_ATTEMPTS):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                await _make_schema(connection, schema)
                await _apply(connection, number, migration)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(random.uniform(0.1, 0.5))
        else:
            return
    raise LedgerBusy(
        f"schema {schema} can't be migrated because its tables are always in use; start again when there is less load"
    )


async def _apply(connection: "asyncpg.Connection[Record]", number: int, migration: Migration) -> None:
    for statement in migration.statements:
        await connection.execute(statement)
    await connection.execute(_DONE, number, migration.compatible_with)


async def _make_schema(connection: "asyncpg.Connection[Record]", schema: str) -> None:
    if not await connection.fetchval(_SQL["has_schema"], quote_identifier(schema)):
        # Only if missing: the owner of a schema need not be allowed to create one.
        await connection.execute(_SQL["create_schema"].format(schema=quote_identifier(schema)))
    await connection.execute(_TABLE)


async def _version(connection: "asyncpg.Connection[Record]", schema: str, known: int) -> int:
    """Return the schema's version, 0 for an empty one.

    Raises LedgerTooNew if code with `known` migrations must not use it, and LedgerTooOld if it can't be upgraded.
    """
    table = f"{quote_identifier(schema)}.ledger_versions"
    if not await connection.fetchval(_SQL["has_table"], table):
        await _refuse_development_ledger(connection, schema)
        return 0
    found = await connection.fetchrow(_SQL["versions"])
    version, compatible_with = (found[0] or 0, found[1] or 0) if found else (0, 0)
    if compatible_with > known:
        raise LedgerTooNew(
            f"schema {schema} has version {version} and needs a Lucius that knows version {compatible_with}; this one "
            f"knows {known}: start the newer Lucius"
        )
    return int(version)


async def _refuse_development_ledger(connection: "asyncpg.Connection[Record]", schema: str) -> None:
    tables = [f"{quote_identifier(schema)}.{name}" for name in DEVELOPMENT_TABLES]
    if await connection.fetchval(_FIND_DEVELOPMENT_TABLE, tables):
        raise LedgerTooOld(
            f"schema {schema} holds a ledger made by an unreleased development version of Lucius, from before schema "
            "version 1, and no Lucius can upgrade it; it was left as it is: name a new schema in LUCIUS_LEDGER_URL "
            "(?schema=...), or finish its jobs with the Lucius that made it"
        )
