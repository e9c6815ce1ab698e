"""Group commit: decisions made while one group is being written form the next. One statement writes a group.

The common case queries nothing first. Only when the database refuses a group are the reasons queried, decision by
decision; those that were wrong are refused and the others sent again.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import asyncpg
import structlog
from msgspec import Struct

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.group_commit import call_hook, set_outcome
from lucius.adapters.ledger.postgres.batch import COMMIT_SQL, Hold, IdGenerator, build_arguments, replace_nul
from lucius.adapters.ledger.postgres.cache import DONE, LIVE, NEW, JobCache, JobLocation
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.functions import SQLSTATE_CONFLICT, SQLSTATE_OVER_LIMIT
from lucius.adapters.ledger.postgres.idempotency_reads import SELECT_KEYS
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import OutboxRow
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import AlreadyAccepted, LedgerBusy, LedgerDown, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import IdempotencyRow, idempotency_token

log = structlog.get_logger(__name__)

MAX_GROUP_DECISIONS = 128
MAX_SKIPPED_DECISIONS = 10_000
MAX_CONCURRENT_GROUPS = 2
"""Groups in flight at once: while one waits for the disk, the next is sent."""
MAX_COMMIT_ATTEMPTS = 10
FULL_COUNTER_TTL_SECONDS = 0.2
"""A counter that was full this recently is queried first: a refused group costs more than a query."""

_SQL = load_statements(__package__, "writer")
_SEVERAL = _SQL["several"]
_COUNTERS = _SQL["counters"]
_PROTOCOL = _SQL["protocol"]

QueuedDecision = tuple[Decision, "asyncio.Future[None]"]
Name = str | tuple[str, str]


class Writer:
    """Queue of decisions in front of the database."""

    def __init__(
        self,
        database: Database,
        cache: JobCache,
        hold: Callable[[OutboxRow], Hold],
        on_durable: Callable[[Sequence[Decision], set[str], Sequence[JobSnapshot]], None],
        on_group: Callable[[int, float], None],
    ) -> None:
        self._database = database
        self._cache = cache
        self._hold = hold
        self._on_durable = on_durable
        self._on_group = on_group
        self._ids, self._turns = IdGenerator(), IdGenerator()
        self._storing = asyncio.Lock()
        self._queue: deque[QueuedDecision] = deque()
        self._under_way: set[asyncio.Task[bool]] = set()
        self._decided: set[Name] = set()
        """Jobs, and keys of new ones, that a group in flight is about."""
        self._tight: dict[str, float] = {}
        self._repeats = False
        self._closed = False

    async def commit(self, decision: Decision) -> None:
        if self._closed:
            raise LedgerError("the ledger is closed")
        if not decision.changes:
            return
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((decision, durable))
        self._start()
        await durable

    async def close(self) -> None:
        """Refuse new decisions and wait until the queued ones are written."""
        self._closed = True
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _start(self) -> None:
        if len(self._under_way) < MAX_CONCURRENT_GROUPS:
            task = asyncio.get_running_loop().create_task(self._send_group())
            self._under_way.add(task)
            task.add_done_callback(self._on_group_done)

    def _on_group_done(self, task: asyncio.Task[bool]) -> None:
        """Start the next group; after an empty one, what is queued waits for another group to end."""
        self._under_way.discard(task)
        if self._queue and task.result():
            self._start()

    async def _send_group(self) -> bool:
        """Write one group; return False if it is empty.

        The group is formed when the task runs, so that it has everything from this turn of the loop.
        """
        group = list(self._next_group())
        if not group:
            return False
        started = perf_counter()
        outcomes = await self._outcomes([decision for decision, _ in group])
        for decision, durable in group:
            self._decided.difference_update(_names(decision))
            set_outcome(durable, outcomes[id(decision)])
        self._refuse_repeats([(decision, outcomes[id(decision)]) for decision, _ in group])
        call_hook(self._on_group, len(group), perf_counter() - started)
        return True

    def _refuse_repeats(self, ended: Sequence[tuple[Decision, Exception | None]]) -> None:
        """Refuse queued decisions whose idempotency key was just taken, without a query."""
        holders: dict[Name, IdempotencyRow] = {}
        for decision, outcome in ended:
            if decision.creates and outcome is None:
                holders[_key(decision)] = IdempotencyRow(decision.job.job_id, decision.job.command.idempotency_hash)
            elif isinstance(outcome, AlreadyAccepted):
                holders[_key(decision)] = IdempotencyRow(outcome.job_id, outcome.idempotency_hash)
        if not holders or not self._repeats:
            return
        waiting, self._queue = self._queue, deque()
        for decision, durable in waiting:
            holder = holders.get(_key(decision)) if decision.creates else None
            if holder is None:
                self._queue.append((decision, durable))
            else:
                set_outcome(durable, AlreadyAccepted(holder.job_id, holder.idempotency_hash))

    def _next_group(self) -> Iterator[QueuedDecision]:
        """Yield at most one decision per job and per key: a second one waits for the outcome of the first."""
        again: list[QueuedDecision] = []
        passed: set[Name] = set()
        taken = 0
        for _ in range(len(self._queue)):
            if taken == MAX_GROUP_DECISIONS or len(again) == MAX_SKIPPED_DECISIONS:
                break
            waiting = self._queue.popleft()
            names = _names(waiting[0])
            if self._decided.isdisjoint(names) and passed.isdisjoint(names):
                self._decided.update(names)
                taken += 1
                yield waiting
            else:
                passed.update(names)
                again.append(waiting)
        self._queue.extendleft(reversed(again))
        self._repeats = bool(again)

    async def _outcomes(self, decisions: Sequence[Decision]) -> dict[int, Exception | None]:
        outcomes: dict[int, Exception | None] = {id(decision): None for decision in decisions}
        left = list(decisions)
        try:
            await self._write(left, outcomes)
        except LedgerDown as error:
            self._cache.evict(decision.job.job_id for decision in left)
            outcomes |= {id(decision): error for decision in left}
        except Exception as error:
            if len(left) == 1:
                log.exception("ledger.write_failed", job_id=left[0].job.job_id)
                return outcomes | {id(left[0]): error}
            for decision in left:  # one faulty decision must not fail the others
                outcomes |= await self._outcomes([decision])
        return outcomes

    async def _write(self, left: list[Decision], outcomes: dict[int, Exception | None]) -> None:
        """Commit the decisions, removing refused ones from `left`. Raises the error that the rest failed with."""
        await self._store_protocols(left)
        look_first = self._is_tight(left)
        for _ in range(MAX_COMMIT_ATTEMPTS):
            places = await self._places(left)
            refused = await self._refusals(left) if look_first else {}
            if not refused:
                failure = await self.try_commit(left, places)
                if failure is None:
                    return
                await self._places(left, fresh=True)
                refused = await self._refusals(left)
            for decision in [decision for decision in left if id(decision) in refused]:
                outcomes[id(decision)] = refused[id(decision)]
                left.remove(decision)
            if not left:
                return
            look_first = False
        raise LedgerBusy(
            f"a commit was refused {MAX_COMMIT_ATTEMPTS} times for a reason that was gone when it was looked for"
        )

    async def try_commit(self, decisions: Sequence[Decision], places: Sequence[JobLocation]) -> Exception | None:
        """Return None if the group is durable now, else the conflict. Raises LedgerDown and similar errors."""
        values, held, sizes = build_arguments(decisions, places, self._hold, self._turns)
        try:
            async with self._database.connection() as connection:
                await connection.execute(COMMIT_SQL, *values)
        except LedgerBusy as error:
            await asyncio.sleep(random.uniform(0, 0.01))
            return error
        except LedgerError as error:
            cause = error.__cause__
            if isinstance(cause, asyncpg.PostgresError) and cause.sqlstate in (SQLSTATE_CONFLICT, SQLSTATE_OVER_LIMIT):
                return error
            raise
        ends: list[JobSnapshot] = []
        for decision, place, size in zip(decisions, places, sizes, strict=True):
            job = decision.job
            self._cache.put_location(job.job_id, JobLocation(place.id, LIVE if job.live else DONE))
            end = self._cache.apply_commit(job, decision.steps, decision.creates, size)
            ends += [end] if end is not None else []
        self._on_durable(decisions, held, ends)
        return None

    async def _places(self, decisions: Sequence[Decision], fresh: bool = False) -> list[JobLocation]:
        """Return where each job's head is, as far as known; for a new job, the id it will have."""
        unknown = [
            d.job.job_id for d in decisions if not d.creates and (fresh or self._cache.location(d.job.job_id) is None)
        ]
        if unknown:
            for job_id, id_, live, _ in await self._database.fetch_rows(_SEVERAL, unknown):
                self._cache.put_location(job_id, JobLocation(id_, DONE if live is None else LIVE))
        return [self._place(decision) for decision in decisions]

    def _place(self, decision: Decision) -> JobLocation:
        if decision.creates:
            return JobLocation(self._ids.next(decision.job.created_at), NEW)
        return self._cache.location(decision.job.job_id) or JobLocation(0, LIVE)

    async def _refusals(self, decisions: Sequence[Decision]) -> dict[int, Exception]:
        """Return why decisions are refused, by identity; they are checked in the order in which they arrived."""
        standing = await self._standing(decisions)
        refused: dict[int, Exception] = {}
        for decision in decisions:
            refusal = standing.refusal(decision)
            if refusal is None:
                standing.count(decision)
            else:
                refused[id(decision)] = refusal
                if isinstance(refusal, VersionConflict):
                    self._cache.evict([decision.job.job_id])
                elif isinstance(refusal, LimitReached):
                    self._tight[refusal.counter] = perf_counter() + FULL_COUNTER_TTL_SECONDS
        return refused

    async def _standing(self, decisions: Sequence[Decision]) -> "_Standing":
        keys = [(d.job.tenant_id, replace_nul(idempotency_token(d.job.command))) for d in decisions if d.creates]
        held = await self._database.fetch_rows(SELECT_KEYS, [t for t, _ in keys], [k for _, k in keys]) if keys else []
        versions = await self._database.fetch_rows(_SEVERAL, [decision.job.job_id for decision in decisions])
        names = sorted({cap.counter for decision in decisions for cap in decision.caps})
        counters = await self._database.fetch_rows(_COUNTERS, names) if names else []
        return _Standing(
            {(tenant, key): IdempotencyRow(job_id, hash_) for tenant, key, job_id, hash_ in held},
            {job_id: done if live is None else live for job_id, _, live, done in versions},
            {row["name"]: row["value"] for row in counters},
        )

    def _is_tight(self, decisions: Sequence[Decision]) -> bool:
        if not self._tight:
            return False
        now = perf_counter()
        self._tight = {name: until for name, until in self._tight.items() if until > now}
        return any(cap.counter in self._tight for decision in decisions for cap in decision.caps)

    async def _store_protocols(self, decisions: Sequence[Decision]) -> None:
        """Store protocols before the jobs that pin them.

        Each is written by itself, so that no two groups wait for each other over it. Groups queue for that here, or a
        later one might become the first in line for a service.
        """
        for decision in decisions:
            digest = decision.job.protocol_digest
            self._cache.protocols.setdefault(digest, decision.protocol)
            if digest not in self._cache.stored_protocols:
                async with self._storing:
                    await self._store_protocol(digest, decision.protocol)

    async def _store_protocol(self, digest: str, protocol: ProtocolDefinition) -> None:
        if digest not in self._cache.stored_protocols:
            async with self._database.connection() as connection:
                await connection.execute(_PROTOCOL, digest, record_codec.body(protocol))
            self._cache.stored_protocols.add(digest)


def _names(decision: Decision) -> tuple[Name, ...]:
    """Return what no two decisions in flight may share."""
    return (decision.job.job_id, _key(decision)) if decision.creates else (decision.job.job_id,)


def _key(decision: Decision) -> Name:
    return decision.job.tenant_id, idempotency_token(decision.job.command)


class _Standing(Struct):
    """State of the database that a group is checked against, as of a moment ago."""

    keys: dict[tuple[str, str], IdempotencyRow]
    versions: dict[str, int]
    counters: dict[str, int]

    def refusal(self, decision: Decision) -> Exception | None:
        job = decision.job
        if decision.creates:
            holder = self.keys.get((job.tenant_id, replace_nul(idempotency_token(job.command))))
            if holder is not None:
                return AlreadyAccepted(holder.job_id, holder.idempotency_hash)
        version = self.versions.get(job.job_id, 0)
        if version != decision.expected_version or decision.creates is not (job.job_id not in self.versions):
            return VersionConflict(f"job {job.job_id} is at version {version}, not {decision.expected_version}")
        for cap in decision.caps:
            if self.counters.get(cap.counter, 0) + decision.counters.get(cap.counter, 0) > cap.limit:
                return LimitReached(cap.counter, cap.limit)
        return None

    def count(self, decision: Decision) -> None:
        for name, move in decision.counters.items():
            self.counters[name] = self.counters.get(name, 0) + move
