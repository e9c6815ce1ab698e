"""Concurrent lookups of idempotency keys."""

import asyncio
from typing import Any

import pytest

from lucius.adapters.ledger.postgres.idempotency_reads import IdempotencyReader
from lucius.ports.errors import LedgerDown, LedgerError
from lucius.ports.ledger import IdempotencyRow


class Database:
    """A database that answers when the test permits, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers = asyncio.Event()
        self.down = False

    async def fetch_rows(self, sql: str, tenants: list[str], keys: list[str]) -> list[Any]:
        self.asked.append(keys)
        await self.answers.wait()
        if self.down:
            raise LedgerDown("away")
        if "poison" in keys:
            raise LedgerError("a value that the server does not take")
        return [
            (tenant, key, f"job-{key}", "hash") for tenant, key in zip(tenants, keys, strict=True) if key != "nobody's"
        ]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def keys(database: Database) -> IdempotencyReader:
    return IdempotencyReader(database)  # type: ignore[arg-type]


async def start_lookups(keys: IdempotencyReader, *names: str) -> list["asyncio.Task[IdempotencyRow | None]"]:
    tasks = [asyncio.create_task(keys.find("acme", name)) for name in names]
    await asyncio.sleep(0)
    return tasks


async def test_lookups_during_a_query_share_the_next(keys: IdempotencyReader, database: Database) -> None:
    tasks = await start_lookups(keys, "a") + await start_lookups(keys, "b", "nobody's", "b", "c")
    database.answers.set()
    found = await asyncio.gather(*tasks)
    assert [row and row.job_id for row in found] == ["job-a", "job-b", None, "job-b", "job-c"]
    assert database.asked == [["a"], ["b", "nobody's", "c"]]


async def test_lookup_never_uses_a_query_sent_before_it(keys: IdempotencyReader, database: Database) -> None:
    tasks = await start_lookups(keys, "a") + await start_lookups(keys, "a")
    database.answers.set()
    await asyncio.gather(*tasks)
    assert database.asked == [["a"], ["a"]]


async def test_cancelled_reader_does_not_cancel_the_shared_query(keys: IdempotencyReader, database: Database) -> None:
    first, second, third = await start_lookups(keys, "a") + await start_lookups(keys, "b", "c")
    first.cancel()
    await asyncio.wait({first})
    for _ in range(5):
        await asyncio.sleep(0)
    assert database.asked == [["a"], ["b", "c"]]
    second.cancel()
    await asyncio.wait({second})
    database.answers.set()
    assert await third == IdempotencyRow("job-c", "hash")


async def test_outage_fails_all_waiting_lookups_with_one_query(keys: IdempotencyReader, database: Database) -> None:
    tasks = await start_lookups(keys, "a") + await start_lookups(keys, "b", "c", "d")
    database.down = True
    database.answers.set()
    assert {type(failure) for failure in await asyncio.gather(*tasks, return_exceptions=True)} == {LedgerDown}
    assert len(database.asked) == 2
    database.down = False
    assert await keys.find("acme", "a") is not None


async def test_key_that_fails_the_statement_fails_no_other_lookup(keys: IdempotencyReader, database: Database) -> None:
    first = await start_lookups(keys, "first")
    others = await start_lookups(keys, "a", "poison", "b", "nobody's")
    database.answers.set()
    outcomes = await asyncio.gather(*first, *others, return_exceptions=True)
    assert isinstance(outcomes.pop(2), LedgerError)
    assert [found and found.job_id for found in outcomes if not isinstance(found, BaseException)] == [
        *("job-first", "job-a", "job-b"),
        None,
    ]
