"""Queues rows that wait for their hosts: a few times as many as can run, so that other replicas get theirs.

A host that admits no call, or a tenant that uses its share of the slots, must not fill the queue. If everything here
waits for such hosts and tenants while slots are free, half of the rows are passed over, the newest of each queue: they
are put back, and their ids are remembered so that the next query skips them. They are taken again when their queue may
start more, or after a while. If there are more of them than are remembered, rows of the same tenant for other hosts
wait behind them; other tenants get their turns all the same.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from lucius.core.model.records import Instant, Millis, OutboxRow
from lucius.engine.outbound.tenant_slots import TenantSlots
from lucius.ports.http import Caller, Slot

QUEUE_FACTOR = 4
MAX_PASSED_ROWS = 2_000


class HostQueueKey(NamedTuple):
    """Key of a queue. Each tenant has its own, even for a host that several tenants call."""

    tenant_id: str
    host: str


class RequestTarget(NamedTuple):
    """Where a row's request goes. Requests to the same `host` share its limits."""

    host: str
    url: str


class Waiting(Struct, frozen=True):
    target: RequestTarget
    row: OutboxRow
    since: Instant

    @property
    def host(self) -> str:
        return self.target.host

    @property
    def key(self) -> HostQueueKey:
        return HostQueueKey(self.row.tenant_id, self.host)


class _Passed(Struct, frozen=True):
    key: HostQueueKey
    since: Instant


class HostQueue:
    """Holds the waiting rows by tenant and host.

    Rows that wait longer than `patience_ms` are put back. If more rows are passed over than can be remembered, rows are
    passed over at most once per `pause_ms`.
    """

    def __init__(
        self, caller: Caller, slots: TenantSlots, parallel: int, patience_ms: Millis, pause_ms: Millis
    ) -> None:
        self.size = QUEUE_FACTOR * parallel
        self._queues: dict[HostQueueKey, deque[Waiting]] = {}
        self._passed: dict[str, _Passed] = {}
        self._passed_keys: Counter[HostQueueKey] = Counter()
        self._passed_at: Instant = 0
        self._caller = caller
        self._slots = slots
        self._patience_ms = patience_ms
        self._pause_ms = pause_ms

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def room(self) -> int:
        return self.size - len(self)

    @property
    def is_low(self) -> bool:
        return 2 * len(self) <= self.size

    @property
    def passed(self) -> frozenset[str]:
        """Return the ids of the rows that the next query has to skip."""
        return frozenset(self._passed)

    def put(self, one: Waiting) -> None:
        self._queues.setdefault(one.key, deque()).append(one)

    def start_waiting(self, start: Callable[[Waiting], bool]) -> None:
        """Offer rows to `start` while their tenants have room; it returns False if the host can't take the row now.

        A queue of which a row was started goes behind the others, as they may wait for the same host or slot.
        """
        for key in list(self._queues):
            if not self._slots.has_free():
                return
            queue = self._queues[key]
            before = len(queue)
            while queue and self._slots.has_room_for(key.tenant_id) and start(queue[0]):
                queue.popleft()
            if len(queue) < before:
                del self._queues[key]
                if queue:
                    self._queues[key] = queue

    def is_stale(self, one: Waiting | _Passed, now: Instant) -> bool:
        return one.since + self._patience_ms <= now

    def is_short_of(self, key: HostQueueKey) -> bool:
        """Return whether the queue has no rows left here, but some that were passed over."""
        return key in self._passed_keys and key not in self._queues

    def may_pass(self, now: Instant) -> bool:
        """Return whether rows may be passed over now. Those beyond `MAX_PASSED_ROWS` come again, so not at once."""
        return len(self._passed) < MAX_PASSED_ROWS or self._passed_at + self._pause_ms <= now

    def let_go(self, now: Instant, has_free_slots: bool) -> list[OutboxRow]:
        """Remove and return rows to put back: they waited too long, or keep others from being taken."""
        gone = [one for one in self._all() if self.is_stale(one, now)]
        if gone:
            self._keep(one for one in self._all() if not self.is_stale(one, now))
        self._recall(now)
        if self.room <= 0 and has_free_slots and self.may_pass(now):
            gone += self._pass_over(now)
        return [one.row for one in gone]

    def clear(self) -> list[OutboxRow]:
        rows = [one.row for one in self._all()]
        self._queues.clear()
        self._remember({})
        return rows

    def _all(self) -> list[Waiting]:
        return [one for queue in self._queues.values() for one in queue]

    def _keep(self, waiting: Iterable[Waiting]) -> None:
        self._queues = {}
        for one in waiting:
            self.put(one)

    def _pass_over(self, now: Instant) -> list[Waiting]:
        ranked = [
            (rank, one)
            for queue in self._queues.values()
            for rank, one in enumerate(sorted(queue, key=lambda one: one.row.created_at))
        ]
        ranked.sort(key=lambda entry: entry[0])
        passing = [one for _, one in ranked[self.size // 2 :]]
        self._keep(one for _, one in ranked[: self.size // 2])
        known = self._passed | {one.row.outbox_id: _Passed(one.key, now) for one in passing}
        self._remember(dict(list(known.items())[-MAX_PASSED_ROWS:]))
        self._passed_at = now
        return passing

    def _recall(self, now: Instant) -> None:
        """Stop skipping stale rows, and the oldest rows of each queue that is empty here and may start one."""
        left = {key: self.size // 2 for key in self._passed_keys if key not in self._queues and self._is_open(key)}
        kept: dict[str, _Passed] = {}
        for outbox_id, one in self._passed.items():
            if left.get(one.key, 0):
                left[one.key] -= 1
            elif not self.is_stale(one, now):
                kept[outbox_id] = one
        self._remember(kept)

    def _remember(self, passed: dict[str, _Passed]) -> None:
        self._passed = passed
        self._passed_keys = Counter(one.key for one in passed.values())

    def _is_open(self, key: HostQueueKey) -> bool:
        if not self._slots.has_room_for(key.tenant_id):
            return False
        admitted = self._caller.admit(key.host)
        if isinstance(admitted, Slot):
            admitted.release()
        return isinstance(admitted, Slot)
