"""Guarantees of every reader of review items (`lucius.ports.readers.ReviewReader`)."""

from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.model.decision import Applied, Decision
from lucius.core.model.records import ErrorInfo, ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.errors import LedgerError
from lucius.ports.readers import ReviewFilter
from lucius.ports.store import Store
from tests.conformance.builders import PROTOCOL, accept

Found = list[str]
EVERY = ReviewFilter(status=None)


class ReviewItems:
    """Opens and closes review items, each with its own job."""

    def __init__(self, store: Store) -> None:
        self.ledger = store
        self.items: dict[str, ReviewItem] = {}
        self._last: dict[str, Decision] = {}

    async def open(self, name: str, **fields: Any) -> ReviewItem:
        given = {
            "review_id": f"{name}~run1",
            "job_id": name,
            "tenant_id": "acme",
            "request_type": "OCR",
            "kind": ReviewKind.JOB_FAILED,
            "status": ReviewStatus.OPEN,
            "signature": "ocr/BROKEN",
            "created_at": 1_000,
            "updated_at": 1_000,
        }
        item = ReviewItem(**{**given, **fields})
        decision = replace(accept(name), reviews=(item,))
        await self.ledger.ledger.commit(decision)
        self._last[name], self.items[name] = decision, item
        return item

    async def change(self, name: str, **fields: Any) -> ReviewItem:
        item = replace(self.items[name], updated_at=2_000, **fields)
        job = self._last[name].job
        changed = replace(job, version=job.version + 1)
        decision = Decision(job=changed, replies=(Applied(),), protocol=PROTOCOL, reviews=(item,))
        await self.ledger.ledger.commit(decision)
        self._last[name], self.items[name] = decision, item
        return item

    async def found(self, where: ReviewFilter = EVERY, limit: int = 100) -> Found:
        page = await self.ledger.reviews.reviews(where, limit, None)
        return [item.job_id for item in page.items]


@pytest.fixture
def review_items(store: Store) -> ReviewItems:
    return ReviewItems(store)


async def test_item_is_read_by_id_with_all_fields(review_items: ReviewItems) -> None:
    error = ErrorInfo("BROKEN", "it broke")
    item = await review_items.open("a", step_id="ocr.3", attempt_no=2, lease_id="l", error=error, run_no=4)
    assert await review_items.ledger.reviews.review("a~run1") == item
    assert await review_items.ledger.reviews.review("b~run1") is None


async def test_changed_item_keeps_its_place_in_the_listing(review_items: ReviewItems) -> None:
    for name in ("a", "b", "c"):
        await review_items.open(name)
    closed = await review_items.change(
        "b", status=ReviewStatus.RESOLVED, resolved_by="ada", act="adopt", reason="why not"
    )
    assert await review_items.ledger.reviews.review("b~run1") == closed
    assert await review_items.found() == ["c", "b", "a"]
    assert await review_items.found(ReviewFilter()) == ["c", "a"]
    assert await review_items.found(ReviewFilter(status=ReviewStatus.RESOLVED)) == ["b"]


async def test_item_of_a_refused_commit_is_not_stored(review_items: ReviewItems) -> None:
    item = await review_items.open("a")
    stale = replace(accept("a"), reviews=(replace(item, review_id="a~other"),))
    with pytest.raises(LedgerError):
        await review_items.ledger.ledger.commit(stale)
    assert await review_items.ledger.reviews.review("a~other") is None


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (EVERY, ["e", "d", "c", "b", "a"]),
        (ReviewFilter(), ["d", "c", "b", "a"]),
        (ReviewFilter(status=ReviewStatus.DISCARDED), ["e"]),
        (ReviewFilter(tenants=frozenset({"globex"})), ["c"]),
        (ReviewFilter(tenants=frozenset({"globex", "acme"})), ["d", "c", "b", "a"]),
        (ReviewFilter(tenants=frozenset()), []),
        (ReviewFilter(kind=ReviewKind.POISON), ["b"]),
        (ReviewFilter(signature="sis/SLOW"), ["d"]),
        (ReviewFilter(signature="ocr/BROKEN", tenants=frozenset({"acme"})), ["b", "a"]),
        (ReviewFilter(job_id="a"), ["a"]),
        (ReviewFilter(job_id="a", kind=ReviewKind.POISON), []),
        (replace(EVERY, job_id="e", tenants=frozenset({"acme"})), ["e"]),
    ],
)
async def test_listing_is_newest_first_and_supports_each_filter(
    review_items: ReviewItems, where: ReviewFilter, names: list[str]
) -> None:
    await review_items.open("a")
    await review_items.open("b", kind=ReviewKind.POISON)
    await review_items.open("c", tenant_id="globex")
    await review_items.open("d", signature="sis/SLOW")
    await review_items.open("e")
    await review_items.change("e", status=ReviewStatus.DISCARDED)
    assert await review_items.found(where) == names


@pytest.mark.parametrize("where", [ReviewFilter(), EVERY, ReviewFilter(tenants=frozenset({"acme"}))])
async def test_pages_join_while_items_are_opened_and_changed(review_items: ReviewItems, where: ReviewFilter) -> None:
    for n in range(6):
        await review_items.open(f"j{n}")
    listed_ids: list[str] = []
    cursor = None
    for turn in range(10):
        page = await review_items.ledger.reviews.reviews(where, 2, cursor)
        listed_ids += [item.job_id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        await review_items.open(f"late{turn}")
        await review_items.change(page.items[0].job_id, reason="seen")
    assert listed_ids == ["j5", "j4", "j3", "j2", "j1", "j0"]


async def test_the_last_page_has_no_cursor(review_items: ReviewItems) -> None:
    for name in ("a", "b"):
        await review_items.open(name)
    assert (await review_items.ledger.reviews.reviews(EVERY, 2, None)).next_cursor is None
    assert (await review_items.ledger.reviews.reviews(EVERY, 1, None)).next_cursor is not None


@pytest.mark.parametrize("cursor", ["", "nonsense", "bm9wZQ", "\x00"])
async def test_invalid_cursor_is_refused(review_items: ReviewItems, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await review_items.ledger.reviews.reviews(EVERY, 1, cursor)


async def test_items_are_grouped_by_signature_with_the_largest_group_first(review_items: ReviewItems) -> None:
    for name, signature in (("a", "x"), ("b", "y"), ("c", "y"), ("e", "y")):
        await review_items.open(name, signature=signature)
    await review_items.open("d", signature="z", kind=ReviewKind.POISON)
    await review_items.change("e", status=ReviewStatus.REPROCESSED)
    groups = await review_items.ledger.reviews.review_groups(ReviewFilter(), 10)
    assert [(group.signature, group.kind, group.count, group.newest.job_id) for group in groups] == [
        ("y", ReviewKind.JOB_FAILED, 2, "c"),
        ("x", ReviewKind.JOB_FAILED, 1, "a"),
        ("z", ReviewKind.POISON, 1, "d"),
    ]
    assert groups[0].newest == review_items.items["c"]
    assert [group.count for group in await review_items.ledger.reviews.review_groups(EVERY, 1)] == [3]
    assert await review_items.ledger.reviews.review_groups(ReviewFilter(tenants=frozenset({"globex"})), 10) == []


async def test_open_items_are_counted_by_kind(review_items: ReviewItems) -> None:
    assert await review_items.ledger.reviews.open_reviews() == {}
    for name in ("a", "b"):
        await review_items.open(name)
    await review_items.open("c", kind=ReviewKind.STALE_RESULT)
    await review_items.open("d", kind=ReviewKind.POISON)
    await review_items.change("d", status=ReviewStatus.DISCARDED)
    assert await review_items.ledger.reviews.open_reviews() == {"JOB_FAILED": 2, "STALE_RESULT": 1}
