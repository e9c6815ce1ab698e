"""Rows that wait here for their hosts: a few times as many as can run, so that other replicas get theirs.

A host that lets nobody in must not fill the window. When everything here waits for such hosts while there are places to
run in, half of it is passed over, of each host the newest: given back, and remembered by name so that the next look
goes past it. It is looked at again when its host has use for more, or after a while. Should there be more of it than
is remembered, what that tenant wants of other hosts waits behind it; other tenants have their turns all the same.
"""

from collections import Counter, deque
from collections.abc import Iterable

from msgspec import Struct

from lucius.core.model import Instant, Millis, OutboxRow
from lucius.ports.calls import Caller, Slot

TIMES = 4
MOST_PASSED = 2_000


class Waiting(Struct, frozen=True):
    host: str
    row: OutboxRow
    since: Instant
    url: str = ""


class _Passed(Struct, frozen=True):
    host: str
    since: Instant


class Window:
    """What waits longer than `patience_ms` is to be taken anew. `pause_ms` lies between two looks at the same."""

    def __init__(self, caller: Caller, parallel: int, patience_ms: Millis, pause_ms: Millis) -> None:
        self.size = TIMES * parallel
        self.queues: dict[str, deque[Waiting]] = {}
        self._passed: dict[str, _Passed] = {}
        self._passed_hosts: Counter[str] = Counter()
        self._passed_at: Instant = 0
        self._caller = caller
        self._patience_ms = patience_ms
        self._pause_ms = pause_ms

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def room(self) -> int:
        return self.size - len(self)

    @property
    def is_low(self) -> bool:
        return 2 * len(self) <= self.size

    @property
    def passed(self) -> frozenset[str]:
        """Rows that the next look is to go past."""
        return frozenset(self._passed)

    def put(self, one: Waiting) -> None:
        self.queues.setdefault(one.host, deque()).append(one)

    def is_stale(self, one: Waiting | _Passed, now: Instant) -> bool:
        return one.since + self._patience_ms <= now

    def is_short_of(self, host: str) -> bool:
        """Whether nothing of the host is left here, and there is more of it elsewhere."""
        return host in self._passed_hosts and host not in self.queues

    def may_pass(self, now: Instant) -> bool:
        """Past all that can be remembered the same rows come again: not at once, then."""
        return len(self._passed) < MOST_PASSED or self._passed_at + self._pause_ms <= now

    def let_go(self, now: Instant, places_free: bool) -> list[OutboxRow]:
        """Rows that are ours no longer: they waited too long, or keep others from being seen."""
        gone = [one for one in self._all() if self.is_stale(one, now)]
        if gone:
            self._keep(one for one in self._all() if not self.is_stale(one, now))
        self._recall(now)
        if self.room <= 0 and places_free and self.may_pass(now):
            gone += self._pass_over(now)
        return [one.row for one in gone]

    def clear(self) -> list[OutboxRow]:
        rows = [one.row for one in self._all()]
        self.queues.clear()
        self._remember({})
        return rows

    def _all(self) -> list[Waiting]:
        return [one for queue in self.queues.values() for one in queue]

    def _keep(self, waiting: Iterable[Waiting]) -> None:
        self.queues = {}
        for one in waiting:
            self.put(one)

    def _pass_over(self, now: Instant) -> list[Waiting]:
        ranked = [
            (rank, one)
            for queue in self.queues.values()
            for rank, one in enumerate(sorted(queue, key=lambda one: one.row.created_at))
        ]
        ranked.sort(key=lambda entry: entry[0])
        passing = [one for _, one in ranked[self.size // 2 :]]
        self._keep(one for _, one in ranked[: self.size // 2])
        known = self._passed | {one.row.outbox_id: _Passed(one.host, now) for one in passing}
        self._remember(dict(list(known.items())[-MOST_PASSED:]))
        self._passed_at = now
        return passing

    def _recall(self, now: Instant) -> None:
        """A host of which nothing is left here gets its oldest back as soon as it lets somebody in."""
        left = {host: self.size // 2 for host in self._passed_hosts if host not in self.queues and self._is_open(host)}
        kept: dict[str, _Passed] = {}
        for outbox_id, one in self._passed.items():
            if left.get(one.host, 0):
                left[one.host] -= 1
            elif not self.is_stale(one, now):
                kept[outbox_id] = one
        self._remember(kept)

    def _remember(self, passed: dict[str, _Passed]) -> None:
        self._passed = passed
        self._passed_hosts = Counter(one.host for one in passed.values())

    def _is_open(self, host: str) -> bool:
        admitted = self._caller.admit(host)
        if isinstance(admitted, Slot):
            admitted.release()
        return isinstance(admitted, Slot)
