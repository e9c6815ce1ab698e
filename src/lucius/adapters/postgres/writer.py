"""Group commit: what is decided while one group is on its way becomes the next group. One statement writes a group.

The common case asks nothing first. Only when the database refuses a group is it asked why, decision by decision; those
that were wrong are refused and the others sent again.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import asyncpg
import structlog
from msgspec import Struct

from lucius.adapters import rows
from lucius.adapters.group_commit import call_safely, settle
from lucius.adapters.postgres.batch import CALL, Hold, Ids, arguments, storable
from lucius.adapters.postgres.cache import DONE, LIVE, NOWHERE, Cache, Place
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.functions import MOVED, OVER_CAP
from lucius.adapters.postgres.keys import HOLDERS
from lucius.core.decision import Decision, JobView
from lucius.core.model import OutboxRow
from lucius.core.protocol import Protocol
from lucius.ports.errors import AlreadyAccepted, LedgerBusy, LedgerDown, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import IdempotencyRow, idempotency_token

log = structlog.get_logger(__name__)

MAX_GROUP = 128
MAX_PASSED = 10_000
PARALLEL = 2
"""Groups on their way at once: while one waits for the disk, the next is sent."""
MAX_ROUNDS = 10
TIGHT_SECONDS = 0.2
"""A counter that was at its limit just now is looked at first: a refused group costs more than a look."""

_SEVERAL = """
    SELECT j.job_id, j.id, l.version AS live, d.version AS done
    FROM jobs AS j LEFT JOIN live AS l ON l.id = j.id LEFT JOIN done AS d ON d.id = j.id
    WHERE j.job_id = ANY ($1)
"""
_COUNTERS = "SELECT name, value FROM counters WHERE name = ANY ($1)"
_PROTOCOL = "INSERT INTO protocols (digest, body) VALUES ($1, $2) ON CONFLICT DO NOTHING"

Waiting = tuple[Decision, "asyncio.Future[None]"]
Name = str | tuple[str, str]


class Writer:
    """The queue in front of the database."""

    def __init__(
        self,
        database: Database,
        cache: Cache,
        hold: Callable[[OutboxRow], Hold],
        on_durable: Callable[[Sequence[Decision], set[str], Sequence[JobView]], None],
        on_group: Callable[[int, float], None],
    ) -> None:
        self._database = database
        self._cache = cache
        self._hold = hold
        self._on_durable = on_durable
        self._on_group = on_group
        self._ids, self._turns = Ids(), Ids()
        self._storing = asyncio.Lock()
        self._queue: deque[Waiting] = deque()
        self._under_way: set[asyncio.Task[bool]] = set()
        self._decided: set[Name] = set()
        """Jobs, and keys of new ones, that a group on its way is about."""
        self._stored_protocols: set[str] = set()
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
        """Write what waits and refuse the rest."""
        self._closed = True
        while self._under_way:
            await asyncio.wait(self._under_way)

    def forget_protocols(self) -> None:
        """A standby that took over may lack the last of them."""
        self._stored_protocols.clear()

    def _start(self) -> None:
        if len(self._under_way) < PARALLEL:
            task = asyncio.get_running_loop().create_task(self._send())
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        """What waits after an empty group waits for another one, whose end is the time to look again."""
        self._under_way.discard(task)
        if self._queue and task.result():
            self._start()

    async def _send(self) -> bool:
        """A group is made when its task runs, so that all of this turn of the loop is in it. False if it is empty."""
        group = list(self._next_group())
        if not group:
            return False
        started = perf_counter()
        outcomes = await self._outcomes([decision for decision, _ in group])
        for decision, durable in group:
            self._decided.difference_update(_names(decision))
            settle(durable, outcomes[id(decision)])
        self._refuse_repeats([(decision, outcomes[id(decision)]) for decision, _ in group])
        call_safely(self._on_group, len(group), perf_counter() - started)
        return True

    def _refuse_repeats(self, ended: Sequence[tuple[Decision, Exception | None]]) -> None:
        """Who asked for a key that has just been given away need not ask the database for it."""
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
                settle(durable, AlreadyAccepted(holder.job_id, holder.idempotency_hash))

    def _next_group(self) -> Iterator[Waiting]:
        """At most one decision about a job, and one about a key: a second one waits for what became of the first."""
        again: list[Waiting] = []
        passed: set[Name] = set()
        taken = 0
        for _ in range(len(self._queue)):
            if taken == MAX_GROUP or len(again) == MAX_PASSED:
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
            self._cache.forget(decision.job.job_id for decision in left)
            outcomes |= {id(decision): error for decision in left}
        except Exception as error:
            if len(left) == 1:
                log.exception("ledger.write_failed", job_id=left[0].job.job_id)
                return outcomes | {id(left[0]): error}
            for decision in left:  # whatever is wrong with one of them must not fail the others
                outcomes |= await self._outcomes([decision])
        return outcomes

    async def _write(self, left: list[Decision], outcomes: dict[int, Exception | None]) -> None:
        """Takes from `left` what is refused. Raises whatever the rest failed with."""
        await self._store_protocols(left)
        look_first = self._is_tight(left)
        for _ in range(MAX_ROUNDS):
            places = await self._places(left)
            refused = await self._refusals(left) if look_first else {}
            if not refused:
                failure = await self._try(left, places)
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
        raise LedgerBusy(f"a commit was refused {MAX_ROUNDS} times for a reason that was gone when it was looked for")

    async def _try(self, decisions: Sequence[Decision], places: Sequence[Place]) -> Exception | None:
        """None if the group is durable now, else what stands in its way. Raises LedgerDown and the like."""
        values, held, sizes = arguments(decisions, places, self._hold, self._turns)
        try:
            async with self._database.connection() as connection:
                await connection.execute(CALL, *values)
        except LedgerBusy as error:
            await asyncio.sleep(random.uniform(0, 0.01))
            return error
        except LedgerError as error:
            cause = error.__cause__
            if isinstance(cause, asyncpg.PostgresError) and cause.sqlstate in (MOVED, OVER_CAP):
                return error
            raise
        ends: list[JobView] = []
        for decision, place, size in zip(decisions, places, sizes, strict=True):
            job = decision.job
            self._cache.put_place(job.job_id, Place(place.id, LIVE if job.live else DONE))
            end = self._cache.moved(job, decision.steps, decision.creates, size)
            ends += [end] if end is not None else []
        self._on_durable(decisions, held, ends)
        return None

    async def _places(self, decisions: Sequence[Decision], fresh: bool = False) -> list[Place]:
        """Where each job's head is, as far as we know; for a new one, the number it will have."""
        unknown = [
            d.job.job_id for d in decisions if not d.creates and (fresh or self._cache.place(d.job.job_id) is None)
        ]
        if unknown:
            for job_id, id_, live, _ in await self._database.rows(_SEVERAL, unknown):
                self._cache.put_place(job_id, Place(id_, DONE if live is None else LIVE))
        return [self._place(decision) for decision in decisions]

    def _place(self, decision: Decision) -> Place:
        if decision.creates:
            return Place(self._ids.next(decision.job.created_at), NOWHERE)
        return self._cache.place(decision.job.job_id) or Place(0, LIVE)

    async def _refusals(self, decisions: Sequence[Decision]) -> dict[int, Exception]:
        """What is wrong with each, in the order in which they came."""
        standing = await self._standing(decisions)
        refused: dict[int, Exception] = {}
        for decision in decisions:
            refusal = standing.refusal(decision)
            if refusal is None:
                standing.count(decision)
            else:
                refused[id(decision)] = refusal
                if isinstance(refusal, VersionConflict):
                    self._cache.forget([decision.job.job_id])
                elif isinstance(refusal, LimitReached):
                    self._tight[refusal.counter] = perf_counter() + TIGHT_SECONDS
        return refused

    async def _standing(self, decisions: Sequence[Decision]) -> "_Standing":
        keys = [(d.job.tenant_id, storable(idempotency_token(d.job.command))) for d in decisions if d.creates]
        held = await self._database.rows(HOLDERS, [t for t, _ in keys], [k for _, k in keys]) if keys else []
        versions = await self._database.rows(_SEVERAL, [decision.job.job_id for decision in decisions])
        names = sorted({cap.counter for decision in decisions for cap in decision.caps})
        counters = await self._database.rows(_COUNTERS, names) if names else []
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
        """Before the jobs that pin them; written by itself, as no two groups must wait for each other over it. They
        queue for that here, or what came later might be the first in line for a service."""
        for decision in decisions:
            digest = decision.job.protocol_digest
            self._cache.protocols.setdefault(digest, decision.protocol)
            if digest not in self._stored_protocols:
                async with self._storing:
                    await self._store_protocol(digest, decision.protocol)

    async def _store_protocol(self, digest: str, protocol: Protocol) -> None:
        if digest not in self._stored_protocols:
            async with self._database.connection() as connection:
                await connection.execute(_PROTOCOL, digest, rows.body(protocol))
            self._stored_protocols.add(digest)


def _names(decision: Decision) -> tuple[Name, ...]:
    """What no two decisions on their way may have in common."""
    return (decision.job.job_id, _key(decision)) if decision.creates else (decision.job.job_id,)


def _key(decision: Decision) -> Name:
    return decision.job.tenant_id, idempotency_token(decision.job.command)


class _Standing(Struct):
    """What the database says about a group, as of a moment ago."""

    keys: dict[tuple[str, str], IdempotencyRow]
    versions: dict[str, int]
    counters: dict[str, int]

    def refusal(self, decision: Decision) -> Exception | None:
        job = decision.job
        if decision.creates:
            holder = self.keys.get((job.tenant_id, storable(idempotency_token(job.command))))
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
