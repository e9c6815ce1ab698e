"""Reads of jobs, counters and the backlog. Each statement walks an index in its order and stops at its limit."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, islice, product
from typing import Any

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.page_cursor import decode_cursor, encode_cursor
from lucius.adapters.ledger.search_page import is_search
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.filters import Filters
from lucius.adapters.ledger.sqlite.memory_state import MemoryState, first_id_after
from lucius.adapters.ledger.sqlite.searching import search_jobs
from lucius.core.model.counters import select_counters
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import Instant, Job
from lucius.core.model.statuses import BlockedReason, JobStatus
from lucius.ports.readers import MAX_TENANTS, JobFilter, JobPage, Oldest

_LAST_ID = 2**62

_SQL = load_statements(__package__, "jobs")
OLDEST_READY = _SQL["oldest_ready"]
OLDEST_DEFERRED = _SQL["oldest_deferred"]
JOB_BY_ID = _SQL["job_by_id"]


_AFTER_ID = "\x7f"  # sorts after every character of a job id


class SqliteJobReader:
    """Implements JobReader."""

    def __init__(self, file: SqliteFile, state: MemoryState) -> None:
        self._file = file
        self._state = state

    async def job(self, job_id: str) -> JobSnapshot | None:
        return self._state.whole_view(job_id)

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        if is_search(where):
            return await search_jobs(self._file, where, limit, cursor)
        below = _LAST_ID if cursor is None else decode_cursor(cursor)
        queries = build_page_queries(where, below, limit + 1, self._state.request_types)
        found = chain.from_iterable(self._file.fetch_rows(sql, values) for sql, values in queries)
        ids = heapq.nlargest(limit + 1, (id_ for (id_,) in found))
        page = ids[:limit]
        more = len(ids) > limit and page
        return JobPage([self._job_by_id(id_) for id_ in page], encode_cursor(page[-1]) if more else None)

    def _job_by_id(self, id_: int) -> Job:
        return record_codec.job(*self._file.fetch_rows(JOB_BY_ID, (id_,))[0])

    async def counters(self, *names: str) -> dict[str, int]:
        return select_counters(self._state.counters, names)

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        names = self._state.services if service is None else [service]
        found = ((name, self._oldest(name, now)) for name in names)
        return {name: oldest for name, oldest in found if oldest is not None}

    def _oldest(self, service: str, now: Instant) -> Oldest | None:
        """Return the oldest ready row: one probe for each tenant, up to MAX_TENANTS, and none for their rows."""
        waiting = (self._state.ready, self._state.deferred)
        ready, later = ([queue for queue, _ in islice(some.iter_queues(service, ()), MAX_TENANTS)] for some in waiting)
        found = [self._file.fetch_row(OLDEST_READY, queue) for queue in ready]
        found += [self._file.fetch_row(OLDEST_DEFERRED, (*queue, now)) for queue in later]
        written = [row[0] for row in found if row is not None]
        return Oldest(min(written), max(len(ready), len(later)) >= MAX_TENANTS) if written else None


def build_page_queries(
    where: JobFilter, below: int, limit: int, request_types: Iterable[str]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the queries whose answers, merged by id, are a page.

    There are few states and request types, so a filter that names neither queries each of them in turn: each is then a
    range of an index in the order of the page, and no query reads what it will not return.
    """
    filters = _created_after(where)
    floor = 0 if where.created_after is None else first_id_after(where.created_after)
    statuses = [str(status) for status in (JobStatus if where.status is None else [where.status])]
    types = sorted(request_types) if where.request_type is None else [where.request_type]

    if where.id_prefix is not None:
        first, end = where.id_prefix, where.id_prefix + _AFTER_ID
        tenants = _tenants(where)
        yield tenants.fill("by_prefix"), (first, end, below, *tenants.values, limit)
    elif where.blocked_on is not None or where.blocked_services is not None:
        _add_filters_of_blocked(filters, where)
        for reason in BlockedReason if where.blocked_on is None else [where.blocked_on]:
            yield filters.fill("blocked"), (str(reason), below, floor, *filters.values, limit)
    elif where.tenants is not None:
        for kind in product(where.tenants, statuses, types):
            yield filters.fill("of_tenant"), (*kind, below, floor, *filters.values, limit)
    elif where.status is not None or where.request_type is not None:
        for kind_of_all in product(statuses, types):
            yield filters.fill("of_kind"), (*kind_of_all, below, floor, *filters.values, limit)
    else:
        yield filters.fill("of_all"), (below, floor, *filters.values, limit)


def _created_after(where: JobFilter) -> Filters:
    """Return the filter beside the floor of ids: after the clock was set back, ids run ahead of it."""
    filters = Filters(_SQL)
    if where.created_after is not None:
        filters.add("where_created_after", where.created_after)
    return filters


def _tenants(where: JobFilter) -> Filters:
    filters = Filters(_SQL)
    if where.tenants is not None:
        filters.add_set("where_tenants", where.tenants)
    return filters


def _add_filters_of_blocked(filters: Filters, where: JobFilter) -> None:
    """Add filters of blocked jobs. These are live, so scanning them is bounded by the jobs in flight."""
    if where.blocked_services is not None:
        filters.add_set("where_blocked_services", where.blocked_services)
    if where.except_services:
        filters.add_set("where_except_services", where.except_services)
    if where.tenants is not None:
        filters.add_set("where_tenants", where.tenants)
    if where.status is not None:
        filters.add("where_status", str(where.status))
    if where.request_type is not None:
        filters.add("where_request_type", where.request_type)
