"""Searches for jobs in PostgreSQL: statements that walk an index, and one that applies the other filters."""

from collections.abc import Mapping, Sequence

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres.batch import first_id_after
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.filters import Arguments, Filters
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.search_page import (
    MAX_INT64,
    SearchPosition,
    clamp_instant,
    has_completion,
    is_ordered_by_completion,
    search_page,
)
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.records import Job
from lucius.ports.readers import JobFilter, JobPage

_SQL = load_statements(__package__, "searching")


async def search_jobs(database: Database, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
    """Return a page of the jobs that match. Raises ValueError for a cursor that is not of this list."""

    async def walk(place: SearchPosition, max_rows: int) -> Sequence[SearchPosition]:
        return await _walk(database, where, place, max_rows) if _can_match(where) else ()

    async def pick(ids: Sequence[int], max_rows: int) -> Mapping[int, Job]:
        arguments = Arguments(list(ids), max_rows)
        sql = _filters(where, arguments).fill("pick")
        found = await database.fetch_rows(sql, *arguments.values) if ids else []
        return {row["id"]: record_codec.job(row["command"], row["head"]) for row in found}

    return await search_page(where, limit, cursor, walk, pick)


def _can_match(where: JobFilter) -> bool:
    texts = (where.doc_id, where.correlation_id, where.target, where.error_code, where.request_type)
    return all(is_valid_text(text) for text in texts if text is not None)


async def _walk(database: Database, where: JobFilter, place: SearchPosition, max_rows: int) -> list[SearchPosition]:
    if is_ordered_by_completion(where):
        return await _walk_completion(database, where, place, max_rows)
    floor = 0 if where.created_after is None else min(first_id_after(max(0, where.created_after)), MAX_INT64)
    if where.correlation_id is not None:
        sql, value = _SQL["by_correlation_id"], where.correlation_id
    elif where.doc_id is not None:
        sql, value = _SQL["by_doc_id"], where.doc_id
    elif where.target is not None:
        sql, value = _SQL["by_target"], where.target
    else:
        sql, value = _SQL["by_error_code"], where.error_code or ""
    return [SearchPosition(0, row["id"]) for row in await database.fetch_rows(sql, value, place.id, floor, max_rows)]


async def _walk_completion(
    database: Database, where: JobFilter, place: SearchPosition, max_rows: int
) -> list[SearchPosition]:
    before = MAX_INT64 if where.completed_before is None else clamp_instant(where.completed_before)
    start = min(place, SearchPosition(before, -1))  # before jobs that ended at that very instant
    after = -MAX_INT64 if where.completed_after is None else clamp_instant(where.completed_after)
    tenants = [tenant for tenant in where.tenants or () if is_valid_text(tenant)]
    alone = where.tenants is not None and len(tenants) == 1
    sql = _SQL["by_tenant_completion" if alone else "by_completion"]
    found = await database.fetch_rows(sql, start.completed_at, start.id, after, max_rows, *(tenants if alone else ()))
    return [SearchPosition(row["completed_at"], row["id"]) for row in found]


def _filters(where: JobFilter, arguments: Arguments) -> Filters:
    filters = Filters(_SQL, arguments)
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
    for name, names in (("tenants", where.tenants), ("blocked_services", where.blocked_services)):
        if names is not None:
            filters.add(f"where_{name}", [one for one in sorted(names) if is_valid_text(one)])
    if where.except_services:
        filters.add("where_except_services", sorted(where.except_services))
    if where.created_after is not None:
        filters.add("where_created_after", clamp_instant(where.created_after))
    if has_completion(where):
        after, before = where.completed_after, where.completed_before
        filters.add("where_completed_after", -MAX_INT64 if after is None else clamp_instant(after))
        filters.add("where_completed_before", MAX_INT64 if before is None else clamp_instant(before))
    return filters
