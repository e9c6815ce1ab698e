"""Who claims something and is cut off leaves it to others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.engine.temporal.claims import claim
from lucius.ports.errors import LedgerFull
from lucius.ports.inbox import Letter

LETTER = Letter("j1/handed-over", "j1", "[]", 1)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    opened = SqliteLedger.open(tmp_path / "ledger.db")
    yield opened
    await opened.close()


async def claimed(ledger: SqliteLedger, letter: Letter = LETTER) -> bool:
    return await claim(ledger, letter, lambda: ledger.throw_away([letter.letter_id]))


async def cut_off(claiming: "asyncio.Task[bool]") -> None:
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming


async def test_it_belongs_to_the_first(ledger: SqliteLedger) -> None:
    assert [await claimed(ledger), await claimed(ledger)] == [True, False]


@pytest.mark.parametrize("turns", range(5))
async def test_whoever_is_cut_off_gives_it_back(ledger: SqliteLedger, turns: int) -> None:
    claiming = asyncio.create_task(claimed(ledger))
    for _ in range(turns):
        await asyncio.sleep(0)
    if claiming.done():
        return  # it was faster, and has it
    await cut_off(claiming)
    assert await claimed(ledger)


async def test_but_not_what_belongs_to_another(ledger: SqliteLedger) -> None:
    assert await claimed(ledger)
    late = asyncio.create_task(claimed(ledger))
    await asyncio.sleep(0)
    await cut_off(late)
    assert not await claimed(ledger)


async def test_there_is_nothing_to_give_back_of_what_could_not_be_claimed(tmp_path: Path) -> None:
    full = SqliteLedger.open(tmp_path / "full.db", max_page_count=100)
    too_large = Letter("j1/handed-over", "j1", "x" * 1_000_000, 1)
    claiming = asyncio.create_task(claimed(full, too_large))
    await asyncio.sleep(0)
    await cut_off(claiming)
    with pytest.raises(LedgerFull):
        await claimed(full, too_large)
    await full.close()
