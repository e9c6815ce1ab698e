"""Reads review items. Each statement walks an index in the order of its answer and stops at its limit."""

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.page_cursor import decode_cursor, encode_cursor
from lucius.adapters.ledger.postgres.batch import replace_nul
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.filters import Arguments, Filters
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.records import ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.readers import ReviewFilter, ReviewGroup, ReviewPage

_LAST = 2**63 - 1

_SQL = load_statements(__package__, "reviews")
_REVIEW = _SQL["review"]
_OPEN = _SQL["open"]


class PostgresReviews:
    """Implements ReviewReader."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def review(self, review_id: str) -> ReviewItem | None:
        row = await self._database.fetch_row(_REVIEW, review_id) if is_valid_text(review_id) else None
        return record_codec.decode_review(row["body"]) if row else None

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        below = _LAST if cursor is None else decode_cursor(cursor, "reviews")
        statuses = [str(status) for status in (ReviewStatus if where.status is None else [where.status])]
        arguments = Arguments(statuses, below, limit + 1)
        found = await self._database.fetch_rows(_page(where, arguments), *arguments.values)
        items = [record_codec.decode_review(row["body"]) for row in found[:limit]]
        return ReviewPage(items, encode_cursor(found[limit - 1]["id"], "reviews") if len(found) > limit else None)

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        arguments = Arguments(limit)
        filters = _filters(where, arguments, "kind", "kinds", "signature", "job_id", "tenants", "status")
        found = await self._database.fetch_rows(filters.fill("groups"), *arguments.values)
        return [
            ReviewGroup(row["signature"], ReviewKind(row["kind"]), row["n"], record_codec.decode_review(row["body"]))
            for row in found
        ]

    async def open_reviews(self) -> dict[str, int]:
        return {row["kind"]: row["n"] for row in await self._database.fetch_rows(_OPEN)}


def _page(where: ReviewFilter, arguments: Arguments) -> str:
    if where.job_id is not None:
        return _filters(where, arguments, "job_id", "kind", "kinds", "signature", "tenants").fill("of_job")
    filters = _filters(where, arguments, "kind", "kinds", "signature")
    if where.tenants is None:
        return filters.fill("of_all")
    return filters.fill("of_tenants", tenants=arguments.add(_known(where.tenants)))


def _filters(where: ReviewFilter, arguments: Arguments, *names: str) -> Filters:
    """Return conditions for those of `names` that are set."""
    filters = Filters(_SQL, arguments)
    for name in names:
        asked = getattr(where, name)
        if isinstance(asked, frozenset):
            filters.add(f"where_{name}", _known(asked))
        elif asked is not None:
            filters.add(f"where_{name}", replace_nul(str(asked)))  # as `batch` stores it
    return filters


def _known(texts: frozenset[str] | frozenset[ReviewKind]) -> list[str]:
    return sorted(str(text) for text in texts if is_valid_text(text))
