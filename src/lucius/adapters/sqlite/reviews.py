"""Reading review items. Each statement walks an index in the order of its answer and stops at its limit."""

from typing import Any

from lucius.adapters import rows
from lucius.adapters.cursor import decode_cursor, encode_cursor
from lucius.adapters.sqlite.store import Store
from lucius.core.model import ReviewItem, ReviewKind, ReviewStatus
from lucius.ports.ledger import ReviewFilter, ReviewGroup, ReviewPage

_LAST = 2**62


class SqliteReviews:
    """Implements ReviewReader."""

    _store: Store

    async def review(self, review_id: str) -> ReviewItem | None:
        row = self._store.row("SELECT body FROM reviews WHERE review_id = ?", (review_id,))
        return rows.review(row[0]) if row else None

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        below = _LAST if cursor is None else decode_cursor(cursor, "reviews")
        found: list[tuple[int, str]] = []
        for status in ReviewStatus if where.status is None else [where.status]:
            filters, values = _filters(where)
            sql = f"SELECT id, body FROM reviews WHERE status = ? AND id < ?{filters} ORDER BY id DESC LIMIT ?"
            found += [(id_, body) for id_, body in self._store.rows(sql, (str(status), below, *values, limit + 1))]
        page = sorted(found, reverse=True)[: limit + 1]
        items = [rows.review(body) for _, body in page[:limit]]
        return ReviewPage(items, encode_cursor(page[limit - 1][0], "reviews") if len(page) > limit else None)

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        filters, values = _filters(where)
        status = " AND status = ?" if where.status is not None else ""
        found = self._store.rows(
            f"SELECT signature, kind, count(*), max(id) FROM reviews WHERE 1 = 1{status}{filters} "
            "GROUP BY signature, kind ORDER BY count(*) DESC, signature LIMIT ?",
            (*([str(where.status)] if where.status is not None else []), *values, limit),
        )
        return [ReviewGroup(name, ReviewKind(kind), n, self._by_id(newest)) for name, kind, n, newest in found]

    def _by_id(self, id_: int) -> ReviewItem:
        return rows.review(self._store.rows("SELECT body FROM reviews WHERE id = ?", (id_,))[0][0])

    async def open_reviews(self) -> dict[str, int]:
        return dict(self._store.rows("SELECT kind, count(*) FROM reviews WHERE status = 'OPEN' GROUP BY kind"))


def _filters(where: ReviewFilter) -> tuple[str, list[Any]]:
    filters, values = "", []
    for column, value in (("kind", where.kind), ("signature", where.signature), ("job_id", where.job_id)):
        if value is not None:
            filters += f" AND {column} = ?"
            values.append(str(value))
    if where.kinds is not None:
        filters += f" AND kind IN ({', '.join('?' for _ in where.kinds)})"
        values += sorted(map(str, where.kinds))
    if where.tenants is not None:
        filters += f" AND tenant_id IN ({', '.join('?' for _ in where.tenants)})"
        values += sorted(where.tenants)
    return filters, values
