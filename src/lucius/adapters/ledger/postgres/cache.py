"""Cache of live jobs as this replica last saw them.

Stale entries are safe: a commit is guarded by the version it was decided on, and a decision that changes nothing is
made again on a fresh view. An entry that another replica outdated costs one more query, never a wrong result.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable

from msgspec import Struct

from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import Job, Step
from lucius.core.protocol.definition import ProtocolDefinition

MAX_JOBS = 20_000
MAX_BYTES = 64 * 1024 * 1024
"""Of encoded records; as Python objects they take several times as much."""
MAX_LOCATIONS = 40_000

NEW, LIVE, DONE = 0, 1, 2
"""Table that holds a job's head: none yet, `live` or `done`."""


class JobLocation(Struct, frozen=True):
    """Row id of a job and the table that holds its head."""

    id: int
    table: int


class RecordSizes(Struct, frozen=True):
    """Encoded sizes of a job's records in bytes."""

    head: int
    steps: dict[str, int]

    def of(self, step_ids: Iterable[str]) -> int:
        return self.head + sum(self.steps[step_id] for step_id in step_ids)


class CachedJob(Struct, eq=False):
    """A live job with the steps that were loaded.

    `known` names the loaded steps, started or not; with `whole`, all started steps are present.
    """

    job: Job
    steps: dict[str, Step]
    known: set[str]
    size: int
    whole: bool = False


class JobCache:
    """LRU cache of live jobs and of job locations, bounded by number and encoded size."""

    def __init__(self, max_jobs: int = MAX_JOBS, max_bytes: int = MAX_BYTES) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[str, CachedJob] = OrderedDict()
        self._locations: OrderedDict[str, JobLocation] = OrderedDict()
        self.protocols: dict[str, ProtocolDefinition] = {}
        self.stored_protocols: set[str] = set()
        """Digests of protocols that the database has."""

    def location(self, job_id: str) -> JobLocation | None:
        return self._locations.get(job_id)

    def put_location(self, job_id: str, location: JobLocation) -> None:
        self._locations[job_id] = location
        self._locations.move_to_end(job_id)
        if len(self._locations) > MAX_LOCATIONS:
            self._locations.popitem(last=False)

    def entry(self, job_id: str) -> CachedJob | None:
        found = self._entries.get(job_id)
        if found is not None:
            self._entries.move_to_end(job_id)
        return found

    def put(self, entry: CachedJob) -> None:
        self.evict([entry.job.job_id])
        self._entries[entry.job.job_id] = entry
        self.size_bytes += entry.size
        self._evict_oldest()

    def apply_read(self, job: Job, steps: dict[str, Step], requested: Collection[str], sizes: RecordSizes) -> None:
        """Cache what a query returned: the job, and those of the `requested` steps that have started."""
        entry = self.entry(job.job_id)
        if entry is not None and entry.job.version > job.version:
            return  # the query is older than the entry
        if entry is None or (entry.job.version, entry.job.event_hash) != (job.version, job.event_hash):
            self.put(CachedJob(job, dict(steps), set(requested), sizes.of(steps)))
        elif not entry.whole:  # same version: keep the known steps and add the new ones
            added = set(requested) - entry.known
            entry.known |= added
            entry.steps |= {step_id: steps[step_id] for step_id in added if step_id in steps}
            self._grow(entry, sum(sizes.steps.get(step_id, 0) + len(step_id) for step_id in added))

    def _grow(self, entry: CachedJob, size: int) -> None:
        """Add to an entry's size. Replaced records are not subtracted, so eviction may come early."""
        entry.size += size
        self.size_bytes += size
        self._evict_oldest()

    def _evict_oldest(self) -> None:
        while self._entries and (len(self._entries) > self._max_jobs or self.size_bytes > self._max_bytes):
            _, oldest = self._entries.popitem(last=False)
            self.size_bytes -= oldest.size

    def evict(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            entry = self._entries.pop(job_id, None)
            if entry is not None:
                self.size_bytes -= entry.size

    def clear(self) -> None:
        self._entries.clear()
        self.size_bytes = 0

    def view(self, job_id: str, step_ids: Collection[str]) -> JobSnapshot | None:
        """Return the job with its active steps and `step_ids`, or None if any of it is not cached."""
        entry = self.entry(job_id)
        if entry is None:
            return None
        requested = frozenset((*entry.job.active, *step_ids))
        if not entry.whole and not entry.known.issuperset(requested):
            return None
        protocol = self.protocols.get(entry.job.protocol_digest)
        if protocol is None:
            return None
        steps = {step_id: entry.steps[step_id] for step_id in requested if step_id in entry.steps}
        return JobSnapshot(entry.job, protocol, steps, requested, cached=True)

    def apply_commit(self, job: Job, steps: Collection[Step], creates: bool, size: int) -> JobSnapshot | None:
        """Update the cache with a committed decision whose records took `size` bytes.

        Return the whole job if it has ended and all its steps are cached.
        """
        if creates:
            self.put(CachedJob(job, {}, set(), 0, whole=True))
        entry = self.entry(job.job_id)
        if entry is None:
            return None
        if not creates and entry.job.version != job.version - 1:
            self.evict([job.job_id])  # the cached steps belong to another version
            return None
        entry.job = job
        for step in steps:
            entry.steps[step.step_id] = step
            entry.known.add(step.step_id)
        if not job.live:
            return self._end(entry)
        self._grow(entry, size)
        return None

    def _end(self, entry: CachedJob) -> JobSnapshot | None:
        self.evict([entry.job.job_id])
        protocol = self.protocols.get(entry.job.protocol_digest)
        if not entry.whole or protocol is None:
            return None
        steps = sorted(entry.steps.values(), key=lambda step: step.index)
        return JobSnapshot(entry.job, protocol, {step.step_id: step for step in steps})
