"""Batched reads: all jobs requested in one turn of the event loop are loaded with one statement."""

import asyncio
from collections.abc import Collection

import msgspec
from asyncpg import Record

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres.cache import DONE, LIVE, JobCache, JobLocation, RecordSizes
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.decision import JobSnapshot
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import LedgerCorrupt, LedgerDown

MAX_BATCH_JOBS = 200

_SQL = load_statements(__package__, "batched_reads")
_LOAD = _SQL["load"]
_PROTOCOL = _SQL["protocol"]

Waiter = asyncio.Future[Record | None]
LoadRequest = tuple[str, tuple[set[str], list[Waiter]]]
"""A job's id, the requested steps, and the callers that wait for it."""


class JobLoader:
    """Loads jobs for decisions and caches what it reads."""

    def __init__(self, database: Database, cache: JobCache) -> None:
        self._database = database
        self._cache = cache
        self._requests: dict[str, tuple[set[str], list[Waiter]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self, job_id: str, step_ids: Collection[str]) -> JobSnapshot | None:
        """Return the job with its active steps and `step_ids` from the database, or None. Raises LedgerError."""
        if not is_valid_text(job_id):
            return None
        loop = asyncio.get_running_loop()
        if not self._requests:
            task = loop.create_task(self._fetch())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        steps, waiters = self._requests.setdefault(job_id, (set(), []))
        waiter: Waiter = loop.create_future()
        steps.update(filter(is_valid_text, step_ids))
        waiters.append(waiter)
        record = await waiter
        return await self._view(record, step_ids) if record is not None else None

    async def _fetch(self) -> None:
        pending, self._requests = list(self._requests.items()), {}
        for start in range(0, len(pending), MAX_BATCH_JOBS):
            await self._fetch_batch(pending[start : start + MAX_BATCH_JOBS])

    async def _fetch_batch(self, batch: list[LoadRequest]) -> None:
        """Load a batch and resolve every waiter. If one job fails the statement, load each job on its own."""
        found: dict[str, Record] = {}
        failure: Exception | None = None
        try:
            wanted = [(job_id, msgspec.json.encode(sorted(steps)).decode()) for job_id, (steps, _) in batch]
            records = await self._database.fetch_rows(_LOAD, [job_id for job_id, _ in wanted], [s for _, s in wanted])
            found = {record["job_id"]: record for record in records}
        except Exception as error:  # noqa: BLE001 - raised to every waiter
            if len(batch) > 1 and not isinstance(error, LedgerDown):
                for request in batch:
                    await self._fetch_batch([request])
                return
            failure = error
        for job_id, (_, waiters) in batch:
            for waiter in waiters:
                if not waiter.done():
                    _resolve(waiter, found.get(job_id), failure)

    async def _view(self, record: Record, step_ids: Collection[str]) -> JobSnapshot:
        live = record["live"] is not None
        try:
            job = record_codec.job(record["command"], record["live"] if live else record["done"])
            started = [record_codec.decode_step(body) for body in record["steps"]]
        except (msgspec.DecodeError, TypeError) as error:
            raise LedgerCorrupt(f"job {record['job_id']} can't be read ({error}); restore it from a backup") from error
        requested = frozenset((*job.active, *step_ids))
        steps = {step.step_id: step for step in sorted(started, key=lambda s: s.index) if step.step_id in requested}
        self._cache.put_location(job.job_id, JobLocation(record["id"], LIVE if live else DONE))
        if live:
            bodies = zip(started, record["steps"], strict=True)
            sizes = RecordSizes(len(record["command"]), {step.step_id: len(body) for step, body in bodies})
            self._cache.apply_read(job, steps, requested, sizes)
        else:
            self._cache.evict([job.job_id])
        return JobSnapshot(job, await self.load_protocol(job.protocol_digest), steps, requested)

    async def load_protocol(self, digest: str) -> ProtocolDefinition:
        """Return the protocol with this digest; it never changes, so it is cached for good."""
        found = self._cache.protocols.get(digest)
        if found is None:
            row = await self._database.fetch_row(_PROTOCOL, digest)
            if row is None:
                raise LedgerCorrupt(f"protocol {digest}, which jobs have pinned, is missing; restore it from a backup")
            found = self._cache.protocols[digest] = record_codec.decode_protocol(row["body"])
        return found


def _resolve(waiter: Waiter, record: Record | None, failure: Exception | None) -> None:
    if failure is None:
        waiter.set_result(record)
    else:
        waiter.set_exception(failure)
