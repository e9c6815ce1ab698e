"""Errors of a SQLite ledger when the file itself is the problem."""

import sqlite3
from pathlib import Path

import pytest

from lucius.adapters.ledger.sqlite import file
from lucius.adapters.ledger.sqlite.store import open_sqlite
from lucius.ports.errors import LedgerBusy, LedgerCorrupt
from tests.conformance.builders import accept, command
from tests.conformance.test_ledger import together


async def test_unreadable_live_job_is_reported_as_a_damaged_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = open_sqlite(path)
    await store.ledger.commit(accept("j1"))
    await store.close()
    with sqlite3.connect(path) as edited:
        edited.execute("UPDATE jobs SET body = '{'")
    edited.close()
    with pytest.raises(LedgerCorrupt, match="cannot be read"):
        open_sqlite(path)


async def test_locked_file_refuses_all_commits_of_a_group_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller learns that a key is taken by a job that was never written."""
    monkeypatch.setattr(file, "BUSY_TIMEOUT_MS", 1)
    path = tmp_path / "ledger.db"
    store = open_sqlite(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    same = [accept(f"j{n}", asked=command(f"j{n}", idempotency_key="k")) for n in range(2)]
    outcomes = await together(store, *same)
    assert [type(outcome) for outcome in outcomes] == [LedgerBusy, LedgerBusy]
    other.execute("ROLLBACK")
    other.close()
    assert await together(store, same[0]) == [None]
    await store.close()
