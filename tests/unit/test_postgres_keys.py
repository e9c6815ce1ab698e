"""Who holds an idempotency key, asked by many at once."""

import asyncio
from typing import Any

import pytest

from lucius.adapters.postgres.keys import Keys
from lucius.ports.errors import LedgerDown
from lucius.ports.ledger import IdempotencyRow


class Database:
    """Answers when it is told to, and knows what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers = asyncio.Event()
        self.down = False

    async def rows(self, sql: str, tenants: list[str], keys: list[str]) -> list[Any]:
        self.asked.append(keys)
        await self.answers.wait()
        if self.down:
            raise LedgerDown("away")
        return [
            (tenant, key, f"job-{key}", "hash") for tenant, key in zip(tenants, keys, strict=True) if key != "nobody's"
        ]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)  # type: ignore[arg-type]


async def asking(keys: Keys, *names: str) -> list["asyncio.Task[IdempotencyRow | None]"]:
    tasks = [asyncio.create_task(keys.holder("acme", name)) for name in names]
    await asyncio.sleep(0)
    return tasks


async def test_those_who_ask_during_a_query_share_the_next(keys: Keys, database: Database) -> None:
    tasks = await asking(keys, "a") + await asking(keys, "b", "nobody's", "b", "c")
    database.answers.set()
    found = await asyncio.gather(*tasks)
    assert [row and row.job_id for row in found] == ["job-a", "job-b", None, "job-b", "job-c"]
    assert database.asked == [["a"], ["b", "nobody's", "c"]]


async def test_nobody_gets_an_answer_that_is_older_than_the_question(keys: Keys, database: Database) -> None:
    tasks = await asking(keys, "a") + await asking(keys, "a")
    database.answers.set()
    await asyncio.gather(*tasks)
    assert database.asked == [["a"], ["a"]]


async def test_who_goes_away_takes_nobody_elses_answer_along(keys: Keys, database: Database) -> None:
    first, second, third = await asking(keys, "a") + await asking(keys, "b", "c")
    first.cancel()
    await asyncio.wait({first})
    for _ in range(5):
        await asyncio.sleep(0)
    assert database.asked == [["a"], ["b", "c"]]
    second.cancel()
    await asyncio.wait({second})
    database.answers.set()
    assert await third == IdempotencyRow("job-c", "hash")


async def test_an_outage_is_waited_out_once_and_told_to_all(keys: Keys, database: Database) -> None:
    tasks = await asking(keys, "a") + await asking(keys, "b", "c", "d")
    database.down = True
    database.answers.set()
    assert {type(failure) for failure in await asyncio.gather(*tasks, return_exceptions=True)} == {LedgerDown}
    assert len(database.asked) == 2
    database.down = False
    assert await keys.holder("acme", "a") is not None
