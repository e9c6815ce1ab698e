"""Reads review items. Each statement walks an index in the order of its answer and stops at its limit."""

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.page_cursor import decode_cursor, encode_cursor
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.filters import Filters
from lucius.core.model.records import ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.readers import ReviewFilter, ReviewGroup, ReviewPage

_LAST = 2**62

_SQL = load_statements(__package__, "reviews")


class SqliteReviews:
    """Implements ReviewReader."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def review(self, review_id: str) -> ReviewItem | None:
        row = self._file.fetch_row(_SQL["review"], (review_id,))
        return record_codec.decode_review(row[0]) if row else None

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        below = _LAST if cursor is None else decode_cursor(cursor, "reviews")
        filters = _filters(where)
        sql = filters.fill("page")
        found: list[tuple[int, str]] = []
        for status in ReviewStatus if where.status is None else [where.status]:
            rows = self._file.fetch_rows(sql, (str(status), below, *filters.values, limit + 1))
            found += [(id_, body) for id_, body in rows]
        page = sorted(found, reverse=True)[: limit + 1]
        items = [record_codec.decode_review(body) for _, body in page[:limit]]
        return ReviewPage(items, encode_cursor(page[limit - 1][0], "reviews") if len(page) > limit else None)

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        filters = _filters(where)
        if where.status is not None:
            filters.add("where_status", str(where.status))
        found = self._file.fetch_rows(filters.fill("groups"), (*filters.values, limit))
        return [ReviewGroup(name, ReviewKind(kind), n, self._by_id(newest)) for name, kind, n, newest in found]

    def _by_id(self, id_: int) -> ReviewItem:
        return record_codec.decode_review(self._file.fetch_rows(_SQL["by_id"], (id_,))[0][0])

    async def open_reviews(self) -> dict[str, int]:
        return dict(self._file.fetch_rows(_SQL["open"]))


def _filters(where: ReviewFilter) -> Filters:
    filters = Filters(_SQL)
    for name, value in (("kind", where.kind), ("signature", where.signature), ("job_id", where.job_id)):
        if value is not None:
            filters.add(f"where_{name}", str(value))
    if where.kinds is not None:
        filters.add_set("where_kinds", frozenset(map(str, where.kinds)))
    if where.tenants is not None:
        filters.add_set("where_tenants", where.tenants)
    return filters
