"""A ledger without durability, for simulations and tests: the same promises, kept in dictionaries."""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from msgspec import Struct, field

from lucius.adapters.cursor import decode_cursor, encode_cursor
from lucius.adapters.group_commit import GroupCommit
from lucius.adapters.inbox_memory import MemoryInbox
from lucius.adapters.reviews_memory import MemoryReviews
from lucius.adapters.turns import Taker, Turns, deal
from lucius.adapters.versions_memory import MemoryVersions
from lucius.core.counters import picked
from lucius.core.decision import Decision, EndedAttempt, JobView
from lucius.core.model import (
    Event,
    Instant,
    Job,
    Millis,
    OutboxRow,
    OutboxStatus,
    Quarantined,
    ReviewItem,
    Step,
    StepStatus,
)
from lucius.core.protocol import Protocol
from lucius.ports.errors import AlreadyAccepted, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import (
    Drift,
    IdempotencyRow,
    JobFilter,
    JobPage,
    Oldest,
    PendingQuery,
    ReviewFilter,
    ReviewGroup,
    ReviewPage,
    StoredAttempt,
    StoredEvent,
    idempotency_token,
)


class _Record(Struct, eq=False):
    """All there is of one job. `position` is its place in the order of acceptance."""

    position: int
    job: Job
    protocol: Protocol
    steps: dict[str, Step] = field(default_factory=dict)
    attempts: dict[tuple[str, int], EndedAttempt] = field(default_factory=dict)
    outbox: dict[str, OutboxRow] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    quarantined: dict[tuple[str, int, str], Quarantined] = field(default_factory=dict)

    def view(self, step_ids: Iterable[str]) -> JobView:
        asked = frozenset(step_ids)
        return JobView(self.job, self.protocol, {s: self.steps[s] for s in asked if s in self.steps}, asked)

    def whole_view(self) -> JobView:
        return JobView(self.job, self.protocol, dict(self.steps))

    def pending_rows(self) -> Iterable[OutboxRow]:
        return (row for row in self.outbox.values() if row.status is OutboxStatus.PENDING)


class MemoryLedger(GroupCommit, MemoryVersions, MemoryInbox):
    """Implements Ledger, Reader, ProtocolStore and Inbox.

    Deterministic: what is asked in the same order is answered the same.
    """

    def __init__(self) -> None:
        GroupCommit.__init__(self)
        MemoryVersions.__init__(self)
        MemoryInbox.__init__(self)
        self._records: dict[str, _Record] = {}
        self._live: dict[str, _Record] = {}
        self._pending: Turns[dict[tuple[str, str], OutboxRow]] = Turns()
        self._keys: dict[tuple[str, str], IdempotencyRow] = {}
        self._counters: dict[str, int] = {}
        self._reviews = MemoryReviews()

    # Ledger

    def _write(self, decisions: Sequence[Decision]) -> list[Exception | None]:
        return [self._write_one(decision) for decision in decisions]

    def _write_one(self, decision: Decision) -> Exception | None:
        try:
            self._guard(decision)
        except LedgerError as refusal:
            return refusal
        self._apply(decision)
        return None

    def _guard(self, decision: Decision) -> None:
        job = decision.job
        if decision.creates:
            holder = self._keys.get((job.tenant_id, idempotency_token(job.command)))
            if holder is not None:
                raise AlreadyAccepted(holder.job_id, holder.idempotency_hash)
        record = self._records.get(job.job_id)
        version = record.job.version if record else 0
        if version != decision.expected_version or decision.creates is not (record is None):
            raise VersionConflict(f"job {job.job_id} is at version {version}, not {decision.expected_version}")
        for cap in decision.caps:
            if self._counters.get(cap.counter, 0) + decision.counters.get(cap.counter, 0) > cap.limit:
                raise LimitReached(cap.counter, cap.limit)

    def _apply(self, decision: Decision) -> None:
        job = decision.job
        if decision.creates:
            self._records[job.job_id] = _Record(len(self._records) + 1, job, decision.protocol)
            row = IdempotencyRow(job.job_id, job.command.idempotency_hash)
            self._keys[job.tenant_id, idempotency_token(job.command)] = row
        record = self._records[job.job_id]
        record.job = job
        record.steps.update((step.step_id, step) for step in decision.steps)
        record.attempts.update(((a.step_id, a.attempt.attempt_no), a) for a in decision.attempts)
        record.events.extend(decision.events)
        for review in decision.reviews:
            self._reviews.put(review)
        for item in decision.quarantined:
            record.quarantined.setdefault((item.step_id, item.attempt_no, item.lease_id), item)
        self._index(record, decision)

    def _index(self, record: _Record, decision: Decision) -> None:
        job_id = record.job.job_id
        if record.job.live:
            self._live[job_id] = record
        else:
            self._live.pop(job_id, None)
        for row in decision.outbox:
            record.outbox[row.outbox_id] = row
            if row.status is OutboxStatus.PENDING:
                self._keep_pending(row)
            else:
                self._drop_pending(row)
        for counter, move in decision.counters.items():
            self._counters[counter] = self._counters.get(counter, 0) + move
            if not self._counters[counter]:
                del self._counters[counter]

    def _keep_pending(self, row: OutboxRow) -> None:
        taker = Taker(row.service, row.tenant_id)
        rows = self._pending.find(taker)
        if rows is None:
            rows = self._pending.add(taker, {})
        rows[row.job_id, row.outbox_id] = row

    def _drop_pending(self, row: OutboxRow) -> None:
        taker = Taker(row.service, row.tenant_id)
        rows = self._pending.find(taker)
        if rows is not None:
            rows.pop((row.job_id, row.outbox_id), None)
            if not rows:
                self._pending.drop(taker)

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
        record = self._records.get(job_id)
        return record.view((*record.job.active, *step_ids)) if record is not None else None

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return self._keys.get((tenant_id, key))

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        due = [
            (record.job.due_at, record.position, job_id)
            for job_id, record in self._live.items()
            if record.job.due_at is not None and record.job.due_at <= now
        ]
        return [job_id for _, _, job_id in sorted(due)[:limit]]

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Nobody else asks this memory."""

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        found = self._first(query, query.limit, _is_claimed if query.claimed else _is_ready)
        if query.later and not query.claimed and len(found) < query.limit:
            found += self._first(query, query.limit - len(found), lambda row: _is_ready_again(row, query.now))
        return found

    def _first(self, query: PendingQuery, limit: int, which: Callable[[OutboxRow], bool]) -> list[OutboxRow]:
        """Of those that are wanted, in fair order."""

        def look(taker: Taker, n: int) -> list[OutboxRow]:
            rows = self._pending.find(taker) or {}
            return list(islice((row for row in rows.values() if which(row) and _is_wanted(row, query)), n))

        takers = (taker for taker, _ in self._pending.takers(query.service, query.except_services))
        dealt = deal(takers, limit, look)
        self._pending.served(taker for taker, _ in dealt)
        return [row for _, row in dealt]

    async def drifted(self, limit: int) -> list[Drift]:
        return list(islice((drift for record in self._live.values() if (drift := _drift(record))), limit))

    async def close(self) -> None:
        self._drain()

    # Reader

    async def job(self, job_id: str) -> JobView | None:
        record = self._records.get(job_id)
        return record.whole_view() if record else None

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        below = decode_cursor(cursor) if cursor is not None else len(self._records) + 1
        newest_first = (r for r in reversed(self._records.values()) if r.position < below and _matches(r, where))
        found = list(islice(newest_first, limit + 1))
        page = found[:limit]
        more = len(found) > limit and page
        return JobPage([record.job for record in page], encode_cursor(page[-1].position) if more else None)

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        record = self._records.get(job_id)
        ended = record.attempts.values() if record else ()
        return sorted(ended, key=lambda e: (e.attempt.created_at, e.attempt.attempt_no, e.step_id))

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        record = self._records.get(job_id)
        return list(record.quarantined.values()) if record else []

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        record = self._records.get(job_id)
        return list(islice((e for e in record.events if e.seq > after), limit)) if record else []

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        record = self._records.get(job_id)
        start = int(after.place) if after else 0
        return [StoredEvent(e.seq, e) for e in islice(record.events, start, start + limit)] if record else []

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        record = self._records.get(job_id)
        ended = record.attempts.values() if record else ()
        rows = sorted((StoredAttempt((e.step_id, e.attempt.attempt_no), e) for e in ended), key=lambda row: row.place)
        return [row for row in rows if after is None or row.place > after.place][:limit]

    async def counters(self, *names: str) -> dict[str, int]:
        return picked(self._counters, names)

    async def review(self, review_id: str) -> ReviewItem | None:
        return self._reviews.find(review_id)

    async def reviews(self, where: ReviewFilter, limit: int, cursor: str | None) -> ReviewPage:
        return self._reviews.page(where, limit, cursor)

    async def review_groups(self, where: ReviewFilter, limit: int) -> list[ReviewGroup]:
        return self._reviews.groups(where, limit)

    async def open_reviews(self) -> dict[str, int]:
        return self._reviews.open()

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        oldest: dict[str, Instant] = {}
        for row in (row for _, rows in self._pending.takers(service, frozenset()) for row in rows.values()):
            if row.claimed_at is None and (row.next_attempt_at is None or row.next_attempt_at <= now):
                oldest[row.service] = min(row.created_at, oldest.get(row.service, row.created_at))
        return {name: Oldest(at) for name, at in oldest.items()}


def _is_claimed(row: OutboxRow) -> bool:
    return row.claimed_at is not None


def _is_ready(row: OutboxRow) -> bool:
    return row.claimed_at is None and row.next_attempt_at is None


def _is_ready_again(row: OutboxRow, now: Instant) -> bool:
    return row.claimed_at is None and row.next_attempt_at is not None and row.next_attempt_at <= now


def _is_wanted(row: OutboxRow, query: PendingQuery) -> bool:
    return row.outbox_id not in query.except_rows and (query.lanes is None or row.lane in query.lanes)


def _drift(record: _Record) -> Drift | None:
    rows = {row.outbox_id for row in record.pending_rows()}
    missing = tuple(
        step.step_id
        for _, step in sorted(record.steps.items())
        if step.status is StepStatus.DISPATCHING and step.attempt.outbox_id not in rows
    )
    if missing or (record.job.due_at is None and not rows):
        return Drift(record.job.job_id, missing)
    return None


def _matches(record: _Record, where: JobFilter) -> bool:
    job = record.job
    return (
        (where.tenants is None or job.tenant_id in where.tenants)
        and (where.status is None or job.status is where.status)
        and (where.request_type is None or job.command.request_type == where.request_type)
        and (where.created_after is None or job.created_at > where.created_after)
        and (where.blocked_on is None or (job.blocked is not None and job.blocked.reason is where.blocked_on))
        and (where.blocked_services is None or _blocked_service(record) in where.blocked_services)
        and (not where.except_services or _blocked_service(record) not in where.except_services)
    )


def _blocked_service(record: _Record) -> str | None:
    return record.job.blocked.service if record.job.blocked else None
