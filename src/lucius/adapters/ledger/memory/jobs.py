"""Reads of jobs, counters and the backlog from dictionaries."""

from collections.abc import Mapping, Sequence
from itertools import islice

from lucius.adapters.ledger.memory.tables import JobEntry, MemoryTables
from lucius.adapters.ledger.page_cursor import decode_cursor, encode_cursor
from lucius.adapters.ledger.search_page import (
    SearchPosition,
    is_ordered_by_completion,
    is_search,
    search_page,
    target_key,
)
from lucius.core.model.counters import select_counters
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import Instant, Job
from lucius.ports.readers import JobFilter, JobPage, Oldest


class MemoryJobReader:
    """Implements JobReader."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def job(self, job_id: str) -> JobSnapshot | None:
        record = self._tables.records.get(job_id)
        return record.whole_view() if record else None

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        if is_search(where):
            return await self._search(where, limit, cursor)
        below = decode_cursor(cursor) if cursor is not None else len(self._tables.records) + 1
        newest_first = (r for r in reversed(self._tables.records.values()) if r.position < below and _matches(r, where))
        found = list(islice(newest_first, limit + 1))
        page = found[:limit]
        more = len(found) > limit and page
        return JobPage([record.job for record in page], encode_cursor(page[-1].position) if more else None)

    async def _search(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        by_completion = is_ordered_by_completion(where)
        matching = {
            SearchPosition(record.job.completed_at or 0 if by_completion else 0, record.position): record.job
            for record in self._tables.records.values()
            if _matches(record, where) and _is_found(record.job, where)
        }
        jobs = {place.id: job for place, job in matching.items()}

        async def walk(start: SearchPosition, max_rows: int) -> Sequence[SearchPosition]:
            below = (place for place in sorted(matching, reverse=True) if _is_below(place, start, by_completion))
            return list(islice(below, max_rows))

        async def pick(ids: Sequence[int], max_rows: int) -> Mapping[int, Job]:
            return {id_: jobs[id_] for id_ in ids[:max_rows]}

        return await search_page(where, limit, cursor, walk, pick)

    async def counters(self, *names: str) -> dict[str, int]:
        return select_counters(self._tables.counters, names)

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        oldest: dict[str, Instant] = {}
        for row in (row for _, rows in self._tables.pending.iter_queues(service, frozenset()) for row in rows.values()):
            if row.claimed_at is None and (row.next_attempt_at is None or row.next_attempt_at <= now):
                oldest[row.service] = min(row.created_at, oldest.get(row.service, row.created_at))
        return {name: Oldest(at) for name, at in oldest.items()}


def _matches(record: JobEntry, where: JobFilter) -> bool:
    job = record.job
    return (
        (where.tenants is None or job.tenant_id in where.tenants)
        and (where.id_prefix is None or job.job_id.startswith(where.id_prefix))
        and (where.status is None or job.status is where.status)
        and (where.request_type is None or job.command.request_type == where.request_type)
        and (where.created_after is None or job.created_at > where.created_after)
        and (where.blocked_on is None or (job.blocked is not None and job.blocked.reason is where.blocked_on))
        and (where.blocked_services is None or _blocked_service(record) in where.blocked_services)
        and (not where.except_services or _blocked_service(record) not in where.except_services)
    )


def _is_found(job: Job, where: JobFilter) -> bool:
    command, ended_at = job.command, None if job.live else job.completed_at or job.updated_at
    code = job.error.code if job.error is not None and not job.live else None
    return (
        (where.doc_id is None or command.doc_id == where.doc_id)
        and (where.correlation_id is None or command.correlation_id == where.correlation_id)
        and (where.target is None or target_key(command.target) == where.target)
        and (where.error_code is None or code == where.error_code)
        and (where.completed_after is None or (ended_at is not None and ended_at > where.completed_after))
        and (where.completed_before is None or (ended_at is not None and ended_at < where.completed_before))
    )


def _is_below(place: SearchPosition, start: SearchPosition, by_completion: bool) -> bool:
    return place < start if by_completion else place.id < start.id


def _blocked_service(record: JobEntry) -> str | None:
    return record.job.blocked.service if record.job.blocked else None
