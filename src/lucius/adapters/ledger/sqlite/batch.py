"""One transaction, staged: refusals are found before anything is written, memory changes only afterwards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.search_page import own_correlation_id, target_key
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import Row, SqliteFile, Write
from lucius.adapters.ledger.sqlite.memory_state import LiveJob, MemoryState, next_id
from lucius.core.model.decision import Decision, EndedAttempt
from lucius.core.model.records import Event, Job, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import AlreadyAccepted, LimitReached, VersionConflict
from lucius.ports.ledger import IdempotencyRow, idempotency_token

_SQL = load_statements(__package__, "batch")
_INSERT_JOB = _SQL["insert_job"]
_UPDATE_JOB = _SQL["update_job"]
_FIND_KEY = _SQL["find_key"]
_INSERT_COMMAND = _SQL["insert_command"]
_INSERT_KEY = _SQL["insert_key"]
_INSERT_PROTOCOL = _SQL["insert_protocol"]
_PUT_STEP = _SQL["put_step"]
_PUT_ATTEMPT = _SQL["put_attempt"]
_PUT_OUTBOX = _SQL["put_outbox"]
_INSERT_EVENT = _SQL["insert_event"]
_INSERT_QUARANTINED = _SQL["insert_quarantined"]
_INSERT_REVIEW = _SQL["insert_review"]
_PUT_REVIEW = _SQL["put_review"]
_PUT_COUNTER = _SQL["put_counter"]
_DELETE_COUNTER = _SQL["delete_counter"]


class _Staged(Struct, eq=False):
    """A job in this transaction: what is committed (None for a new one) and what will be."""

    id: int
    before: LiveJob | None
    job: Job
    steps: dict[str, Step]


class StagedTransaction:
    """Transaction in the making.

    Later values of a row replace earlier ones, so several decisions of one job fit one transaction.
    """

    def __init__(self, file: SqliteFile, state: MemoryState) -> None:
        self._file = file
        self._state = state
        self._last_id = state.last_id
        self._jobs: dict[str, _Staged] = {}
        self._keys: dict[tuple[str, str], IdempotencyRow] = {}
        self._counters: dict[str, int] = {}
        self._protocols: dict[str, ProtocolDefinition] = {}
        self._attempts: list[tuple[int, EndedAttempt]] = []
        self._outbox: dict[tuple[int, str], OutboxRow] = {}
        self._events: list[tuple[int, Event]] = []
        self._quarantined: list[tuple[int, Quarantined]] = []
        self._reviews: list[ReviewItem] = []

    def add(self, decision: Decision) -> None:
        """Stage a decision. Raises AlreadyAccepted, VersionConflict or LimitReached, and then stages nothing of it."""
        if decision.creates:
            self._check_key(decision)
        staged = self._check_version(decision)
        self._check_caps(decision)
        self._stage(decision, staged)

    def _check_key(self, decision: Decision) -> None:
        tenant_id, token = decision.job.tenant_id, idempotency_token(decision.job.command)
        holder = self._keys.get((tenant_id, token)) or find_key(self._file, tenant_id, token)
        if holder is not None:
            raise AlreadyAccepted(holder.job_id, holder.idempotency_hash)

    def _check_version(self, decision: Decision) -> _Staged:
        """Return the job to change, as this transaction sees it. Raises VersionConflict."""
        job = decision.job
        staged = self._jobs.get(job.job_id)
        before = None if staged else self._state.find(job.job_id)
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
        return self._state.counters.get(name, 0) if staged is None else staged

    def _stage(self, decision: Decision, staged: _Staged) -> None:
        job, id_ = decision.job, staged.id
        self._jobs[job.job_id] = staged
        staged.job = job
        if decision.creates:
            self._last_id = id_
            key = job.tenant_id, idempotency_token(job.command)
            self._keys[key] = IdempotencyRow(job.job_id, job.command.idempotency_hash)
        if job.protocol_digest not in self._state.stored_protocols:
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
        """Yield one statement per kind of row; rows are encoded before the transaction begins."""
        yield _INSERT_PROTOCOL, [(digest, record_codec.body(protocol)) for digest, protocol in self._protocols.items()]
        yield from self._job_writes()
        yield _INSERT_KEY, [(*key, row.job_id, row.idempotency_hash) for key, row in self._keys.items()]
        yield _PUT_STEP, [_step_row(s.id, step) for s in self._jobs.values() for step in s.steps.values()]
        yield (
            _PUT_ATTEMPT,
            [(id_, ended.step_id, ended.attempt.attempt_no, record_codec.body(ended)) for id_, ended in self._attempts],
        )
        yield _PUT_OUTBOX, self._outbox_rows()
        yield _INSERT_EVENT, [(id_, event.seq, record_codec.body(event)) for id_, event in self._events]
        yield (
            _INSERT_QUARANTINED,
            [(id_, q.step_id, q.attempt_no, q.lease_id, record_codec.body(q)) for id_, q in self._quarantined],
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
                inserts.append((*fixed, record_codec.head(job), *columns))
                commands.append((staged.id, record_codec.body(job.command), *_terms(job)))
            else:
                sql, values = _update_of_job(_columns(staged.before.job), columns)
                updates.setdefault(sql, []).append((record_codec.head(job), *values, staged.id))
        yield _INSERT_JOB, inserts
        yield _INSERT_COMMAND, commands
        yield from updates.items()

    def _outbox_rows(self) -> list[Row]:
        return [
            (
                id_,
                row.outbox_id,
                self._state.last_seq + place,
                str(row.status),
                row.service,
                row.tenant_id,
                row.lane,
                int(row.claimed_at is not None),
                row.next_attempt_at,
                row.created_at,
                record_codec.body(row),
            )
            for place, ((id_, _), row) in enumerate(self._outbox.items(), start=1)
        ]

    def _remember(self) -> None:
        state = self._state
        state.last_id = self._last_id
        state.last_seq += len(self._outbox)
        state.stored_protocols.update(self._protocols)
        for row in self._outbox.values():
            state.add_outbox_row(row)
        for name, value in self._counters.items():
            if value:
                state.counters[name] = value
            else:
                state.counters.pop(name, None)
        for staged in self._jobs.values():
            self._remember_job(staged)

    def _remember_job(self, staged: _Staged) -> None:
        job, before = staged.job, staged.before
        if not job.live:
            self._state.evict(job.job_id)
        elif before is None:
            self._state.put(LiveJob(staged.id, job, staged.steps))
        elif before.steps is not None:
            before.job = job
            before.steps.update(staged.steps)
        if before is None:
            self._state.request_types.add(job.command.request_type)


def _columns(job: Job) -> tuple[Any, ...]:
    """Return status, live, due_at, blocked_on, blocked_service, completed_at, error_code."""
    if not job.live:
        code = job.error.code if job.error is not None else None
        return str(job.status), 0, None, None, None, job.completed_at or job.updated_at, code
    if job.blocked is None:
        return str(job.status), 1, job.due_at, None, None, None, None
    return str(job.status), 1, job.due_at, str(job.blocked.reason), job.blocked.service, None, None


def _terms(job: Job) -> tuple[str | None, ...]:
    """Return doc_id, correlation_id, target."""
    command = job.command
    return command.doc_id, own_correlation_id(command, job.job_id), target_key(command.target)


def _is_told_once(item: ReviewItem) -> bool:
    """Return whether an item is only ever inserted: a repeated late success must not reopen a closed review."""
    return item.kind is ReviewKind.STALE_RESULT and item.status is ReviewStatus.OPEN


def _review_row(item: ReviewItem) -> Row:
    named = (item.review_id, item.job_id, item.tenant_id, str(item.kind), str(item.status), item.signature)
    return (*named, record_codec.body(item))


def _step_row(id_: int, step: Step) -> Row:
    return id_, step.step_id, str(step.status), step.attempt.outbox_id, record_codec.body(step)


_COLUMN_GROUPS = (
    ("status", "live"),
    ("due_at",),
    ("blocked_on", "blocked_service"),
    ("completed_at", "error_code"),
)
_UPDATES: dict[tuple[bool, ...], str] = {}


def _update_of_job(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return an UPDATE of only the changed columns: SQLite rewrites every index of a column that is set."""
    parts = ((old[:2], new[:2]), (old[2:3], new[2:3]), (old[3:5], new[3:5]), (old[5:], new[5:]))
    changed = tuple(before != after for before, after in parts)
    sql = _UPDATES.get(changed)
    if sql is None:
        names = [
            name for names, is_changed in zip(_COLUMN_GROUPS, changed, strict=True) if is_changed for name in names
        ]
        columns = ", ".join(f"{name} = ?" for name in ("body", *names))
        sql = _UPDATES[changed] = _UPDATE_JOB.format(columns=columns)
    values = tuple(value for (_, part), is_changed in zip(parts, changed, strict=True) if is_changed for value in part)
    return sql, values


def find_key(file: SqliteFile, tenant_id: str, key: str) -> IdempotencyRow | None:
    row = file.fetch_row(_FIND_KEY, (tenant_id, key))
    return IdempotencyRow(row[0], row[1]) if row else None
