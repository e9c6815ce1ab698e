"""Loading jobs: those that are asked for in one turn of the event loop come with one statement."""

import asyncio
from collections.abc import Collection

import msgspec
from asyncpg import Record

from lucius.adapters import rows
from lucius.adapters.postgres.cache import DONE, LIVE, Cache, Place, Sizes
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.texts import findable
from lucius.core.decision import JobView
from lucius.core.protocol import Protocol
from lucius.ports.errors import LedgerCorrupt

MAX_TOGETHER = 200

# One statement sees one state of things: the head, its active steps and those that were asked for belong together.
_LOAD = """
    SELECT j.job_id, j.id, j.command, l.body AS live, d.body AS done, ARRAY(
        SELECT s.body FROM steps AS s WHERE s.job = j.id AND s.step_id IN (
            SELECT json_array_elements_text(wanted.steps::json)
            UNION ALL SELECT json_array_elements_text(coalesce(l.body, d.body)::json -> 'active')
        )
    ) AS steps
    FROM unnest($1::text[], $2::text[]) AS wanted (job_id, steps)
    JOIN jobs AS j ON j.job_id = wanted.job_id
    LEFT JOIN live AS l ON l.id = j.id LEFT JOIN done AS d ON d.id = j.id
"""
_PROTOCOL = "SELECT body FROM protocols WHERE digest = $1"

Waiter = asyncio.Future[Record | None]


class Loads:
    def __init__(self, database: Database, cache: Cache) -> None:
        self._database = database
        self._cache = cache
        self._waiting: dict[str, tuple[set[str], list[Waiter]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def view(self, job_id: str, step_ids: Collection[str]) -> JobView | None:
        """As the database has it now."""
        if not findable(job_id):
            return None
        loop = asyncio.get_running_loop()
        if not self._waiting:
            task = loop.create_task(self._fetch())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        steps, waiters = self._waiting.setdefault(job_id, (set(), []))
        waiter: Waiter = loop.create_future()
        steps.update(step_ids)
        waiters.append(waiter)
        record = await waiter
        return await self._view(record, step_ids) if record is not None else None

    async def _fetch(self) -> None:
        waiting, self._waiting = self._waiting, {}
        todo = list(waiting.items())
        for start in range(0, len(todo), MAX_TOGETHER):
            part = todo[start : start + MAX_TOGETHER]
            found: dict[str, Record] = {}
            failure: Exception | None = None
            try:
                wanted = [(job_id, msgspec.json.encode(sorted(steps)).decode()) for job_id, (steps, _) in part]
                records = await self._database.rows(_LOAD, [job_id for job_id, _ in wanted], [s for _, s in wanted])
                found = {record["job_id"]: record for record in records}
            except Exception as error:  # noqa: BLE001 - it is the outcome of everybody who waits for it
                failure = error
            for job_id, (_, waiters) in part:
                for waiter in waiters:
                    if not waiter.done():
                        _settle(waiter, found.get(job_id), failure)

    async def _view(self, record: Record, step_ids: Collection[str]) -> JobView:
        live = record["live"] is not None
        try:
            job = rows.job(record["command"], record["live"] if live else record["done"])
            started = [rows.step(body) for body in record["steps"]]
        except (msgspec.DecodeError, TypeError) as error:
            raise LedgerCorrupt(f"job {record['job_id']} can't be read ({error}); restore it from a backup") from error
        asked = frozenset((*job.active, *step_ids))
        steps = {step.step_id: step for step in sorted(started, key=lambda s: s.index) if step.step_id in asked}
        self._cache.put_place(job.job_id, Place(record["id"], LIVE if live else DONE))
        if live:
            bodies = zip(started, record["steps"], strict=True)
            sizes = Sizes(len(record["command"]), {step.step_id: len(body) for step, body in bodies})
            self._cache.read(job, steps, asked, sizes)
        else:
            self._cache.forget([job.job_id])
        return JobView(job, await self.protocol(job.protocol_digest), steps, asked)

    async def protocol(self, digest: str) -> Protocol:
        """What a digest stands for never changes, so this may be remembered."""
        found = self._cache.protocols.get(digest)
        if found is None:
            row = await self._database.row(_PROTOCOL, digest)
            if row is None:
                raise LedgerCorrupt(f"the protocol {digest} that jobs have pinned is gone; restore it from a backup")
            found = self._cache.protocols[digest] = rows.protocol(row["body"])
        return found


def _settle(waiter: Waiter, record: Record | None, failure: Exception | None) -> None:
    if failure is None:
        waiter.set_result(record)
    else:
        waiter.set_exception(failure)
