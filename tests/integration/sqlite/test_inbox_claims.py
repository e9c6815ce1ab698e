"""A cancelled claim leaves the object to other claimants."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.adapters.ledger.sqlite.store import SqliteStore, open_sqlite
from lucius.engine.temporal.inbox_claims import claim
from lucius.ports.errors import LedgerFull
from lucius.ports.inbox import InboxMessage

MESSAGE = InboxMessage("j1/handed-over", "j1", "[]", 1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = open_sqlite(tmp_path / "ledger.db")
    yield opened
    await opened.close()


async def claimed(store: SqliteStore, message: InboxMessage = MESSAGE) -> bool:
    return await claim(store.inbox, message, lambda: store.inbox.delete([message.message_id]))


async def cancel_claim(claiming: "asyncio.Task[bool]") -> None:
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming


async def test_claimed_object_belongs_to_the_first_claimant(store: SqliteStore) -> None:
    assert [await claimed(store), await claimed(store)] == [True, False]


@pytest.mark.parametrize("turns", range(5))
async def test_cancelled_claim_is_released(store: SqliteStore, turns: int) -> None:
    claiming = asyncio.create_task(claimed(store))
    for _ in range(turns):
        await asyncio.sleep(0)
    if claiming.done():
        return  # the claim was faster than the cancellation and holds
    await cancel_claim(claiming)
    assert await claimed(store)


async def test_cancelled_claim_on_a_claimed_object_leaves_it_to_its_owner(store: SqliteStore) -> None:
    assert await claimed(store)
    late = asyncio.create_task(claimed(store))
    await asyncio.sleep(0)
    await cancel_claim(late)
    assert not await claimed(store)


async def test_cancelled_claim_that_the_ledger_refused_needs_no_release(tmp_path: Path) -> None:
    full = open_sqlite(tmp_path / "full.db", max_page_count=100)
    too_large = InboxMessage("j1/handed-over", "j1", "x" * 1_000_000, 1)
    claiming = asyncio.create_task(claimed(full, too_large))
    await asyncio.sleep(0)
    await cancel_claim(claiming)
    with pytest.raises(LedgerFull):
        await claimed(full, too_large)
    await full.close()
