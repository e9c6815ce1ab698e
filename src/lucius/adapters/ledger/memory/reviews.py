"""Review items in a dictionary, for the ledger in memory."""

from collections.abc import Iterator
from itertools import islice

from lucius.adapters.ledger.page_cursor import decode_cursor, encode_cursor
from lucius.core.model.records import ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.readers import ReviewFilter, ReviewGroup, ReviewPage


class MemoryReviews:
    """Implements ReviewReader."""

    def __init__(self) -> None:
        self.items: dict[str, ReviewItem] = {}
        self._places: dict[str, int] = {}

    def put(self, item: ReviewItem) -> None:
        """Store an item, unless it would reopen one: the same late success may be reported twice."""
        if item.review_id not in self.items:
            self._places[item.review_id] = len(self._places) + 1
        elif item.kind is ReviewKind.STALE_RESULT and item.status is ReviewStatus.OPEN:
            return
        self.items[item.review_id] = item

    async def review(self, review_id: str) -> ReviewItem | None:
        return self.items.get(review_id)

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        below = decode_cursor(cursor, "reviews") if cursor is not None else len(self._places) + 1
        wanted = (item for item in self._newest_first(where) if self._places[item.review_id] < below)
        found = list(islice(wanted, limit + 1))
        more = len(found) > limit
        items = found[:limit]
        last = self._places[items[-1].review_id] if items else 0
        return ReviewPage(items, encode_cursor(last, "reviews") if more and items else None)

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        by_signature: dict[str, list[ReviewItem]] = {}
        for item in self._newest_first(where):
            by_signature.setdefault(item.signature, []).append(item)
        groups = [ReviewGroup(name, items[0].kind, len(items), items[0]) for name, items in by_signature.items()]
        return sorted(groups, key=lambda group: (-group.count, group.signature))[:limit]

    async def open_reviews(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for item in self.items.values():
            if item.status is ReviewStatus.OPEN:
                counts[str(item.kind)] = counts.get(str(item.kind), 0) + 1
        return counts

    def _newest_first(self, where: ReviewFilter) -> Iterator[ReviewItem]:
        return (item for item in reversed(self.items.values()) if _matches(item, where))


def _matches(item: ReviewItem, where: ReviewFilter) -> bool:
    return (
        (where.tenants is None or item.tenant_id in where.tenants)
        and (where.status is None or item.status is where.status)
        and (where.kind is None or item.kind is where.kind)
        and (where.kinds is None or item.kind in where.kinds)
        and (where.signature is None or item.signature == where.signature)
        and (where.job_id is None or item.job_id == where.job_id)
    )
