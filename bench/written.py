"""PostgreSQL's own statistics of what it has written."""

from typing import Any

import asyncpg
from msgspec import Struct

TABLES = """
    SELECT relname AS name, n_tup_ins AS inserted, n_tup_upd AS updated, n_tup_hot_upd AS hot, n_tup_del AS deleted,
           pg_table_size(relid) AS table_bytes, pg_indexes_size(relid) AS index_bytes
    FROM pg_stat_user_tables WHERE schemaname = 'lucius' ORDER BY relname
"""
SERVER = """
    SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal_bytes, w.wal_records, w.wal_fpi, w.wal_sync,
           d.xact_commit, d.xact_rollback
    FROM pg_stat_wal AS w, pg_stat_database AS d WHERE d.datname = current_database()
"""
COUNTS = ("inserted", "updated", "hot", "deleted")
SIZES = ("table_bytes", "index_bytes")


class Count(Struct, frozen=True):
    tables: dict[str, dict[str, int]]
    server: dict[str, int]


async def count(url: str) -> Count:
    """Return the statistics: complete for ended sessions, others may report a few seconds late."""
    connection = await asyncpg.connect(url)
    try:
        tables = {row["name"]: {name: row[name] for name in COUNTS + SIZES} for row in await connection.fetch(TABLES)}
        server: Any = await connection.fetchrow(SERVER)
        return Count(tables, {name: int(number) for name, number in server.items()})
    finally:
        await connection.close()


def tell(before: Count, after: Count) -> None:
    """Print what was added between two counts, per job that ended meanwhile."""
    jobs = after.tables["done"]["inserted"] - before.tables["done"]["inserted"]
    none = dict.fromkeys(COUNTS + SIZES, 0)
    print(f"{'written per finished job':<28}" + "".join(f"{name:>10}" for name in COUNTS) + "   table B   index B")
    total = dict.fromkeys(COUNTS + SIZES, 0.0)
    for name, figures in after.tables.items():
        added = {kind: (figures[kind] - before.tables.get(name, none)[kind]) / jobs for kind in total}
        total = {kind: total[kind] + added[kind] for kind in total}
        if any(added[kind] >= 0.1 for kind in COUNTS):  # the rest comes from the start
            _row(name, added)
    _row("all", total)
    server = {name: (after.server[name] - before.server[name]) / jobs for name in after.server}
    print(
        f"{server['wal_bytes']:,.0f} bytes of WAL in {server['wal_records']:.1f} records "
        f"({server['wal_fpi']:.2f} of them whole pages), {server['xact_commit']:.2f} transactions, reads among them, "
        f"{server['wal_sync']:.2f} flushes to disk, {server['xact_rollback']:.3f} rollbacks",
        flush=True,
    )


def _row(name: str, figures: dict[str, float]) -> None:
    print(
        f"  {name:<26}"
        + "".join(f"{figures[kind]:>10.2f}" for kind in COUNTS)
        + "".join(f"{figures[kind]:>10,.0f}" for kind in SIZES)
    )
