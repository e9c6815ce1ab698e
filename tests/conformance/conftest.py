"""Every adapter of a port, behind one fixture name. A new adapter joins by one line here."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from lucius.adapters.ledger_memory import MemoryLedger
from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.core.decision import Decision
from lucius.ports.inbox import Inbox
from lucius.ports.ledger import Ledger, Outbox, Reader, ReviewReader
from lucius.ports.protocols import ProtocolStore


class FullLedger(Ledger, Outbox, Reader, ReviewReader, ProtocolStore, Inbox, Protocol):
    on_commit: Callable[[Decision], None] | None
    on_flush: Callable[[int, float], None] | None


async def _memory(url: str) -> FullLedger:
    return MemoryLedger()


async def _sqlite(url: str) -> FullLedger:
    return SqliteLedger.open(url.removeprefix("sqlite:///"))


LEDGERS: dict[str, Callable[[str], Awaitable[FullLedger]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": PostgresLedger.open,
}


@pytest.fixture(params=LEDGERS)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'ledger.db'}"
        case "postgres":
            return str(request.getfixturevalue("emptied_postgres_url"))
        case _:
            return "memory:"


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[FullLedger]:
    opened = await LEDGERS[ledger_url.partition(":")[0].replace("postgresql", "postgres")](ledger_url)
    yield opened
    await opened.close()
