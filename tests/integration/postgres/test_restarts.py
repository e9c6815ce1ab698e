"""A restart of PostgreSQL is a short outage and never another kind of error."""

import asyncio
from collections.abc import Iterator

import pytest

from lucius.adapters.ledger.postgres.database import Database
from lucius.ports.errors import LedgerDown
from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer

READERS = 12
RESTARTS = 4


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    need_postgres()
    started = PostgresServer().start()
    yield started
    started.remove()


@pytest.mark.parametrize("crash", [False, True])
async def test_reads_during_restarts_succeed_or_raise_ledger_down(server: PostgresServer, crash: bool) -> None:
    database = Database(server.url("restarts"), READERS)
    await database.open()
    over = asyncio.Event()

    async def read() -> int:
        answers = 0
        while not over.is_set():
            try:
                async with database.connection() as connection:
                    answers += len(await connection.fetch("SELECT 1"))
            except LedgerDown:
                await asyncio.sleep(0.001)
        return answers

    readers = [asyncio.create_task(read()) for _ in range(READERS)]
    for _ in range(RESTARTS):
        await asyncio.sleep(0.05)
        await asyncio.to_thread(server.restart, crash=crash)
    over.set()
    assert sum(await asyncio.gather(*readers)) > 0
    await database.close()
