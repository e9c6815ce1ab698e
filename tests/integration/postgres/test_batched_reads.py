"""Loads of several jobs in one statement."""

import asyncio
from typing import Any

from lucius.adapters.ledger.postgres.batched_reads import JobLoader
from lucius.adapters.ledger.postgres.cache import JobCache
from lucius.ports.errors import LedgerDown, LedgerError


class Database:
    """A database that refuses every statement that asks for the job `poison`."""

    def __init__(self, error: LedgerError) -> None:
        self.error = error
        self.asked: list[list[str]] = []

    async def fetch_rows(self, sql: str, job_ids: list[str], steps: list[str]) -> list[Any]:
        self.asked.append(job_ids)
        if "poison" in job_ids:
            raise self.error
        return []


async def load(database: Database, *job_ids: str) -> list[Any]:
    loads = JobLoader(database, JobCache())  # type: ignore[arg-type]
    return await asyncio.gather(*(loads.load(job_id, ()) for job_id in job_ids), return_exceptions=True)


async def test_job_that_fails_the_statement_fails_no_other_load() -> None:
    database = Database(LedgerError("a value that the server does not take"))
    assert await load(database, "a", "poison", "b") == [None, database.error, None]
    assert database.asked == [["a", "poison", "b"], ["a"], ["poison"], ["b"]]


async def test_outage_is_not_retried_for_each_job() -> None:
    database = Database(LedgerDown("away"))
    assert await load(database, "a", "poison", "b") == [database.error] * 3
    assert len(database.asked) == 1


async def test_impossible_step_id_is_not_queried() -> None:
    asked: list[str] = []

    class Noting(Database):
        async def fetch_rows(self, sql: str, job_ids: list[str], steps: list[str]) -> list[Any]:
            asked.extend(steps)
            return []

    loads = JobLoader(Noting(LedgerError("")), JobCache())  # type: ignore[arg-type]
    assert await loads.load("a", ["ocr", "nul\x00"]) is None
    assert asked == ['["ocr"]']
