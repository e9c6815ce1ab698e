"""Reads of jobs, counters and the backlog, which go to the database and never to a cache. A page is one statement.

Each branch of a statement walks one index in the order of its answer and stops at its limit. Where the planner could
think another index as good (it does not know which value is rare), rows are compared as a whole, `(a, b, id) < …`, and
sorted by all of it: only the intended index can answer that. What is joined to a page is a scalar subquery, which is
always a probe, however few rows PostgreSQL believes the tables to have.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.page_cursor import decode_cursor, encode_cursor
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.job_pages import build_page_query
from lucius.adapters.ledger.postgres.searching import search_jobs
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.search_page import is_search
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.counters import is_prefix
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import Instant, Step
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.readers import MAX_TENANTS, JobFilter, JobPage, Oldest

_LAST = 2**63 - 1

_SQL = load_statements(__package__, "jobs", max_tenants=MAX_TENANTS)
_JOB = _SQL["job"]

_COUNTERS = _SQL["counters"]
_OLDEST_OF_ONE = _SQL["oldest_of_one"]
_OLDEST_OF_ALL = _SQL["oldest_of_all"]


class PostgresJobReader:
    """Implements JobReader."""

    def __init__(self, database: Database, protocol: Callable[[str], Awaitable[ProtocolDefinition]]) -> None:
        self._database = database
        self._protocol = protocol

    async def job(self, job_id: str) -> JobSnapshot | None:
        row = await self._database.fetch_row(_JOB, job_id) if is_valid_text(job_id) else None
        if row is None or row["head"] is None:
            return None
        job = record_codec.job(row["command"], row["head"])
        return JobSnapshot(job, await self._protocol(job.protocol_digest), _by_name(row["steps"]))

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        if is_search(where):
            return await search_jobs(self._database, where, limit, cursor)
        below = _LAST if cursor is None else decode_cursor(cursor)
        asked = build_page_query(where, below, limit + 1)
        found = await self._database.fetch_rows(*asked) if asked is not None else []
        page = found[:limit]
        more = len(found) > limit and page
        jobs = [record_codec.job(row["command"], row["head"]) for row in page]
        return JobPage(jobs, encode_cursor(page[-1]["id"]) if more else None)

    async def counters(self, *names: str) -> dict[str, int]:
        single = [name for name in names if not is_prefix(name)]
        families = [name for name in names if is_prefix(name)]
        beyond = [_beyond(name) for name in families]
        found = await self._database.fetch_rows(_COUNTERS, single, families, beyond)
        return {row["name"]: row["value"] for row in found}

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        asked = (_OLDEST_OF_ALL, now) if service is None else (_OLDEST_OF_ONE, now, service)
        found = await self._database.fetch_rows(*asked)
        return {row["service"]: Oldest(row["oldest"], row["older_possible"]) for row in found}


def _beyond(family: str) -> str:
    """Return the end of the range of names that begin with `family`: `0` is the character next to `/`."""
    return f"{family[:-1]}0" if family else chr(sys.maxunicode)


def _by_name(bodies: Iterable[str]) -> dict[str, Step]:
    steps = sorted((record_codec.decode_step(body) for body in bodies), key=lambda step: step.index)
    return {step.step_id: step for step in steps}
