"""What became durable here and has yet to be told to the other processes."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

import msgspec

from lucius.core.counters import UNACKED
from lucius.core.decision import Decision
from lucius.core.model import Instant, OutboxRow, OutboxStatus
from lucius.ports.peers import ANY_LANE, NEAR_MS, Wake

T = TypeVar("T")

MAX_IDS = 100
MAX_LANES = 40
MAX_DUE = 40
MAX_TOLD = 20
MAX_BYTES = 7_700
"""A notification holds less than 8,000, with who says it. What is too much goes into the next one; of many lanes only
the services are named."""
MOST_UNSAID = 10_000
MOST_UNTOLD = 500
"""Who has so much to tell is too late with the first of it."""

_encode = msgspec.json.Encoder().encode


class News:
    def __init__(self) -> None:
        self._jobs: dict[str, bool] = {}
        self._ready: dict[tuple[str, int], None] = {}
        self._picked_up: dict[str, None] = {}
        self._due: set[Instant] = set()
        self._told: deque[tuple[str, ...]] = deque(maxlen=MOST_UNTOLD)

    def __bool__(self) -> bool:
        return bool(self._jobs or self._ready or self._picked_up or self._due or self._told)

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
        if job.due_at is not None and not job.engine and job.due_at - job.updated_at <= NEAR_MS:
            self._due.add(job.due_at)

    def note_ready(self, ready: Iterable[tuple[str, int]]) -> None:
        self._ready |= dict.fromkeys(ready)

    def note_told(self, letter_ids: Collection[str]) -> None:
        """Together or not at all."""
        if 0 < len(letter_ids) <= MAX_TOLD:
            self._told.append(tuple(letter_ids))

    def take(self) -> Wake:
        """As much as one notification holds, the oldest first."""
        room = _Room()
        told = self._take_told(room)
        ids = [(job_id, self._jobs.pop(job_id)) for job_id in room.take(self._jobs, MAX_IDS)]
        due = room.take(sorted(self._due), MAX_DUE)
        if len(self._ready) > MAX_LANES:
            self._ready = {(service, ANY_LANE): None for service, _ in self._ready}
        ready, picked_up = room.take(self._ready, MAX_LANES), room.take(self._picked_up, MAX_LANES)
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
            told=tuple(told),
        )

    def _take_told(self, room: "_Room") -> list[str]:
        told: list[str] = []
        while self._told and len(told) + len(self._told[0]) <= MAX_TOLD:
            told += room.take(self._told.popleft(), MAX_TOLD)
        return told

    def put_back(self, wake: Wake) -> None:
        """It could not be said; not more of it is kept than a memory can bear. What was told is no news any more."""
        self._told.clear()
        if len(self._jobs) < MOST_UNSAID:
            untold = {**dict.fromkeys(wake.changed, False), **dict.fromkeys(wake.ended, True)}
            self._jobs = {**untold, **self._jobs}
        self._ready |= dict.fromkeys(wake.ready)
        self._picked_up |= dict.fromkeys(wake.picked_up)
        self._due.update(wake.due)


class _Room:
    """In one notification; enough for one of anything."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, waiting: Iterable[T], most: int) -> list[T]:
        """The first of them, as many as there is room for."""
        fitting: list[T] = []
        for one in islice(waiting, most):
            size = len(_encode(one)) + 1
            if self._taken and self._taken + size > MAX_BYTES:
                break
            self._taken += size
            fitting.append(one)
        return fitting
