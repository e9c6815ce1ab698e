"""Removes finished jobs from the schema while servers are using it.

One session holds a lock for the whole run and does all of the work: losing the session means losing the right to
delete, and two runs can't archive the same job twice.
"""

import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from asyncpg import Record

from lucius.adapters.ledger.job_records import JobRecordBuilder
from lucius.adapters.ledger.postgres.batch import first_id_after
from lucius.adapters.ledger.postgres.database import Connection, Database
from lucius.adapters.ledger.sql_files import load_statements
from lucius.ports.archive import FinishedFilter, FinishedPage
from lucius.ports.errors import LedgerBusy

_SQL = load_statements(__package__, "archive")
_CANDIDATES = _SQL["candidates"]
_WHOLE = _SQL["whole"]
_PROTOCOLS = _SQL["protocols"]

_LOCK = _SQL["lock"]
_SEEN_DEAD_SOON = _SQL["seen_dead_soon"]
_STILL_THERE = _SQL["still_there"]


class PostgresFinishedJobs:
    """Implements FinishedJobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> "AsyncIterator[PostgresFinishedJobs]":
        """Take the lock and yield a session.

        Raises LedgerBusy if another run holds it, LedgerDown and similar errors, also for errors in the block.
        """
        database = Database(url, 1)
        await database.open()
        try:
            async with database.connection() as connection:
                await connection.execute(_SEEN_DEAD_SOON)
                if not await connection.fetchval(_SQL["try_lock"], _lock_of(database.schema)):
                    raise LedgerBusy(
                        f"finished jobs of ledger {database.address} are being archived by somebody else; one that has "
                        "died holds them for a minute at most"
                    )
                yield cls(connection)
        finally:
            await database.close()

    async def page(self, where: FinishedFilter, cursor: int, limit: int, max_bytes: int) -> FinishedPage:
        status = str(where.status) if where.status is not None else None
        asked = (cursor, first_id_after(where.before), where.before, where.tenant_id, status, limit)
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            found = await self._connection.fetch(_CANDIDATES, *asked)
            looked_at = _cut(found, max_bytes)
            wanted = [job["id"] for job in looked_at if not job["in_review"] and not job["unsent"]]
            records = [_bodies(row).build() for row in await self._connection.fetch(_WHOLE, wanted)]
            digests = {digest for record in records for digest in _digest(record.job)}
            protocols = await self._connection.fetch(_PROTOCOLS, sorted(digests))
        more = len(looked_at) < len(found) or len(found) == limit
        return FinishedPage(
            records=records,
            protocols={digest: body.encode() for digest, body in protocols},
            open_reviews=sum(job["in_review"] for job in looked_at),
            pending_webhooks=sum(job["unsent"] and not job["in_review"] for job in looked_at),
            cursor=looked_at[-1]["id"] if more else None,
        )

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        archived = list(versions)
        async with self._connection.transaction():
            gone = await self._connection.fetch(_LOCK, archived, [versions[job_id] for job_id in archived])
            ids = [job["id"] for job in gone]
            for name in ("steps", "attempts", "events", "quarantined"):
                await self._connection.execute(_SQL[f"delete_{name}"], ids)
            await self._connection.execute(_SQL["delete_reviews"], [job["job_id"] for job in gone])
            for name in ("heads", "jobs"):
                await self._connection.execute(_SQL[f"delete_{name}"], ids)
            left = await self._connection.fetch(_STILL_THERE, archived)
        return frozenset(job["job_id"] for job in left)


def _lock_of(schema: str) -> int:
    return zlib.crc32(f"lucius/{schema}/retention".encode())


def _cut(found: Sequence[Record], max_bytes: int) -> list[Record]:
    """Return jobs up to and including the one that reaches `max_bytes`."""
    taken: list[Record] = []
    size = 0
    for job in found:
        if size >= max_bytes:
            break
        taken.append(job)
        size += 0 if job["in_review"] or job["unsent"] else job["size"]
    return taken


def _bodies(row: Record) -> JobRecordBuilder:
    bodies = JobRecordBuilder(row["job_id"], row["command"].encode(), row["body"].encode())
    for table in ("steps", "attempts", "quarantined", "reviews"):
        bodies.add(table, (body.encode() for body in row[table]))
    bodies.add("events", (event for body in row["events"] for event in _events(row["job_id"], body)))
    return bodies


def _events(job_id: str, body: str) -> Iterator[bytes]:
    """Yield the events one by one, each with its job's id; unreadable ones as they are, for readers to report."""
    try:
        events: list[dict[str, Any]] = msgspec.json.decode(body, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        yield body.encode()
    else:
        yield from (msgspec.json.encode(event | {"job_id": job_id}) for event in events)


def _digest(job: msgspec.Raw) -> Iterator[str]:
    """Yield the protocol's digest, or nothing if the job can't be read."""
    try:
        yield msgspec.json.decode(job, type=_Pinned).protocol_digest
    except msgspec.DecodeError:
        return


class _Pinned(msgspec.Struct, frozen=True):
    protocol_digest: str
