"""What became durable here and has yet to be told to the other processes."""

from collections.abc import Callable, Iterable

from lucius.core.counters import UNACKED
from lucius.core.decision import Decision
from lucius.core.model import Instant, OutboxRow, OutboxStatus
from lucius.ports.peers import ANY_LANE, NEAR_MS, Wake

MAX_IDS = 100
MAX_LANES = 40
MAX_DUE = 40
"""A notification holds 8,000 bytes. More jobs go into the next one; of many lanes only the services are named."""
MOST_UNSAID = 10_000


class News:
    def __init__(self) -> None:
        self._jobs: dict[str, bool] = {}
        self._ready: dict[tuple[str, int], None] = {}
        self._picked_up: dict[str, None] = {}
        self._due: set[Instant] = set()

    def __bool__(self) -> bool:
        return bool(self._jobs or self._ready or self._picked_up or self._due)

    def note(self, decision: Decision, held: Callable[[OutboxRow], bool]) -> None:
        """Rows that we hold are nobody else's business."""
        job = decision.job
        self._jobs[job.job_id] = not job.live
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING and row.next_attempt_at is None and not held(row):
                self._ready[row.service, row.lane] = None
        for counter, move in decision.counters.items():
            if move < 0 and counter.startswith(UNACKED):
                self._picked_up[counter.removeprefix(UNACKED)] = None
        if job.due_at is not None and job.due_at - job.updated_at <= NEAR_MS:
            self._due.add(job.due_at)

    def note_ready(self, ready: Iterable[tuple[str, int]]) -> None:
        self._ready |= dict.fromkeys(ready)

    def take(self) -> Wake:
        """As much as one notification holds, the oldest first."""
        ids = [(job_id, self._jobs.pop(job_id)) for job_id in list(self._jobs)[:MAX_IDS]]
        due, picked_up = sorted(self._due)[:MAX_DUE], list(self._picked_up)[:MAX_LANES]
        if len(self._ready) > MAX_LANES:
            self._ready = {(service, ANY_LANE): None for service, _ in self._ready}
        ready = list(self._ready)[:MAX_LANES]
        self._due.difference_update(due)
        for name in picked_up:
            del self._picked_up[name]
        for pair in ready:
            del self._ready[pair]
        return Wake(
            ready=tuple(ready),
            picked_up=tuple(picked_up),
            changed=tuple(job_id for job_id, ended in ids if not ended),
            ended=tuple(job_id for job_id, ended in ids if ended),
            due=tuple(due),
        )

    def put_back(self, wake: Wake) -> None:
        """It could not be said; not more of it is kept than a memory can bear."""
        if len(self._jobs) < MOST_UNSAID:
            untold = {**dict.fromkeys(wake.changed, False), **dict.fromkeys(wake.ended, True)}
            self._jobs = {**untold, **self._jobs}
        self._ready |= dict.fromkeys(wake.ready)
        self._picked_up |= dict.fromkeys(wake.picked_up)
        self._due.update(wake.due)
