"""Past jobs for a PostgreSQL ledger, by COPY: one real job of each kind is written, and its rows are the pattern.

Every copy has its own ids, instants, tenant and key. Finished jobs lie in the last thirty days; live ones have a step
at work whose lease ends in a month, so that nothing is due during the measurement.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator

import asyncpg
from asyncpg import Record
from msgspec import Struct

from bench.history import write_job
from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.core.model.records import Job

SCHEMA = "lucius"
TABLES = ("jobs", "live", "done", "steps", "attempts", "events")
EMPTIED = (*TABLES, "outbox", "counters")
TENANTS = 500
DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
SOON_MS = 1_000  # later instants in a pattern are deadlines
CHUNK = 500
ID_BITS = 20

BEGAN = 1_700_000_000_000  # start of the patterns: their instants are recognised by this prefix
INSTANT = re.compile(r"\b17000\d{8}\b")
SHA = re.compile(r"\b[0-9a-f]{64}\b")
LEASE = re.compile(r"\b[0-9a-f]{24}\b")
KEY = re.compile(r"\bpast-\d\b")
HOLE = re.compile(r"%\(t(\d+)\)s")


class Past(Struct, frozen=True):
    """Number of copies of this job, started between two instants, with deadlines put off."""

    job: Job
    count: int
    first: int
    last: int
    put_off: int


def write_history(url: str, finished: int, live: int) -> None:
    asyncio.run(_write(url, finished, live))


async def _write(url: str, finished: int, live: int) -> None:
    done, running = await _two_jobs(url)
    now = time.time_ns() // 1_000_000
    pasts = (
        Past(done, finished, now - MONTH_MS, now - DAY_MS, 0),
        Past(running, live, now - DAY_MS, now, MONTH_MS),
    )
    connection = await asyncpg.connect(url, command_timeout=None)
    try:
        await connection.execute(f"SET search_path = {SCHEMA}")
        patterns = [[await _pattern(connection, table, past.job) for table in TABLES] for past in pasts]
        await connection.execute(f"TRUNCATE {', '.join(EMPTIED)}")
        for past, texts in zip(pasts, patterns, strict=True):
            for table, text in zip(TABLES, texts, strict=True):
                if text:
                    await connection.copy_to_table(table, schema_name=SCHEMA, source=_lines(text, past))
        await _count(connection, running, live)
        for table in EMPTIED:
            await connection.execute(f"VACUUM (ANALYZE) {table}")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


async def migrate(url: str) -> None:
    store = await open_postgres(url)
    await store.close()


async def _two_jobs(url: str) -> tuple[Job, Job]:
    store = await open_postgres(url)
    try:
        return await write_job(store.ledger, 0, BEGAN), await write_job(store.ledger, 1, BEGAN, finished=False)
    finally:
        await store.close()


async def _pattern(connection: "asyncpg.Connection[Record]", table: str, job: Job) -> str:
    """Return the job's rows as COPY lines, with placeholders for everything unique to a job."""
    number = await connection.fetchval("SELECT id FROM jobs WHERE job_id = $1", job.job_id)
    column = "id" if table in ("jobs", "live", "done") else "job"
    lines: list[bytes] = []

    async def keep(data: bytes) -> None:
        lines.append(data)

    await connection.copy_from_query(f"SELECT * FROM {table} WHERE {column} = {number}", output=keep)
    text = b"".join(lines).decode().replace("%", "%%")
    text = text.replace(job.job_id, "%(job)s").replace(str(number), "%(id)s").replace(job.tenant_id, "%(tenant)s")
    text = SHA.sub(lambda found: found[0] if found[0] == job.protocol_digest else "%(sha)s", text)
    text = KEY.sub("%(key)s", LEASE.sub("%(lease)s", text))
    return INSTANT.sub(lambda found: f"%(t{int(found[0]) - BEGAN})s", text)


async def _lines(text: str, past: Past) -> AsyncIterator[bytes]:
    chance = random.Random(past.job.job_id)
    apart = sorted({int(found) for found in HOLE.findall(text)})
    later = [(f"t{ms}", ms + (past.put_off if ms > SOON_MS else 0)) for ms in apart]
    step = (past.last - past.first) / max(past.count, 1)
    for first in range(0, past.count, CHUNK):
        made = []
        for n in range(first, min(first + CHUNK, past.count)):
            began = past.first + int(n * step)
            bits = f"{chance.getrandbits(256):064x}"
            values: dict[str, object] = {name: began + ms for name, ms in later}
            values["id"] = began << ID_BITS | chance.getrandbits(ID_BITS)
            values["job"] = f"{began >> 16:08x}-{began & 0xFFFF:04x}-7{bits[:3]}-a{bits[3:6]}-{bits[6:18]}"
            values["tenant"] = f"tenant-{n % TENANTS}"
            values["sha"], values["lease"], values["key"] = bits, bits[:24], bits[:32]
            made.append(text % values)
        yield "".join(made).encode()


async def _count(connection: "asyncpg.Connection[Record]", job: Job, live: int) -> None:
    counters = {"jobs": live, f"jobs/mode/{job.routing.resolved_mode}": live, f"jobs/protocol/{job.protocol_id}": live}
    for n in range(min(TENANTS, live)):
        counters[f"jobs/tenant/tenant-{n}"] = live // TENANTS + (n < live % TENANTS)
    await connection.executemany("INSERT INTO counters (name, value) VALUES ($1, $2)", list(counters.items()))
