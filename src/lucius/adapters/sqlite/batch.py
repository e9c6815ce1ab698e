"""One transaction, staged: refusals are found before anything is written, memory changes only afterwards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from lucius.adapters import rows
from lucius.adapters.sqlite.live import LiveJob, Mirror, next_id
from lucius.adapters.sqlite.store import Row, Store, Write
from lucius.core.decision import Decision, EndedAttempt
from lucius.core.model import Event, Job, OutboxRow, Quarantined, ReviewItem, ReviewKind, ReviewStatus, Step
from lucius.core.protocol import Protocol
from lucius.ports.errors import AlreadyAccepted, LimitReached, VersionConflict
from lucius.ports.ledger import IdempotencyRow, idempotency_token

_INSERT_JOB = """
    INSERT INTO jobs (id, job_id, tenant_id, request_type, created_at, body,
                      status, live, due_at, blocked_on, blocked_service)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_COMMAND = "INSERT INTO commands (job, body) VALUES (?, ?)"
_INSERT_KEY = "INSERT INTO idempotency (tenant_id, key, job_id, idempotency_hash) VALUES (?, ?, ?, ?)"
_INSERT_PROTOCOL = "INSERT OR IGNORE INTO protocols (digest, body) VALUES (?, ?)"
_PUT_STEP = """
    INSERT INTO steps (job, step_id, status, outbox_id, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (job, step_id) DO UPDATE
    SET status = excluded.status, outbox_id = excluded.outbox_id, body = excluded.body
"""
# A timed-out attempt can still succeed (rule 3), so its entry in the history may get a last word.
_PUT_ATTEMPT = "INSERT OR REPLACE INTO attempts (job, step_id, attempt_no, body) VALUES (?, ?, ?, ?)"
_PUT_OUTBOX = """
    INSERT INTO outbox
        (job, outbox_id, seq, status, service, tenant_id, lane, claimed, next_attempt_at, created_at, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (job, outbox_id) DO UPDATE
    SET status = excluded.status, claimed = excluded.claimed, next_attempt_at = excluded.next_attempt_at,
        body = excluded.body
    WHERE status = 'PENDING'
"""  # a settled row never changes
_INSERT_EVENT = "INSERT INTO events (job, seq, body) VALUES (?, ?, ?)"
# The same late success may be sent twice; the first one is as good.
_INSERT_QUARANTINED = """
    INSERT INTO quarantine (job, step_id, attempt_no, lease_id, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
# A new item is taken once: the same late success, told twice, must not open what was closed.
_INSERT_REVIEW = """
    INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (review_id) DO NOTHING
"""
_PUT_REVIEW = """
    INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (review_id) DO UPDATE
    SET kind = excluded.kind, status = excluded.status, signature = excluded.signature, body = excluded.body
"""
_PUT_COUNTER = """
    INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_DELETE_COUNTER = "DELETE FROM counters WHERE name = ?"


class _Staged(Struct, eq=False):
    """A job in this transaction: what is committed (None for a new one) and what will be."""

    id: int
    before: LiveJob | None
    job: Job
    steps: dict[str, Step]


class Batch:
    """Later values of the same row replace earlier ones, so several decisions of one job fit one transaction."""

    def __init__(self, store: Store, mirror: Mirror) -> None:
        self._store = store
        self._mirror = mirror
        self._last_id = mirror.last_id
        self._jobs: dict[str, _Staged] = {}
        self._keys: dict[tuple[str, str], IdempotencyRow] = {}
        self._counters: dict[str, int] = {}
        self._protocols: dict[str, Protocol] = {}
        self._attempts: list[tuple[int, EndedAttempt]] = []
        self._outbox: dict[tuple[int, str], OutboxRow] = {}
        self._events: list[tuple[int, Event]] = []
        self._quarantined: list[tuple[int, Quarantined]] = []
        self._reviews: list[ReviewItem] = []

    def add(self, decision: Decision) -> None:
        """Raises AlreadyAccepted, VersionConflict or LimitReached, and then has staged nothing of it."""
        if decision.creates:
            self._check_key(decision)
        staged = self._check_version(decision)
        self._check_caps(decision)
        self._stage(decision, staged)

    def _check_key(self, decision: Decision) -> None:
        tenant_id, token = decision.job.tenant_id, idempotency_token(decision.job.command)
        holder = self._keys.get((tenant_id, token)) or find_key(self._store, tenant_id, token)
        if holder is not None:
            raise AlreadyAccepted(holder.job_id, holder.idempotency_hash)

    def _check_version(self, decision: Decision) -> _Staged:
        """The job to change, as this transaction sees it."""
        job = decision.job
        staged = self._jobs.get(job.job_id)
        before = None if staged else self._mirror.find(job.job_id)
        current = staged or before
        version = current.job.version if current else 0
        if version != decision.expected_version or decision.creates is not (current is None):
            raise VersionConflict(f"job {job.job_id} is at version {version}, not {decision.expected_version}")
        if staged is not None:
            return staged
        return _Staged(before.id if before else next_id(self._last_id, job.created_at), before, job, {})

    def _check_caps(self, decision: Decision) -> None:
        for cap in decision.caps:
            if self._counter(cap.counter) + decision.counters.get(cap.counter, 0) > cap.limit:
                raise LimitReached(cap.counter, cap.limit)

    def _counter(self, name: str) -> int:
        staged = self._counters.get(name)
        return self._mirror.counters.get(name, 0) if staged is None else staged

    def _stage(self, decision: Decision, staged: _Staged) -> None:
        job, id_ = decision.job, staged.id
        self._jobs[job.job_id] = staged
        staged.job = job
        if decision.creates:
            self._last_id = id_
            key = job.tenant_id, idempotency_token(job.command)
            self._keys[key] = IdempotencyRow(job.job_id, job.command.idempotency_hash)
        if job.protocol_digest not in self._mirror.stored_protocols:
            self._protocols.setdefault(job.protocol_digest, decision.protocol)
        for step in decision.steps:
            staged.steps[step.step_id] = step
        for row in decision.outbox:
            self._outbox[id_, row.outbox_id] = row
        self._attempts += [(id_, ended) for ended in decision.attempts]
        self._events += [(id_, event) for event in decision.events]
        self._quarantined += [(id_, item) for item in decision.quarantined]
        self._reviews += decision.reviews
        for name, move in decision.counters.items():
            self._counters[name] = self._counter(name) + move

    def write(self, write: Callable[[Sequence[Write]], None]) -> None:
        if self._jobs:
            write([(sql, values) for sql, values in self._writes() if values])
            self._remember()

    def _writes(self) -> Iterator[tuple[str, list[Row]]]:
        """One statement per kind of row; encoded before the transaction begins."""
        yield _INSERT_PROTOCOL, [(digest, rows.body(protocol)) for digest, protocol in self._protocols.items()]
        yield from self._job_writes()
        yield _INSERT_KEY, [(*key, row.job_id, row.idempotency_hash) for key, row in self._keys.items()]
        yield _PUT_STEP, [_step_row(s.id, step) for s in self._jobs.values() for step in s.steps.values()]
        yield (
            _PUT_ATTEMPT,
            [(id_, ended.step_id, ended.attempt.attempt_no, rows.body(ended)) for id_, ended in self._attempts],
        )
        yield _PUT_OUTBOX, self._outbox_rows()
        yield _INSERT_EVENT, [(id_, event.seq, rows.body(event)) for id_, event in self._events]
        yield (
            _INSERT_QUARANTINED,
            [(id_, q.step_id, q.attempt_no, q.lease_id, rows.body(q)) for id_, q in self._quarantined],
        )
        for review in self._reviews:  # one by one: an item may be opened and closed in one group
            yield _INSERT_REVIEW if _is_told_once(review) else _PUT_REVIEW, [_review_row(review)]
        yield _PUT_COUNTER, [(name, value) for name, value in self._counters.items() if value]
        yield _DELETE_COUNTER, [(name,) for name, value in self._counters.items() if not value]

    def _job_writes(self) -> Iterator[tuple[str, list[Row]]]:
        inserts: list[Row] = []
        commands: list[Row] = []
        updates: dict[str, list[Row]] = {}
        for staged in self._jobs.values():
            job, columns = staged.job, _columns(staged.job)
            if staged.before is None:
                fixed = (staged.id, job.job_id, job.tenant_id, job.command.request_type, job.created_at)
                inserts.append((*fixed, rows.head(job), *columns))
                commands.append((staged.id, rows.body(job.command)))
            else:
                sql, values = _update_of_job(_columns(staged.before.job), columns)
                updates.setdefault(sql, []).append((rows.head(job), *values, staged.id))
        yield _INSERT_JOB, inserts
        yield _INSERT_COMMAND, commands
        yield from updates.items()

    def _outbox_rows(self) -> list[Row]:
        return [
            (
                id_,
                row.outbox_id,
                self._mirror.last_seq + place,
                str(row.status),
                row.service,
                row.tenant_id,
                row.lane,
                int(row.claimed_at is not None),
                row.next_attempt_at,
                row.created_at,
                rows.body(row),
            )
            for place, ((id_, _), row) in enumerate(self._outbox.items(), start=1)
        ]

    def _remember(self) -> None:
        mirror = self._mirror
        mirror.last_id = self._last_id
        mirror.last_seq += len(self._outbox)
        mirror.stored_protocols.update(self._protocols)
        for row in self._outbox.values():
            mirror.note(row)
        for name, value in self._counters.items():
            if value:
                mirror.counters[name] = value
            else:
                mirror.counters.pop(name, None)
        for staged in self._jobs.values():
            self._remember_job(staged)

    def _remember_job(self, staged: _Staged) -> None:
        job, before = staged.job, staged.before
        if not job.live:
            self._mirror.forget(job.job_id)
        elif before is None:
            self._mirror.keep(LiveJob(staged.id, job, staged.steps))
        elif before.steps is not None:
            before.job = job
            before.steps.update(staged.steps)
        if before is None:
            self._mirror.request_types.add(job.command.request_type)


def _columns(job: Job) -> tuple[Any, ...]:
    """status, live, due_at, blocked_on, blocked_service."""
    if not job.live:
        return str(job.status), 0, None, None, None
    if job.blocked is None:
        return str(job.status), 1, job.due_at, None, None
    return str(job.status), 1, job.due_at, str(job.blocked.reason), job.blocked.service


def _is_told_once(item: ReviewItem) -> bool:
    """The same late success, told twice, must not open what was closed."""
    return item.kind is ReviewKind.STALE_RESULT and item.status is ReviewStatus.OPEN


def _review_row(item: ReviewItem) -> Row:
    named = (item.review_id, item.job_id, item.tenant_id, str(item.kind), str(item.status), item.signature)
    return (*named, rows.body(item))


def _step_row(id_: int, step: Step) -> Row:
    return id_, step.step_id, str(step.status), step.attempt.outbox_id, rows.body(step)


_COLUMN_GROUPS = (("status", "live"), ("due_at",), ("blocked_on", "blocked_service"))
_UPDATES: dict[tuple[bool, bool, bool], str] = {}


def _update_of_job(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """SQLite rewrites every index of a column that is set, changed or not: set only what changed."""
    parts = ((old[:2], new[:2]), (old[2:3], new[2:3]), (old[3:], new[3:]))
    changed = (parts[0][0] != parts[0][1], parts[1][0] != parts[1][1], parts[2][0] != parts[2][1])
    sql = _UPDATES.get(changed)
    if sql is None:
        names = [
            name for names, is_changed in zip(_COLUMN_GROUPS, changed, strict=True) if is_changed for name in names
        ]
        sql = _UPDATES[changed] = f"UPDATE jobs SET {', '.join(f'{n} = ?' for n in ('body', *names))} WHERE id = ?"
    values = tuple(value for (_, part), is_changed in zip(parts, changed, strict=True) if is_changed for value in part)
    return sql, values


def find_key(store: Store, tenant_id: str, key: str) -> IdempotencyRow | None:
    row = store.row(
        "SELECT job_id, idempotency_hash FROM idempotency WHERE tenant_id = ? AND key = ?", (tenant_id, key)
    )
    return IdempotencyRow(row[0], row[1]) if row else None
