"""In-memory state of the one writer: counters, protocols, and the live jobs that were touched last.

All of it mirrors committed rows and is changed only after a COMMIT.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable

from msgspec import Struct

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.tenant_fairness import QueueKey, TenantRotation
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import Instant, Job, OutboxRow, Step
from lucius.core.model.statuses import JobStatus, OutboxStatus
from lucius.core.protocol.definition import ProtocolDefinition

MAX_CACHED_JOBS = 20_000

_ID_BITS = 12

_SQL = load_statements(__package__, "memory_state")
_JOB = _SQL["job"]
_STEPS = _SQL["steps"]
_STEP = _SQL["step"]
_READY = _SQL["ready"]
_LATER = _SQL["later"]


class LiveJob(Struct, eq=False):
    """A job and, if `steps` is not None, every step of it that has started."""

    id: int
    job: Job
    steps: dict[str, Step] | None = None


class MemoryState:
    def __init__(self, file: SqliteFile, max_cached: int = MAX_CACHED_JOBS) -> None:
        self._file = file
        self.max_cached = max_cached
        self._cache: OrderedDict[str, LiveJob] = OrderedDict()
        self._protocols: dict[str, ProtocolDefinition] = {}
        self.stored_protocols: set[str] = {digest for (digest,) in file.fetch_rows(_SQL["stored_protocols"])}
        self.counters: dict[str, int] = dict(file.fetch_rows(_SQL["counters"]))
        self.request_types = _request_types(file)
        self.services = _services(file)
        self.ready = PendingIndex(file, _READY)
        self.deferred = PendingIndex(file, _LATER)
        self.last_id = _number(file, _SQL["last_id"])
        self.last_seq = _number(file, _SQL["last_seq"])

    @property
    def cached_count(self) -> int:
        """Number of cached jobs, at most `max_cached`."""
        return len(self._cache)

    def cached(self, job_id: str) -> LiveJob | None:
        found = self._cache.get(job_id)
        if found is not None:
            self._cache.move_to_end(job_id)
        return found

    def put(self, entry: LiveJob) -> None:
        self._cache[entry.job.job_id] = entry
        self._cache.move_to_end(entry.job.job_id)
        if len(self._cache) > self.max_cached:
            self._cache.popitem(last=False)

    def add_outbox_row(self, row: OutboxRow) -> None:
        """Note a row, so that queries find it."""
        self.services.add(row.service)
        if row.status is OutboxStatus.PENDING and row.claimed_at is None:
            waiting = self.ready if row.next_attempt_at is None else self.deferred
            waiting.add_lane(QueueKey(row.service, row.tenant_id), row.lane, row.next_attempt_at or 0)

    def evict(self, job_id: str) -> None:
        self._cache.pop(job_id, None)

    def find(self, job_id: str) -> LiveJob | None:
        """Return the job's head as committed, or None; with its steps only if it was cached."""
        found = self.cached(job_id)
        if found is not None:
            return found
        row = self._file.fetch_row(_JOB, (job_id,))
        return LiveJob(row[0], record_codec.job(row[1], row[2])) if row else None

    def view(self, job_id: str, step_ids: Collection[str]) -> JobSnapshot | None:
        """Return the job with its active steps and `step_ids`, or None."""
        entry = self.find(job_id)
        if entry is None:
            return None
        asked = frozenset((*entry.job.active, *step_ids))
        if entry.steps is None and entry.job.live:
            entry.steps = self._steps(entry.id)
            self.put(entry)
        if entry.steps is None:
            steps = self._some_steps(entry.id, asked)
        else:
            steps = {s: entry.steps[s] for s in asked if s in entry.steps}
        return JobSnapshot(entry.job, self.protocol(entry.job.protocol_digest), steps, asked)

    def whole_view(self, job_id: str) -> JobSnapshot | None:
        """Return the job with every step that has started, or None."""
        entry = self.find(job_id)
        if entry is None:
            return None
        steps = self._steps(entry.id) if entry.steps is None else dict(entry.steps)
        return JobSnapshot(entry.job, self.protocol(entry.job.protocol_digest), steps)

    def _steps(self, job: int) -> dict[str, Step]:
        found = [record_codec.decode_step(body) for (body,) in self._file.fetch_rows(_STEPS, (job,))]
        return {step.step_id: step for step in sorted(found, key=lambda step: step.index)}

    def _some_steps(self, job: int, step_ids: Iterable[str]) -> dict[str, Step]:
        steps: dict[str, Step] = {}
        for step_id in step_ids:
            row = self._file.fetch_row(_STEP, (job, step_id))
            if row is not None:
                steps[step_id] = record_codec.decode_step(row[0])
        return steps

    def protocol(self, digest: str) -> ProtocolDefinition:
        found = self._protocols.get(digest)
        if found is None:
            (body,) = self._file.fetch_rows(_SQL["protocol"], (digest,))[0]
            found = self._protocols[digest] = record_codec.decode_protocol(body)
        return found


class PendingIndex(TenantRotation[dict[int, Instant]]):
    """Queues with unclaimed PENDING rows: for each lane, the instant from which a query is worth it.

    May have too many entries, never too few: callers that find nothing correct it with `mark_empty`.
    """

    def __init__(self, file: SqliteFile, known: str) -> None:
        super().__init__()
        for service, tenant_id, lane, since in file.fetch_rows(known):
            self.add_lane(QueueKey(service, tenant_id), lane, since)

    def add_lane(self, queue: QueueKey, lane: int, since: Instant) -> None:
        lanes = self.find(queue)
        if lanes is None:
            lanes = self.add(queue, {})
        lanes[lane] = min(lanes.get(lane, since), since)

    def mark_empty(self, queue: QueueKey, lanes: Collection[int] | None, until: Instant | None) -> None:
        """Note that these lanes have nothing ready before `until`, or nothing left at all if it is None."""
        known = self.find(queue) or {}
        for lane in list(known) if lanes is None else known.keys() & lanes:
            if until is None:
                del known[lane]
            else:
                known[lane] = until
        if not known:
            self.remove(queue)


def next_id(last: int, created_at: Instant) -> int:
    """Return an id above `last` and not below the instant.

    After the clock was set back ids run ahead of it, which is why `created_after` reads from `first_id_after` on and
    still compares `created_at`.
    """
    return max(last + 1, created_at << _ID_BITS)


def first_id_after(instant: Instant) -> int:
    return (instant + 1) << _ID_BITS


def _number(file: SqliteFile, sql: str) -> int:
    row = file.fetch_row(sql)
    return int(row[0] or 0) if row else 0


def _request_types(file: SqliteFile) -> set[str]:
    """Return all request types by a loose index scan, from value to value."""
    found: set[str] = set()
    for status in JobStatus:
        last: str | None = ""
        while last is not None:
            row = file.fetch_row(_SQL["next_request_type"], (str(status), last))
            last = row[0] if row else None
            if last is not None:
                found.add(last)
    return found


def _services(file: SqliteFile) -> set[str]:
    found: set[str] = set()
    last: str | None = ""
    while last is not None:
        row = file.fetch_row(_SQL["next_service"], (last,))
        last = row[0] if row else None
        if last is not None:
            found.add(last)
    return found
