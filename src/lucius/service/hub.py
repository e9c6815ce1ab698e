"""Wakes whoever waits for a commit: pulls, the relay, and those who watch a job. Nothing here polls."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from lucius.core.counters import UNACKED
from lucius.core.decision import Decision, JobView
from lucius.core.model import Instant, OutboxStatus
from lucius.core.protocol import OF_THE_ENGINE
from lucius.ports.clock import Clock
from lucius.ports.peers import ANY_LANE, NEAR_MS, Wake
from lucius.service.pulls import Pulls

LATE_MS = 10  # clocks differ by some milliseconds: whoever looks too early looks in vain

AnEvent = TypeVar("AnEvent", bound=asyncio.Event)


class End(asyncio.Event):
    """Set once a job has ended. With the job, if its end was made here and it need not be read."""

    view: JobView | None = None


class Hub:
    """Told of every durable decision, it wakes the waiters that it concerns."""

    def __init__(self, clock: Clock | None = None) -> None:
        """With a clock, whoever minds the deadlines is woken when one comes, and need not look all the time."""
        self._clock = clock
        self.pulls = Pulls()
        self._held: set[str] = set()
        self._pick_ups: dict[str, int] = {}
        self._watchers: dict[str, dict[asyncio.Event, None]] = {}  # in order, so that a simulation repeats itself
        self._enders: dict[str, dict[End, None]] = {}
        self.relay = asyncio.Event()
        self.due = asyncio.Event()
        self.protocols = asyncio.Event()
        self.relays = False
        self.observers: list[Callable[[Decision], None]] = []
        self.on_told: list[Callable[[Sequence[str]], None]] = []
        """Who is to hear of letters that workflows were told of elsewhere."""
        self.stretch: Callable[[], float] = lambda: 1.0
        """How many times rarer a look in case nobody woke us may be, as others look, too."""

    @property
    def closed(self) -> bool:
        return self.pulls.closed

    def committed(self, decision: Decision) -> None:
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING and row.next_attempt_at is None:
                self.pulls.wake_one(row.service, row.lane)
                self.relay.set()
        if decision.job.due_at is not None and not decision.job.engine:  # which minds its jobs' clocks itself
            self._note_due(decision.job.due_at, decision.job.updated_at)
        self._note_pick_ups(decision)
        for event in self._watchers.get(decision.job.job_id, ()):
            event.set()
        if not decision.job.live:
            for event in self._enders.get(decision.job.job_id, ()):
                event.set()
        for observe in self.observers:
            observe(decision)

    def ended(self, view: JobView) -> None:
        """All of a job that ended here."""
        for end in self._enders.get(view.job.job_id, ()):
            end.view = view
            end.set()

    def heard(self, wake: Wake) -> None:
        """Of what other processes made durable."""
        for service, lane in wake.ready:
            if lane == ANY_LANE:
                self.pulls.wake_all(service)
            else:
                self.pulls.wake_one(service, lane)
            self.relay.set()
        for service in wake.picked_up:
            self._note_pick_up(service)
        for due_at in wake.due:
            self._ring_at(due_at)
        if wake.protocols:
            self.protocols.set()
        if wake.told:
            for hear in self.on_told:
                hear(wake.told)
        for job_id in (*wake.changed, *wake.ended):
            for event in self._watchers.get(job_id, ()):
                event.set()
        for job_id in wake.ended:
            for event in self._enders.get(job_id, ()):
                event.set()

    def _note_due(self, due_at: Instant, now: Instant) -> None:
        if due_at <= now:
            self.due.set()
        elif self._clock is not None and due_at - now <= NEAR_MS:
            self._ring_at(due_at)

    def _ring_at(self, due_at: Instant) -> None:
        if self._clock is not None:
            delay = (max(0, due_at - self._clock.now()) + LATE_MS) / 1000
            asyncio.get_running_loop().call_later(delay, self.due.set)

    def awaits(self, service: str, lane: int) -> bool:
        """Whether a row like this would be taken here at once."""
        if self.relays and service not in OF_THE_ENGINE:
            return True
        return self.pulls.awaits(service, lane)

    def pick_ups(self, service: str) -> int:
        """Grows whenever one of the service's directives is no longer un-ACKed."""
        return self._pick_ups.get(service, 0)

    def hold(self, service: str, seen: int) -> None:
        """The service was at its cap: its rows are worth another look once one of its directives is picked up.

        `seen` is from before the attempt: the pick-up may have come in the very commit that refused it.
        """
        if self.pick_ups(service) != seen:
            self.pulls.wake_all(service)
            self.relay.set()
        else:
            self._held.add(service)

    def _note_pick_ups(self, decision: Decision) -> None:
        for counter, move in decision.counters.items():
            if move < 0:
                self.freed(counter)

    def freed(self, counter: str) -> None:
        """There may be room again where this counter was at its limit."""
        if counter.startswith(UNACKED):
            self._note_pick_up(counter.removeprefix(UNACKED))

    def _note_pick_up(self, service: str) -> None:
        self._pick_ups[service] = self.pick_ups(service) + 1
        if service in self._held:
            self._held.discard(service)
            self.pulls.wake_all(service)
            self.relay.set()

    @contextmanager
    def watch(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set by every change of the job."""
        yield from _registered(self._watchers, job_id, asyncio.Event())

    @contextmanager
    def watch_end(self, job_id: str) -> Iterator[End]:
        """An event that is set once the job has ended."""
        yield from _registered(self._enders, job_id, End())

    def close(self) -> None:
        """Let everyone who waits go, so that a server can stop."""
        self.pulls.close()
        for event in (*chain(*self._watchers.values()), *chain(*self._enders.values())):
            event.set()


def _registered(watchers: dict[str, dict[AnEvent, None]], job_id: str, event: AnEvent) -> Iterator[AnEvent]:
    events = watchers.setdefault(job_id, {})
    events[event] = None
    try:
        yield event
    finally:
        events.pop(event, None)
        if not events:
            watchers.pop(job_id, None)
