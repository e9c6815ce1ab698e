"""Every adapter of a port, behind one fixture name. A new adapter joins by one line here."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest

from lucius.adapters.ledger_memory import MemoryLedger
from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.core.decision import Decision
from lucius.ports.ledger import Ledger, Outbox, Reader, ReviewReader
from lucius.ports.protocols import ProtocolStore


class FullLedger(Ledger, Outbox, Reader, ReviewReader, ProtocolStore, Protocol):
    on_commit: Callable[[Decision], None] | None
    on_flush: Callable[[int, float], None] | None


LEDGERS: dict[str, Callable[[Path], FullLedger]] = {
    "memory": lambda folder: MemoryLedger(),
    "sqlite": lambda folder: SqliteLedger.open(folder / "ledger.db"),
}


@pytest.fixture(params=LEDGERS)
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FullLedger]:
    opened = LEDGERS[request.param](tmp_path)
    yield opened
    await opened.close()
