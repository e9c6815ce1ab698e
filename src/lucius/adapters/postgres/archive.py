"""Finished jobs on their way out of the schema, while servers are at work on it.

One session holds a lock for as long as a run lasts, and does all of it: whoever loses the session loses the right to
drop anything, and two runs can't archive the same job twice.
"""

import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from asyncpg import Record

from lucius.adapters.job_records import Bodies
from lucius.adapters.postgres.batch import first_id_after
from lucius.adapters.postgres.database import Connection, Database
from lucius.ports.archive import FinishedFilter, FinishedPage
from lucius.ports.errors import LedgerBusy

# Along the primary key: no job ends before it is accepted. Lengths are known without fetching what may be long.
_CANDIDATES = """
    SELECT d.id, d.in_review, d.unsent,
           octet_length(d.body) + (SELECT octet_length(command) FROM jobs WHERE id = d.id)
           + (SELECT coalesce(sum(octet_length(body)), 0) FROM steps WHERE job = d.id)
           + (SELECT coalesce(sum(octet_length(body)), 0) FROM attempts WHERE job = d.id)
           + (SELECT coalesce(sum(octet_length(body)), 0) FROM events WHERE job = d.id)
           + (SELECT coalesce(sum(octet_length(body)), 0) FROM quarantine WHERE job = d.id) AS size
    FROM (
        SELECT done.id, done.body,
               EXISTS (SELECT 1 FROM outbox WHERE job = done.id) AS unsent,
               EXISTS (
                   SELECT 1 FROM reviews WHERE status = 'OPEN' AND job_id = (SELECT job_id FROM jobs WHERE id = done.id)
               ) AS in_review
        FROM done
        WHERE id > $1 AND id < $2 AND completed_at < $3
          AND ($4::text IS NULL OR tenant_id = $4) AND ($5::text IS NULL OR status = $5)
        ORDER BY id LIMIT $6
    ) AS d
    ORDER BY d.id
"""
_WHOLE = """
    SELECT jobs.job_id, jobs.command, done.body,
           ARRAY(SELECT body FROM steps WHERE job = jobs.id ORDER BY step_id) AS steps,
           ARRAY(SELECT body FROM attempts WHERE job = jobs.id ORDER BY step_id, attempt_no) AS attempts,
           ARRAY(SELECT body FROM events WHERE job = jobs.id ORDER BY seq) AS events,
           ARRAY(SELECT body FROM quarantine WHERE job = jobs.id ORDER BY id) AS quarantined,
           ARRAY(SELECT body FROM reviews WHERE job_id = jobs.job_id ORDER BY id) AS reviews
    FROM unnest($1::bigint[]) AS wanted (id) JOIN jobs ON jobs.id = wanted.id JOIN done ON done.id = wanted.id
    ORDER BY jobs.id
"""
_PROTOCOLS = "SELECT digest, body FROM protocols WHERE digest = ANY ($1)"

# A job that somebody is changing at this moment is not waited for: it has moved on.
_LOCK = """
    SELECT done.id, jobs.job_id FROM unnest($1::text[], $2::integer[]) AS archived (job_id, version)
    JOIN jobs ON jobs.job_id = archived.job_id JOIN done ON done.id = jobs.id AND done.version = archived.version
    FOR UPDATE OF done SKIP LOCKED
"""
# A machine that vanishes says no good-bye, and the lock is its until the server notices.
_SEEN_DEAD_SOON = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"
_STILL_THERE = "SELECT job_id FROM jobs WHERE job_id = ANY ($1)"
_BY_JOB = ("steps", "attempts", "events", "quarantine")


class PostgresFinishedJobs:
    """Implements FinishedJobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> "AsyncIterator[PostgresFinishedJobs]":
        """Raises LedgerBusy if there is another, LedgerDown and the like, also for what the block does with it."""
        database = Database(url, 1)
        await database.open()
        try:
            async with database.connection() as connection:
                await connection.execute(_SEEN_DEAD_SOON)
                if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _lock_of(database.schema)):
                    raise LedgerBusy(
                        f"finished jobs of ledger {database.where} are being archived by somebody else; one that has "
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
            records = [_bodies(row).record() for row in await self._connection.fetch(_WHOLE, wanted)]
            digests = {digest for record in records for digest in _digest(record.job)}
            protocols = await self._connection.fetch(_PROTOCOLS, sorted(digests))
        more = len(looked_at) < len(found) or len(found) == limit
        return FinishedPage(
            records=records,
            protocols={digest: body.encode() for digest, body in protocols},
            open_reviews=sum(job["in_review"] for job in looked_at),
            pending_notices=sum(job["unsent"] and not job["in_review"] for job in looked_at),
            cursor=looked_at[-1]["id"] if more else None,
        )

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        archived = list(versions)
        async with self._connection.transaction():
            gone = await self._connection.fetch(_LOCK, archived, [versions[job_id] for job_id in archived])
            ids = [job["id"] for job in gone]
            for table in _BY_JOB:
                await self._connection.execute(f"DELETE FROM {table} WHERE job = ANY ($1)", ids)
            await self._connection.execute(
                "DELETE FROM reviews WHERE job_id = ANY ($1)", [job["job_id"] for job in gone]
            )
            for table in ("done", "jobs"):
                await self._connection.execute(f"DELETE FROM {table} WHERE id = ANY ($1)", ids)
            left = await self._connection.fetch(_STILL_THERE, archived)
        return frozenset(job["job_id"] for job in left)


def _lock_of(schema: str) -> int:
    return zlib.crc32(f"lucius/{schema}/retention".encode())


def _cut(found: Sequence[Record], max_bytes: int) -> list[Record]:
    """Up to the job that makes it long enough."""
    taken: list[Record] = []
    size = 0
    for job in found:
        if size >= max_bytes:
            break
        taken.append(job)
        size += 0 if job["in_review"] or job["unsent"] else job["size"]
    return taken


def _bodies(row: Record) -> Bodies:
    bodies = Bodies(row["job_id"], row["command"].encode(), row["body"].encode())
    for table in ("steps", "attempts", "quarantined", "reviews"):
        bodies.add(table, (body.encode() for body in row[table]))
    bodies.add("events", (event for body in row["events"] for event in _events(row["job_id"], body)))
    return bodies


def _events(job_id: str, body: str) -> Iterator[bytes]:
    """One by one, and of their job again. What can't be read goes on as it is: whoever reads it says so."""
    try:
        events: list[dict[str, Any]] = msgspec.json.decode(body, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        yield body.encode()
    else:
        yield from (msgspec.json.encode(event | {"job_id": job_id}) for event in events)


def _digest(job: msgspec.Raw) -> Iterator[str]:
    """None, if it can't be read."""
    try:
        yield msgspec.json.decode(job, type=_Pinned).protocol_digest
    except msgspec.DecodeError:
        return


class _Pinned(msgspec.Struct, frozen=True):
    protocol_digest: str
