"""Wakes whoever waits for a commit: pulls, the relay, and those who watch a job. Nothing here polls."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lucius.core.decision import Decision
from lucius.core.model import OutboxStatus

UNACKED = "unacked/"


class Hub:
    """Told of every durable decision, it wakes the waiters that it concerns."""

    def __init__(self) -> None:
        self._pulls: dict[str, deque[asyncio.Future[None]]] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._enders: dict[str, set[asyncio.Event]] = {}
        self.relay = asyncio.Event()
        self.closed = False
        self.closed = False
        self.observers: list[Callable[[Decision], None]] = []

    def committed(self, decision: Decision) -> None:
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING and row.next_attempt_at is None:
                self._wake_pull(row.service)
                self.relay.set()
        for counter, move in decision.counters.items():
            if move < 0 and counter.startswith(UNACKED):
                self._wake_pull(counter.removeprefix(UNACKED))
                self.relay.set()
        for event in self._watchers.get(decision.job.job_id, ()):
            event.set()
        if not decision.job.live:
            for event in self._enders.get(decision.job.job_id, ()):
                event.set()
        for observe in self.observers:
            observe(decision)

    def _wake_pull(self, service: str) -> None:
        """One new row needs one pull: waking all of them would make each look in vain."""
        waiting = self._pulls.get(service)
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    async def wait_for_row(self, service: str, seconds: float) -> bool:
        """True when a row of the service may have become ready, False when the time is over or we are closed."""
        if self.closed:
            return False
        future = asyncio.get_running_loop().create_future()
        waiting = self._pulls.setdefault(service, deque())
        waiting.append(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            if future in waiting:
                waiting.remove(future)
        return not self.closed

    def wake_next(self, service: str) -> None:
        """Pass a wake-up on that this pull could not use up."""
        self._wake_pull(service)

    @contextmanager
    def watch(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set by every change of the job."""
        yield from _registered(self._watchers, job_id)

    @contextmanager
    def watch_end(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set once the job has ended."""
        yield from _registered(self._enders, job_id)

    def close(self) -> None:
        """Let everyone who waits go, so that a server can stop."""
        self.closed = True
        self.closed = True
        for waiting in self._pulls.values():
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        for watchers in (*self._watchers.values(), *self._enders.values()):
            for event in watchers:
                event.set()


def _registered(watchers: dict[str, set[asyncio.Event]], job_id: str) -> Iterator[asyncio.Event]:
    event = asyncio.Event()
    events = watchers.setdefault(job_id, set())
    events.add(event)
    try:
        yield event
    finally:
        events.discard(event)
        if not events:
            watchers.pop(job_id, None)
