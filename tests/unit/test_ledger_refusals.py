"""What a SQLite ledger answers when the file itself is in the way."""

import sqlite3
from pathlib import Path

import pytest

from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.adapters.sqlite import store
from lucius.ports.errors import LedgerBusy, LedgerCorrupt
from tests.conformance.builders import accept, command
from tests.conformance.test_ledger import together


async def test_a_live_job_that_cannot_be_read_is_a_damaged_ledger_and_not_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = SqliteLedger.open(path)
    await ledger.commit(accept("j1"))
    await ledger.close()
    with sqlite3.connect(path) as edited:
        edited.execute("UPDATE jobs SET body = '{'")
    edited.close()
    with pytest.raises(LedgerCorrupt, match="cannot be read"):
        SqliteLedger.open(path)


async def test_a_locked_file_refuses_a_whole_group_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a key is taken by a job that was never written."""
    monkeypatch.setattr(store, "BUSY_TIMEOUT_MS", 1)
    path = tmp_path / "ledger.db"
    ledger = SqliteLedger.open(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    same = [accept(f"j{n}", asked=command(f"j{n}", idempotency_key="k")) for n in range(2)]
    outcomes = await together(ledger, *same)
    assert [type(outcome) for outcome in outcomes] == [LedgerBusy, LedgerBusy]
    other.execute("ROLLBACK")
    other.close()
    assert await together(ledger, same[0]) == [None]
    await ledger.close()
