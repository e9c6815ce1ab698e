"""Live jobs as this process saw them last.

Whatever rests on it is guarded: a decision by the version it was made on, and one that changes nothing is made again
on a fresh view. So an entry that another process has outdated costs one more look, and never a wrong answer.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable

from msgspec import Struct

from lucius.core.decision import JobView
from lucius.core.model import Job, Step
from lucius.core.protocol import Protocol

MAX_JOBS = 20_000
MAX_BYTES = 64 * 1024 * 1024
"""Of what was written or read. As objects it takes several times as much."""
MAX_PLACES = 40_000

NOWHERE, LIVE, DONE = 0, 1, 2


class Place(Struct, frozen=True):
    """Where a job's head is: its number, and the table."""

    id: int
    table: int


class Sizes(Struct, frozen=True):
    """In bytes, as they were read."""

    head: int
    steps: dict[str, int]

    def of(self, step_ids: Iterable[str]) -> int:
        return self.head + sum(self.steps[step_id] for step_id in step_ids)


class Entry(Struct, eq=False):
    """A live job with those of its steps that were asked for; `known` names them, started or not."""

    job: Job
    steps: dict[str, Step]
    known: set[str]
    size: int
    whole: bool = False


class Cache:
    def __init__(self, max_jobs: int = MAX_JOBS, max_bytes: int = MAX_BYTES) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._places: OrderedDict[str, Place] = OrderedDict()
        self.protocols: dict[str, Protocol] = {}

    def place(self, job_id: str) -> Place | None:
        return self._places.get(job_id)

    def put_place(self, job_id: str, place: Place) -> None:
        self._places[job_id] = place
        self._places.move_to_end(job_id)
        if len(self._places) > MAX_PLACES:
            self._places.popitem(last=False)

    def entry(self, job_id: str) -> Entry | None:
        found = self._entries.get(job_id)
        if found is not None:
            self._entries.move_to_end(job_id)
        return found

    def put(self, entry: Entry) -> None:
        self.forget([entry.job.job_id])
        self._entries[entry.job.job_id] = entry
        self._bytes += entry.size
        self._make_room()

    def read(self, job: Job, steps: dict[str, Step], asked: Collection[str], sizes: Sizes) -> None:
        """The database has the job like this, with these of the steps that were asked for."""
        entry = self.entry(job.job_id)
        if entry is not None and entry.job.version > job.version:
            return  # a slow look
        if entry is None or (entry.job.version, entry.job.event_hash) != (job.version, job.event_hash):
            self.put(Entry(job, dict(steps), set(asked), sizes.of(steps)))
        elif not entry.whole:  # what else is known of this version is as true as before
            news = set(asked) - entry.known
            entry.known |= news
            entry.steps |= {step_id: steps[step_id] for step_id in news if step_id in steps}
            self._grow(entry, sum(sizes.steps.get(step_id, 0) + len(step_id) for step_id in news))

    def _grow(self, entry: Entry, size: int) -> None:
        """Some of it may replace what was there: an entry counts for more than it is, and others go sooner."""
        entry.size += size
        self._bytes += size
        self._make_room()

    def _make_room(self) -> None:
        while self._entries and (len(self._entries) > self._max_jobs or self._bytes > self._max_bytes):
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size

    def forget(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            entry = self._entries.pop(job_id, None)
            if entry is not None:
                self._bytes -= entry.size

    def forget_all(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def view(self, job_id: str, step_ids: Collection[str]) -> JobView | None:
        """None if the job, or one of the steps, is not known here."""
        entry = self.entry(job_id)
        if entry is None:
            return None
        asked = frozenset((*entry.job.active, *step_ids))
        if not entry.whole and not entry.known.issuperset(asked):
            return None
        protocol = self.protocols.get(entry.job.protocol_digest)
        if protocol is None:
            return None
        steps = {step_id: entry.steps[step_id] for step_id in asked if step_id in entry.steps}
        return JobView(entry.job, protocol, steps, asked, cached=True)

    def moved(self, job: Job, steps: Collection[Step], creates: bool, size: int) -> JobView | None:
        """A decision became durable here, which took so many bytes to write down.

        The answer is the whole job, if that was its end and everything about it is known.
        """
        if creates:
            self.put(Entry(job, {}, set(), 0, whole=True))
        entry = self.entry(job.job_id)
        if entry is None:
            return None
        if not creates and entry.job.version != job.version - 1:
            self.forget([job.job_id])  # its steps are of another time than this head
            return None
        entry.job = job
        for step in steps:
            entry.steps[step.step_id] = step
            entry.known.add(step.step_id)
        if not job.live:
            return self._end(entry)
        self._grow(entry, size)
        return None

    def _end(self, entry: Entry) -> JobView | None:
        self.forget([entry.job.job_id])
        protocol = self.protocols.get(entry.job.protocol_digest)
        if not entry.whole or protocol is None:
            return None
        steps = sorted(entry.steps.values(), key=lambda step: step.index)
        return JobView(entry.job, protocol, {step.step_id: step for step in steps})
