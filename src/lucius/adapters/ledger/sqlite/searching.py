"""Searches for jobs in the ledger's file: statements that walk an index, and one that applies the other filters."""

import asyncio
from collections.abc import Mapping, Sequence

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.search_page import (
    MAX_INT64,
    SearchPosition,
    clamp_instant,
    has_completion,
    is_ordered_by_completion,
    search_page,
)
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.filters import Filters, placeholders
from lucius.adapters.ledger.sqlite.memory_state import first_id_after
from lucius.core.model.records import Job
from lucius.ports.readers import JobFilter, JobPage

_SQL = load_statements(__package__, "searching")


async def search_jobs(file: SqliteFile, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
    """Return a page of the jobs that match. Raises ValueError for a cursor that is not of this list."""

    async def walk(place: SearchPosition, max_rows: int) -> Sequence[SearchPosition]:
        await asyncio.sleep(0)  # a page may need many walks, and other tasks run between them
        return _walk(file, where, place, max_rows)

    async def pick(ids: Sequence[int], max_rows: int) -> Mapping[int, Job]:
        if not ids:
            return {}
        filters = build_filters(where)
        sql = filters.fill("pick", marks=placeholders(ids))
        found = {id_ for (id_,) in file.fetch_rows(sql, (*ids, *filters.values))}
        wanted = [id_ for id_ in ids if id_ in found][:max_rows]
        return {id_: record_codec.job(*file.fetch_rows(_SQL["load"], (id_,))[0]) for id_ in wanted}

    return await search_page(where, limit, cursor, walk, pick)


def _walk(file: SqliteFile, where: JobFilter, place: SearchPosition, max_rows: int) -> list[SearchPosition]:
    if is_ordered_by_completion(where):
        return _walk_completion(file, where, place, max_rows)
    floor = 0 if where.created_after is None else min(first_id_after(max(0, where.created_after)), MAX_INT64)
    for column in ("correlation_id", "doc_id", "target"):
        value = getattr(where, column)
        if value is not None:
            found = [id_ for (id_,) in file.fetch_rows(_SQL[f"by_{column}"], (value, place.id, floor, max_rows))]
            if column == "correlation_id":
                found += [id_ for (id_,) in file.fetch_rows(_SQL["by_job_id"], (value, place.id, floor))]
            return [SearchPosition(0, id_) for id_ in sorted(found, reverse=True)[:max_rows]]
    found = [id_ for (id_,) in file.fetch_rows(_SQL["by_error"], (where.error_code, place.id, floor, max_rows))]
    return [SearchPosition(0, id_) for id_ in found]


def _walk_completion(file: SqliteFile, where: JobFilter, place: SearchPosition, max_rows: int) -> list[SearchPosition]:
    tenants = sorted(where.tenants) if where.tenants is not None else []
    alone = len(tenants) == 1
    after = -MAX_INT64 if where.completed_after is None else clamp_instant(where.completed_after)
    before = MAX_INT64 if where.completed_before is None else clamp_instant(where.completed_before - 1)
    newest = min(place.completed_at, before)
    sql = _SQL["by_tenant_completion" if alone else "by_completion"]
    values = (*tenants,) if alone else ()
    return [
        SearchPosition(at, id_)
        for at, id_ in file.fetch_rows(sql, (*values, newest, after, place.completed_at, place.id, max_rows))
    ]


def build_filters(where: JobFilter) -> Filters:
    """Return the conditions on jobs that one of the indexes found."""
    filters = Filters(_SQL)
    equal = {
        "status": where.status,
        "request_type": where.request_type,
        "doc_id": where.doc_id,
        "correlation_id": where.correlation_id,
        "target": where.target,
        "error_code": where.error_code,
        "blocked_on": where.blocked_on,
    }
    for name, value in equal.items():
        if value is not None:
            filters.add(f"where_{name}", str(value))
    if where.tenants is not None:
        filters.add_set("where_tenants", where.tenants)
    if where.blocked_services is not None:
        filters.add_set("where_blocked_services", where.blocked_services)
    if where.except_services:
        filters.add_set("where_except_services", where.except_services)
    if where.created_after is not None:
        filters.add("where_created_after", clamp_instant(where.created_after))
    if has_completion(where):
        after, before = where.completed_after, where.completed_before
        filters.add(
            "where_completed",
            -MAX_INT64 if after is None else clamp_instant(after),
            MAX_INT64 if before is None else clamp_instant(before),
        )
    return filters
