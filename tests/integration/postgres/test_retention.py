"""Archiving from a PostgreSQL ledger that servers are using."""

import asyncio
import json
import random
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import Struct

from lucius.adapters.archive.folder import ArchiveFolder
from lucius.adapters.ledger.postgres.archive import PostgresFinishedJobs
from lucius.adapters.ledger.postgres.store import PostgresStore, open_postgres
from lucius.core.model.decision import Decision
from lucius.core.model.statuses import JobStatus
from lucius.ports.archive import FinishedFilter, FinishedJobs, FinishedPage
from lucius.ports.errors import LedgerBusy, LedgerDown, VersionConflict
from lucius.usecases.retention.retention import Order, Retention, Summary
from tests.conformance.builders import accept, then
from tests.support.postgres import PostgresServer

EVERY = FinishedFilter(before=1_000_000)
ORDER = Order(where=EVERY, batch=3)


@pytest.fixture
async def store(emptied_postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(emptied_postgres_url)
    yield opened
    await opened.close()


async def finish(store: PostgresStore, count: int) -> list[Decision]:
    """Finish `count` jobs without steps; return their last decisions in the order of acceptance."""
    new = [accept(f"job-{n}", created_at=1_000 + n) for n in range(count)]
    await asyncio.gather(*(store.ledger.commit(decision) for decision in new))
    last = [then(decision, status=JobStatus.SUCCEEDED, completed_at=5_000) for decision in new]
    await asyncio.gather(*(store.ledger.commit(decision) for decision in last))
    return last


def batched(names: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(names)
    while batch := list(islice(left, size)):
        yield batch


def retry(last: Decision) -> Decision:
    return then(last, status=JobStatus.DISPATCHING, completed_at=None)


async def test_second_concurrent_run_is_refused(emptied_postgres_url: str) -> None:
    async with PostgresFinishedJobs.open(emptied_postgres_url):
        with pytest.raises(LedgerBusy, match="by somebody else"):
            async with PostgresFinishedJobs.open(emptied_postgres_url):
                pass
    async with PostgresFinishedJobs.open(emptied_postgres_url):
        pass


async def test_locked_job_is_skipped_without_waiting(
    store: PostgresStore, emptied_postgres_url: str, postgres: PostgresServer
) -> None:
    first, second = await finish(store, 2)
    somebody = await asyncpg.connect(postgres.url())
    try:
        await somebody.execute("SET search_path = in_turn")
        async with somebody.transaction(), PostgresFinishedJobs.open(emptied_postgres_url) as jobs:
            of_first = "id = (SELECT id FROM jobs WHERE job_id = $1)"
            await somebody.execute(f"SELECT FROM done WHERE {of_first} FOR UPDATE", first.job.job_id)
            async with asyncio.timeout(5):
                assert await jobs.drop({"job-0": first.job.version, "job-1": second.job.version}) == {"job-0"}
    finally:
        await somebody.close()
    assert await store.jobs.job("job-0") is not None
    assert await store.jobs.job("job-1") is None


async def test_job_is_either_retried_or_dropped_never_both(store: PostgresStore, emptied_postgres_url: str) -> None:
    finished = await finish(store, 240)
    versions = {last.job.job_id: last.job.version for last in finished}

    won: set[str] = set()

    async def retry_some(some: list[Decision]) -> None:
        for last in some:
            with suppress(VersionConflict):
                await store.ledger.commit(retry(last))
                won.add(last.job.job_id)

    async def drop_all(jobs: FinishedJobs) -> set[str]:
        still_there: set[str] = set()
        for batch in batched(versions, 24):
            still_there |= await jobs.drop({job_id: versions[job_id] for job_id in batch})
        return still_there

    random.Random(7).shuffle(finished)
    async with PostgresFinishedJobs.open(emptied_postgres_url) as jobs:
        still_there, *_ = await asyncio.gather(drop_all(jobs), *(retry_some(finished[n::4]) for n in range(4)))
    assert won == still_there
    assert 0 < len(won) < 240
    for job_id in versions:
        view = await store.ledger.load(job_id, fresh=True)
        assert (view is not None) is (job_id in won), job_id
        assert view is None or view.job.live


class DisconnectingJobs(Struct):
    """Loses its connection before or after the nth batch is deleted."""

    jobs: FinishedJobs
    server: PostgresServer
    batches: int
    after: bool

    async def page(self, where: FinishedFilter, cursor: int, limit: int, max_bytes: int) -> FinishedPage:
        return await self.jobs.page(where, cursor, limit, max_bytes)

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        self.batches -= 1
        if self.batches or self.after:
            answer = await self.jobs.drop(versions)
        if not self.batches:
            self._cut()
            answer = await self.jobs.drop({}) if self.after else await self.jobs.drop(versions)
        return answer

    def _cut(self) -> None:
        self.server.query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_lost_connection_fails_the_run_and_the_next_resumes_it(
    store: PostgresStore, emptied_postgres_url: str, postgres: PostgresServer, tmp_path: Path, after: bool
) -> None:
    await finish(store, 8)
    with pytest.raises(LedgerDown):
        async with PostgresFinishedJobs.open(emptied_postgres_url) as jobs:
            await run(DisconnectingJobs(jobs, postgres, 2, after), tmp_path)
    assert len(archived(tmp_path)) == 3
    assert len(pending(tmp_path)) == 1
    await store.ledger.commit(retry(await load_as_decision(store, "job-7")))
    async with PostgresFinishedJobs.open(emptied_postgres_url) as jobs:
        summary = await run(jobs, tmp_path)
    assert (summary.archived, summary.resumed) == (4, 3)
    assert archived(tmp_path) == [f"job-{n}" for n in range(7)]
    assert pending(tmp_path) == []
    assert await store.ledger.load("job-7", fresh=True) is not None
    assert [await store.ledger.load(f"job-{n}", fresh=True) for n in range(7)] == [None] * 7


async def load_as_decision(store: PostgresStore, job_id: str) -> Decision:
    view = await store.ledger.load(job_id, fresh=True)
    assert view is not None
    return Decision(job=view.job, replies=(), protocol=view.protocol)


async def test_job_retried_between_two_runs_is_removed_from_the_pending_files(
    store: PostgresStore, emptied_postgres_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    finished = await finish(store, 3)
    with pytest.raises(LedgerDown):
        async with PostgresFinishedJobs.open(emptied_postgres_url) as jobs:
            await run(DisconnectingJobs(jobs, postgres, 1, False), tmp_path)
    await store.ledger.commit(retry(finished[1]))
    async with PostgresFinishedJobs.open(emptied_postgres_url) as jobs:
        summary = await run(jobs, tmp_path)
    assert (summary.archived, summary.resumed, summary.moved_on) == (2, 2, 1)
    assert archived(tmp_path) == ["job-0", "job-2"]
    assert await store.ledger.load("job-1", fresh=True) is not None


async def run(jobs: FinishedJobs, archive: Path) -> Summary:
    with ArchiveFolder.for_writing(archive) as files:
        return await Retention(jobs, files, 2_000_000, secrets.token_hex(4)).run(ORDER)


def archived(archive: Path) -> list[str]:
    lines = [line for path in sorted(archive.glob("19*/*")) for line in path.read_text().splitlines()]
    found: list[Any] = [json.loads(line)["jobId"] for line in lines]
    return sorted(found)


def pending(archive: Path) -> list[Path]:
    return list(archive.glob("pending/*"))
