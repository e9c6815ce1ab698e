"""What the one writer keeps in memory: counters, protocols, and the live jobs that were touched last.

All of it mirrors committed rows and is changed only after a COMMIT.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable

from msgspec import Struct

from lucius.adapters import rows
from lucius.adapters.sqlite.store import Store
from lucius.adapters.turns import Taker, Turns
from lucius.core.decision import JobView
from lucius.core.model import Instant, Job, JobStatus, OutboxRow, OutboxStatus, Step
from lucius.core.protocol import Protocol

MAX_CACHED_JOBS = 20_000

_ID_BITS = 12

_JOB = """
    SELECT jobs.id, commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.job_id = ?
"""
_READY = """
    SELECT DISTINCT service, tenant_id, lane, 0 FROM outbox
    WHERE status = 'PENDING' AND claimed = 0 AND next_attempt_at IS NULL
"""
_LATER = """
    SELECT service, tenant_id, lane, min(next_attempt_at) FROM outbox
    WHERE status = 'PENDING' AND claimed = 0 AND next_attempt_at IS NOT NULL GROUP BY service, tenant_id, lane
"""


class LiveJob(Struct, eq=False):
    """A job and, if `steps` is not None, every step of it that has started."""

    id: int
    job: Job
    steps: dict[str, Step] | None = None


class Mirror:
    def __init__(self, store: Store, max_cached: int = MAX_CACHED_JOBS) -> None:
        self._store = store
        self._max_cached = max_cached
        self._cache: OrderedDict[str, LiveJob] = OrderedDict()
        self._protocols: dict[str, Protocol] = {}
        self.stored_protocols: set[str] = {digest for (digest,) in store.rows("SELECT digest FROM protocols")}
        self.counters: dict[str, int] = dict(store.rows("SELECT name, value FROM counters"))
        self.request_types = _request_types(store)
        self.services = _services(store)
        self.ready = Waiting(store, _READY)
        self.later = Waiting(store, _LATER)
        self.last_id = _number(store, "SELECT max(id) FROM jobs")
        self.last_seq = _number(store, "SELECT max(seq) FROM outbox WHERE status = 'PENDING'")

    def cached(self, job_id: str) -> LiveJob | None:
        found = self._cache.get(job_id)
        if found is not None:
            self._cache.move_to_end(job_id)
        return found

    def keep(self, entry: LiveJob) -> None:
        self._cache[entry.job.job_id] = entry
        self._cache.move_to_end(entry.job.job_id)
        if len(self._cache) > self._max_cached:
            self._cache.popitem(last=False)

    def note(self, row: OutboxRow) -> None:
        """So that it is found when it is asked for."""
        self.services.add(row.service)
        if row.status is OutboxStatus.PENDING and row.claimed_at is None:
            waiting = self.ready if row.next_attempt_at is None else self.later
            waiting.note(Taker(row.service, row.tenant_id), row.lane, row.next_attempt_at or 0)

    def forget(self, job_id: str) -> None:
        self._cache.pop(job_id, None)

    def find(self, job_id: str) -> LiveJob | None:
        """The job's head as committed; with its steps only if it was cached."""
        found = self.cached(job_id)
        if found is not None:
            return found
        row = self._store.row(_JOB, (job_id,))
        return LiveJob(row[0], rows.job(row[1], row[2])) if row else None

    def view(self, job_id: str, step_ids: Collection[str]) -> JobView | None:
        """The job with its active steps and the named ones."""
        entry = self.find(job_id)
        if entry is None:
            return None
        asked = frozenset((*entry.job.active, *step_ids))
        if entry.steps is None and entry.job.live:
            entry.steps = self._steps(entry.id)
            self.keep(entry)
        if entry.steps is None:
            steps = self._some_steps(entry.id, asked)
        else:
            steps = {s: entry.steps[s] for s in asked if s in entry.steps}
        return JobView(entry.job, self.protocol(entry.job.protocol_digest), steps, asked)

    def whole_view(self, job_id: str) -> JobView | None:
        """The job with every step that has started."""
        entry = self.find(job_id)
        if entry is None:
            return None
        steps = self._steps(entry.id) if entry.steps is None else dict(entry.steps)
        return JobView(entry.job, self.protocol(entry.job.protocol_digest), steps)

    def _steps(self, job: int) -> dict[str, Step]:
        found = [rows.step(body) for (body,) in self._store.rows("SELECT body FROM steps WHERE job = ?", (job,))]
        return {step.step_id: step for step in sorted(found, key=lambda step: step.index)}

    def _some_steps(self, job: int, step_ids: Iterable[str]) -> dict[str, Step]:
        steps: dict[str, Step] = {}
        for step_id in step_ids:
            row = self._store.row("SELECT body FROM steps WHERE job = ? AND step_id = ?", (job, step_id))
            if row is not None:
                steps[step_id] = rows.step(row[0])
        return steps

    def protocol(self, digest: str) -> Protocol:
        found = self._protocols.get(digest)
        if found is None:
            (body,) = self._store.rows("SELECT body FROM protocols WHERE digest = ?", (digest,))[0]
            found = self._protocols[digest] = rows.protocol(body)
        return found


class Waiting(Turns[dict[int, Instant]]):
    """Who has unclaimed PENDING rows: by lane, since when a look at them is worth it. It may know too much, never too
    little: whoever looks in vain says so."""

    def __init__(self, store: Store, known: str) -> None:
        super().__init__()
        for service, tenant_id, lane, since in store.rows(known):
            self.note(Taker(service, tenant_id), lane, since)

    def note(self, taker: Taker, lane: int, since: Instant) -> None:
        lanes = self.find(taker)
        if lanes is None:
            lanes = self.add(taker, {})
        lanes[lane] = min(lanes.get(lane, since), since)

    def looked_in_vain(self, taker: Taker, lanes: Collection[int] | None, until: Instant | None) -> None:
        """In these lanes nothing is ready before that, or nothing is left at all."""
        known = self.find(taker) or {}
        for lane in list(known) if lanes is None else known.keys() & lanes:
            if until is None:
                del known[lane]
            else:
                known[lane] = until
        if not known:
            self.drop(taker)


def next_id(last: int, created_at: Instant) -> int:
    """Ever growing, and never below the instant: a clock that went back yields ids ahead of their time, which is
    why `created_after` reads from `first_id_after` on and still compares `created_at`."""
    return max(last + 1, created_at << _ID_BITS)


def first_id_after(instant: Instant) -> int:
    return (instant + 1) << _ID_BITS


def _number(store: Store, sql: str) -> int:
    row = store.row(sql)
    return int(row[0] or 0) if row else 0


def _request_types(store: Store) -> set[str]:
    """Hops from value to value in the index instead of reading all of it."""
    found: set[str] = set()
    for status in JobStatus:
        last: str | None = ""
        while last is not None:
            row = store.row(
                "SELECT min(request_type) FROM jobs WHERE status = ? AND request_type > ?", (str(status), last)
            )
            last = row[0] if row else None
            if last is not None:
                found.add(last)
    return found


def _services(store: Store) -> set[str]:
    found: set[str] = set()
    last: str | None = ""
    while last is not None:
        row = store.row("SELECT min(service) FROM outbox WHERE status = 'PENDING' AND service > ?", (last,))
        last = row[0] if row else None
        if last is not None:
            found.add(last)
    return found
