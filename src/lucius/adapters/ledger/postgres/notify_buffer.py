"""Buffer of changes committed by this replica and not yet published to the others."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

import msgspec

from lucius.core.model.counters import UNACKED
from lucius.core.model.decision import Decision
from lucius.core.model.records import Instant, OutboxRow
from lucius.core.model.statuses import OutboxStatus
from lucius.ports.peers import ANY_LANE, NEAR_DEADLINE_MS, Wake

T = TypeVar("T")

MAX_JOB_IDS = 100
MAX_LANES = 40
MAX_DEADLINES = 40
MAX_INBOX_IDS = 20
MAX_PAYLOAD_BYTES = 7_700
"""PostgreSQL limits a NOTIFY payload to 8,000 bytes, and the sender's id needs some. The rest goes into the next
notification; instead of more than MAX_LANES lanes only their services are named."""
MAX_BUFFERED_JOBS = 10_000
MAX_BUFFERED_INBOX_GROUPS = 500
"""Beyond this the oldest groups are dropped: they would arrive too late to be of use."""

_encode = msgspec.json.Encoder().encode


class NotifyBuffer:
    """Collects changes and hands them out in pieces that fit one notification."""

    def __init__(self) -> None:
        self._jobs: dict[str, bool] = {}
        self._ready: dict[tuple[str, int], None] = {}
        self._picked_up: dict[str, None] = {}
        self._due: set[Instant] = set()
        self._inbox_ids: deque[tuple[str, ...]] = deque(maxlen=MAX_BUFFERED_INBOX_GROUPS)

    def __bool__(self) -> bool:
        return bool(self._jobs or self._ready or self._picked_up or self._due or self._inbox_ids)

    def add_decision(self, decision: Decision, held: Callable[[OutboxRow], bool]) -> None:
        """Buffer the changes of one committed decision, without outbox rows that this replica holds."""
        job = decision.job
        self._jobs[job.job_id] = not job.live
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING and row.next_attempt_at is None and not held(row):
                self._ready[row.service, row.lane] = None
        for counter, move in decision.counters.items():
            if move < 0 and counter.startswith(UNACKED):
                self._picked_up[counter.removeprefix(UNACKED)] = None
        if job.due_at is not None and job.is_ledger_driven and job.due_at - job.updated_at <= NEAR_DEADLINE_MS:
            self._due.add(job.due_at)

    def add_ready(self, ready: Iterable[tuple[str, int]]) -> None:
        """Buffer (service, lane) pairs that have ready outbox rows."""
        self._ready |= dict.fromkeys(ready)

    def add_inbox_ids(self, message_ids: Collection[str]) -> None:
        """Send all ids in one notification, or drop them."""
        if 0 < len(message_ids) <= MAX_INBOX_IDS:
            self._inbox_ids.append(tuple(message_ids))

    def take(self) -> Wake:
        """Remove and return as much as fits one notification, oldest first."""
        payload = _PayloadBudget()
        inbox_ids = self._take_inbox_ids(payload)
        ids = [(job_id, self._jobs.pop(job_id)) for job_id in payload.take(self._jobs, MAX_JOB_IDS)]
        due = payload.take(sorted(self._due), MAX_DEADLINES)
        if len(self._ready) > MAX_LANES:
            self._ready = {(service, ANY_LANE): None for service, _ in self._ready}
        ready, picked_up = payload.take(self._ready, MAX_LANES), payload.take(self._picked_up, MAX_LANES)
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
            inbox_ids=tuple(inbox_ids),
        )

    def _take_inbox_ids(self, payload: "_PayloadBudget") -> list[str]:
        ids: list[str] = []
        while self._inbox_ids and len(ids) + len(self._inbox_ids[0]) <= MAX_INBOX_IDS:
            ids += payload.take(self._inbox_ids.popleft(), MAX_INBOX_IDS)
        return ids

    def restore(self, wake: Wake) -> None:
        """Buffer the content of a failed notification again, up to MAX_BUFFERED_JOBS jobs.

        Inbox ids are dropped: by the time of the next attempt they are too old to save time.
        """
        self._inbox_ids.clear()
        if len(self._jobs) < MAX_BUFFERED_JOBS:
            unsent = {**dict.fromkeys(wake.changed, False), **dict.fromkeys(wake.ended, True)}
            self._jobs = {**unsent, **self._jobs}
        self._ready |= dict.fromkeys(wake.ready)
        self._picked_up |= dict.fromkeys(wake.picked_up)
        self._due.update(wake.due)


class _PayloadBudget:
    """Counts the bytes used in one notification; the first item is always admitted."""

    def __init__(self) -> None:
        self._used_bytes = 0

    def take(self, items: Iterable[T], limit: int) -> list[T]:
        """Return the first of `items` that fit, at most `limit`."""
        fitting: list[T] = []
        for item in islice(items, limit):
            size = len(_encode(item)) + 1
            if self._used_bytes and self._used_bytes + size > MAX_PAYLOAD_BYTES:
                break
            self._used_bytes += size
            fitting.append(item)
        return fitting
