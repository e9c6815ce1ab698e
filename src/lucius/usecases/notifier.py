"""Wakes waiters when a commit concerns them: pulls, the relay, and watchers of a job. Nothing here polls."""

import asyncio
from collections.abc import Callable, Iterator, KeysView, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from lucius.core.model.counters import UNACKED, unacked_counter, unacked_service
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Instant, OutboxRow
from lucius.core.model.statuses import OutboxStatus
from lucius.core.protocol.definition import ENGINE_SERVICES
from lucius.ports.clock import Clock
from lucius.ports.peers import ANY_LANE, NEAR_DEADLINE_MS, Wake
from lucius.usecases.handover.waiting_pulls import WaitingPulls

LATE_MS = 10  # clocks differ by some milliseconds, and a sweep that comes too early finds nothing due

AnEvent = TypeVar("AnEvent", bound=asyncio.Event)


class JobEndEvent(asyncio.Event):
    """Set once a job has ended; carries the job if it ended in this process, which saves reading it."""

    view: JobSnapshot | None = None


class Notifier:
    """Wakes the waiters that a committed decision concerns."""

    def __init__(self, clock: Clock | None = None) -> None:
        """With a clock, `due` is set when an announced deadline passes, so that the sweeper can poll less often."""
        self._clock = clock
        self.pulls = WaitingPulls()
        self._held: set[str] = set()
        self._pick_ups: dict[str, int] = {}
        self._watchers: dict[str, dict[asyncio.Event, None]] = {}  # ordered, so that simulations are reproducible
        self._end_watchers: dict[str, dict[JobEndEvent, None]] = {}
        self.relay = asyncio.Event()
        self.due = asyncio.Event()
        self.protocols = asyncio.Event()
        self.relays = False
        self.observers: list[Callable[[Decision], None]] = []
        self.on_inbox_ids: list[Callable[[Sequence[str]], None]] = []
        """Called with the messages that other processes announced for workflows."""
        self.poll_backoff: Callable[[], float] = lambda: 1.0
        """Returns the factor by which fallback polling may slow down, as other replicas poll, too."""

    @property
    def closed(self) -> bool:
        return self.pulls.closed

    @property
    def watched_jobs(self) -> KeysView[str]:
        """Ids of the jobs whose changes are waited for."""
        return self._watchers.keys()

    @property
    def awaited_jobs(self) -> KeysView[str]:
        """Ids of the jobs whose end is waited for."""
        return self._end_watchers.keys()

    def committed(self, decision: Decision) -> None:
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING and row.next_attempt_at is None:
                self.pulls.wake_one(row.service, row.lane, row.tenant_id)
                self.relay.set()
        if decision.job.due_at is not None and decision.job.is_ledger_driven:
            self._note_due(decision.job.due_at, decision.job.updated_at)
        self._note_pick_ups(decision)
        for event in self._watchers.get(decision.job.job_id, ()):
            event.set()
        if not decision.job.live:
            for event in self._end_watchers.get(decision.job.job_id, ()):
                event.set()
        for observe in self.observers:
            observe(decision)

    def ended(self, view: JobSnapshot) -> None:
        """Wake the waiters for a job's end with the whole job, which ended in this process."""
        for end in self._end_watchers.get(view.job.job_id, ()):
            end.view = view
            end.set()

    def apply_wake(self, wake: Wake) -> None:
        """Wake the waiters that commits of other processes concern."""
        for service, lane in wake.ready:
            if lane == ANY_LANE:
                self.pulls.wake_all(service)
            else:
                self.pulls.wake_one(service, lane)
                if unacked_counter(service) in self._held:  # the pull just woken may find no room for the row
                    self.pulls.wake_all(service, lambda pull: pull.is_bound)
            self.relay.set()
        for picked_up in wake.picked_up:
            self._note_pick_up(UNACKED + picked_up)
        for due_at in wake.due:
            self._set_due_at(due_at)
        if wake.protocols:
            self.protocols.set()
        if wake.inbox_ids:
            for callback in self.on_inbox_ids:
                callback(wake.inbox_ids)
        for job_id in (*wake.changed, *wake.ended):
            for event in self._watchers.get(job_id, ()):
                event.set()
        for job_id in wake.ended:
            for event in self._end_watchers.get(job_id, ()):
                event.set()

    def _note_due(self, due_at: Instant, now: Instant) -> None:
        if due_at <= now:
            self.due.set()
        elif self._clock is not None and due_at - now <= NEAR_DEADLINE_MS:
            self._set_due_at(due_at)

    def _set_due_at(self, due_at: Instant) -> None:
        if self._clock is not None:
            delay = (max(0, due_at - self._clock.now()) + LATE_MS) / 1000
            asyncio.get_running_loop().call_later(delay, self.due.set)

    def awaits(self, row: OutboxRow) -> bool:
        """Return True if this process would hand over the row at once."""
        if self.relays and row.service not in ENGINE_SERVICES:
            return True
        return any(
            self.pulls.awaits(row.service, row.lane, row.tenant_id, is_bound=is_bound)
            for is_bound in (False, True)
            if not self._held or unacked_counter(row.service, row.tenant_id if is_bound else None) not in self._held
        )

    def pick_ups(self, counter: str) -> int:
        """Return a number that grows whenever a directive is no longer un-ACKed, by the counter of such directives."""
        return self._pick_ups.get(counter, 0)

    def hold(self, counter: str, seen: int) -> None:
        """Note that the counter is at its cap: once one of its directives is picked up, rows are tried again.

        `seen` is `pick_ups` from before the refused attempt, so that a pick-up during the attempt is not missed. If the
        counter is the shared one of a service, wake pulls with tenants: they may have room for the refused row.
        """
        if self.pick_ups(counter) != seen:
            self._wake_pulls(counter)
        elif counter not in self._held:
            self._held.add(counter)
            service = unacked_service(counter)
            if counter == unacked_counter(service):
                self.pulls.wake_all(service, lambda pull: pull.is_bound)

    def is_held(self, counter: str) -> bool:
        """Return True if rows that this counter counts wait until one of its directives is picked up."""
        return counter in self._held

    def _note_pick_ups(self, decision: Decision) -> None:
        for counter, move in decision.counters.items():
            if move < 0:
                self.freed(counter)

    def freed(self, counter: str) -> None:
        """Note that a counter may be below its limit again."""
        if counter.startswith(UNACKED):
            self._note_pick_up(counter)

    def _note_pick_up(self, counter: str) -> None:
        self._pick_ups[counter] = self.pick_ups(counter) + 1
        if counter in self._held:
            self._held.discard(counter)
            self._wake_pulls(counter)

    def _wake_pulls(self, counter: str) -> None:
        """Wake the pulls whose directives this counter counts, and the relay."""
        service = unacked_service(counter)
        is_bound = counter != unacked_counter(service)
        self.pulls.wake_all(service, lambda pull: pull.is_bound is is_bound)
        self.relay.set()

    @contextmanager
    def watch(self, job_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set by every change of the job."""
        yield from _registered(self._watchers, job_id, asyncio.Event())

    @contextmanager
    def watch_end(self, job_id: str) -> Iterator[JobEndEvent]:
        """Yield an event that is set once the job has ended."""
        yield from _registered(self._end_watchers, job_id, JobEndEvent())

    def close(self) -> None:
        """Release all waiters, so that the server can stop."""
        self.pulls.close()
        for event in (*chain(*self._watchers.values()), *chain(*self._end_watchers.values())):
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
