"""What every reader of review items promises (`lucius.ports.ledger.ReviewReader`)."""

from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.decision import Applied, Decision
from lucius.core.model import ErrorInfo, ReviewItem, ReviewKind, ReviewStatus
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import ReviewFilter
from tests.conformance.builders import PROTOCOL, accept
from tests.conformance.conftest import FullLedger

Found = list[str]
EVERY = ReviewFilter(status=None)


class Desk:
    """Opens and closes items, each with a job of its own."""

    def __init__(self, ledger: FullLedger) -> None:
        self.ledger = ledger
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
        await self.ledger.commit(decision)
        self._last[name], self.items[name] = decision, item
        return item

    async def change(self, name: str, **fields: Any) -> ReviewItem:
        item = replace(self.items[name], updated_at=2_000, **fields)
        job = self._last[name].job
        changed = replace(job, version=job.version + 1)
        decision = Decision(job=changed, replies=(Applied(),), protocol=PROTOCOL, reviews=(item,))
        await self.ledger.commit(decision)
        self._last[name], self.items[name] = decision, item
        return item

    async def found(self, where: ReviewFilter = EVERY, limit: int = 100) -> Found:
        page = await self.ledger.reviews(where, limit, None)
        return [item.job_id for item in page.items]


@pytest.fixture
def desk(ledger: FullLedger) -> Desk:
    return Desk(ledger)


async def test_an_item_is_found_by_its_id_with_all_that_was_kept(desk: Desk) -> None:
    error = ErrorInfo("BROKEN", "it broke")
    item = await desk.open("a", step_id="ocr.3", attempt_no=2, lease_id="l", error=error, run_no=4)
    assert await desk.ledger.review("a~run1") == item
    assert await desk.ledger.review("b~run1") is None


async def test_a_change_is_seen_and_keeps_the_items_place(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        await desk.open(name)
    closed = await desk.change("b", status=ReviewStatus.RESOLVED, resolved_by="ada", act="adopt", reason="why not")
    assert await desk.ledger.review("b~run1") == closed
    assert await desk.found() == ["c", "b", "a"]
    assert await desk.found(ReviewFilter()) == ["c", "a"]
    assert await desk.found(ReviewFilter(status=ReviewStatus.RESOLVED)) == ["b"]


async def test_nothing_is_kept_of_a_commit_that_was_refused(desk: Desk) -> None:
    item = await desk.open("a")
    stale = replace(accept("a"), reviews=(replace(item, review_id="a~other"),))
    with pytest.raises(LedgerError):
        await desk.ledger.commit(stale)
    assert await desk.ledger.review("a~other") is None


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
async def test_a_listing_is_newest_first_and_takes_every_filter(
    desk: Desk, where: ReviewFilter, names: list[str]
) -> None:
    await desk.open("a")
    await desk.open("b", kind=ReviewKind.POISON)
    await desk.open("c", tenant_id="globex")
    await desk.open("d", signature="sis/SLOW")
    await desk.open("e")
    await desk.change("e", status=ReviewStatus.DISCARDED)
    assert await desk.found(where) == names


@pytest.mark.parametrize("where", [ReviewFilter(), EVERY, ReviewFilter(tenants=frozenset({"acme"}))])
async def test_a_listing_is_walked_while_items_come_and_go(desk: Desk, where: ReviewFilter) -> None:
    for n in range(6):
        await desk.open(f"j{n}")
    walked: list[str] = []
    cursor = None
    for turn in range(10):
        page = await desk.ledger.reviews(where, 2, cursor)
        walked += [item.job_id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        await desk.open(f"late{turn}")
        await desk.change(page.items[0].job_id, reason="seen")
    assert walked == ["j5", "j4", "j3", "j2", "j1", "j0"]


async def test_the_last_page_has_no_cursor(desk: Desk) -> None:
    for name in ("a", "b"):
        await desk.open(name)
    assert (await desk.ledger.reviews(EVERY, 2, None)).next_cursor is None
    assert (await desk.ledger.reviews(EVERY, 1, None)).next_cursor is not None


@pytest.mark.parametrize("cursor", ["", "nonsense", "bm9wZQ", "\x00"])
async def test_a_cursor_that_was_not_given_out_is_refused(desk: Desk, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await desk.ledger.reviews(EVERY, 1, cursor)


async def test_groups_have_the_same_signature_the_largest_first(desk: Desk) -> None:
    for name, signature in (("a", "x"), ("b", "y"), ("c", "y"), ("e", "y")):
        await desk.open(name, signature=signature)
    await desk.open("d", signature="z", kind=ReviewKind.POISON)
    await desk.change("e", status=ReviewStatus.REPROCESSED)
    groups = await desk.ledger.review_groups(ReviewFilter(), 10)
    assert [(group.signature, group.kind, group.count, group.newest.job_id) for group in groups] == [
        ("y", ReviewKind.JOB_FAILED, 2, "c"),
        ("x", ReviewKind.JOB_FAILED, 1, "a"),
        ("z", ReviewKind.POISON, 1, "d"),
    ]
    assert groups[0].newest == desk.items["c"]
    assert [group.count for group in await desk.ledger.review_groups(EVERY, 1)] == [3]
    assert await desk.ledger.review_groups(ReviewFilter(tenants=frozenset({"globex"})), 10) == []


async def test_open_items_are_counted_by_kind(desk: Desk) -> None:
    assert await desk.ledger.open_reviews() == {}
    for name in ("a", "b"):
        await desk.open(name)
    await desk.open("c", kind=ReviewKind.STALE_RESULT)
    await desk.open("d", kind=ReviewKind.POISON)
    await desk.change("d", status=ReviewStatus.DISCARDED)
    assert await desk.ledger.open_reviews() == {"JOB_FAILED": 2, "STALE_RESULT": 1}
