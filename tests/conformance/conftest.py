"""Every ledger behind one fixture name. A new ledger is added by one line; buses are in `test_bus.py` (`BUSES`)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from lucius.adapters.ledger.memory.store import open_memory
from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.adapters.ledger.sqlite.store import open_sqlite
from lucius.ports.store import Store


async def _memory(url: str) -> Store:
    return open_memory()


async def _sqlite(url: str) -> Store:
    return open_sqlite(url.removeprefix("sqlite:///"))


STORES: dict[str, Callable[[str], Awaitable[Store]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": open_postgres,
}


@pytest.fixture(params=STORES)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'ledger.db'}"
        case "postgres":
            return str(request.getfixturevalue("emptied_postgres_url"))
        case _:
            return "memory:"


@pytest.fixture
async def store(ledger_url: str) -> AsyncIterator[Store]:
    opened = await STORES[ledger_url.partition(":")[0].replace("postgresql", "postgres")](ledger_url)
    yield opened
    await opened.close()
