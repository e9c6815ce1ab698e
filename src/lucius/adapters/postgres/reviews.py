"""Reading review items. Each statement walks an index in the order of its answer and stops at its limit."""

from typing import Any

from lucius.adapters import rows
from lucius.adapters.cursor import decode_cursor, encode_cursor
from lucius.adapters.postgres.batch import storable
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.texts import findable
from lucius.core.model import ReviewItem, ReviewKind, ReviewStatus
from lucius.ports.ledger import ReviewFilter, ReviewGroup, ReviewPage

_LAST = 2**63 - 1

_REVIEW = "SELECT body FROM reviews WHERE review_id = $1"
_OPEN = "SELECT kind, count(*) AS n FROM reviews WHERE status = 'OPEN' GROUP BY kind"
# A job has few items; sorted apart, so that nobody looks for them along all there are.
_OF_JOB = """
    WITH found AS MATERIALIZED (SELECT id, status, body FROM reviews WHERE {filters})
    SELECT id, body FROM found WHERE status = ANY($1) AND id < $2 ORDER BY id DESC LIMIT $3
"""
_OF_ALL = """
    SELECT found.id, found.body FROM unnest($1::text[]) AS wanted (status) CROSS JOIN LATERAL (
        SELECT id, body FROM reviews
        WHERE (status, id) < (wanted.status, $2) AND (status, id) >= (wanted.status, 0){filters}
        ORDER BY status DESC, id DESC LIMIT $3
    ) AS found ORDER BY id DESC LIMIT $3
"""
_OF_TENANTS = """
    SELECT found.id, found.body
    FROM unnest({tenants}::text[]) AS owner (tenant_id) CROSS JOIN unnest($1::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT id, body FROM reviews
        WHERE (tenant_id, status, id) < (owner.tenant_id, wanted.status, $2)
        AND (tenant_id, status, id) >= (owner.tenant_id, wanted.status, 0){filters}
        ORDER BY tenant_id DESC, status DESC, id DESC LIMIT $3
    ) AS found ORDER BY id DESC LIMIT $3
"""
_GROUPS = """
    SELECT signature, kind, n, (SELECT body FROM reviews WHERE id = newest) AS body FROM (
        SELECT signature, kind, count(*) AS n, max(id) AS newest FROM reviews{filters}
        GROUP BY signature, kind ORDER BY count(*) DESC, signature LIMIT $1
    ) AS largest ORDER BY n DESC, signature
"""


class PostgresReviews:
    """Implements ReviewReader."""

    _database: Database

    async def review(self, review_id: str) -> ReviewItem | None:
        row = await self._database.row(_REVIEW, review_id) if findable(review_id) else None
        return rows.review(row["body"]) if row else None

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        below = _LAST if cursor is None else decode_cursor(cursor, "reviews")
        statuses = [str(status) for status in (ReviewStatus if where.status is None else [where.status])]
        values: list[Any] = [statuses, below, limit + 1]
        found = await self._database.rows(_page(where, values), *values)
        items = [rows.review(row["body"]) for row in found[:limit]]
        return ReviewPage(items, encode_cursor(found[limit - 1]["id"], "reviews") if len(found) > limit else None)

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        values: list[Any] = [limit]
        filters = _filters(where, values, "kind", "kinds", "signature", "job_id", "tenants", "status")
        sql = _GROUPS.format(filters=f" WHERE {' AND '.join(filters)}" if filters else "")
        found = await self._database.rows(sql, *values)
        return [
            ReviewGroup(row["signature"], ReviewKind(row["kind"]), row["n"], rows.review(row["body"])) for row in found
        ]

    async def open_reviews(self) -> dict[str, int]:
        return {row["kind"]: row["n"] for row in await self._database.rows(_OPEN)}


def _page(where: ReviewFilter, values: list[Any]) -> str:
    if where.job_id is not None:
        names = ("job_id", "kind", "kinds", "signature", "tenants")
        return _OF_JOB.format(filters=" AND ".join(_filters(where, values, *names)))
    filters = "".join(f" AND {each}" for each in _filters(where, values, "kind", "kinds", "signature"))
    if where.tenants is None:
        return _OF_ALL.format(filters=filters)
    values.append(_known(where.tenants))
    return _OF_TENANTS.format(tenants=f"${len(values)}", filters=filters)


def _filters(where: ReviewFilter, values: list[Any], *names: str) -> list[str]:
    """Of those named, the ones that are set; their values join the statement's."""
    columns = {"kinds": "kind", "tenants": "tenant_id"}
    filters: list[str] = []
    for name in names:
        asked = getattr(where, name)
        if asked is None:
            continue
        if isinstance(asked, frozenset):
            values.append(_known(asked))
            filters.append(f"{columns[name]} = ANY(${len(values)}::text[])")
        else:
            values.append(storable(str(asked)))  # as it was written
            filters.append(f"{name} = ${len(values)}")
    return filters


def _known(texts: frozenset[str] | frozenset[ReviewKind]) -> list[str]:
    return sorted(str(text) for text in texts if findable(text))
