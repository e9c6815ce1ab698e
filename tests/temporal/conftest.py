"""The ledgers that workflows are projected into: one of the process that works on them, and one that is shared."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("emptied_postgres_url"))
    return f"sqlite:///{tmp_path / 'ledger.db'}"
