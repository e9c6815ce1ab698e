"""Runs outbound HTTP requests from the outbox: the calls of steps, and the webhooks of jobs.

While a host asks for a pause or has its maximum of concurrent requests, its rows wait; rows of other hosts overtake
them. One tenant's hosts never hold up the requests of another. Replicas share the outbox: none takes more rows than it
can soon start.
"""

import asyncio
from collections import deque
from typing import Protocol

import structlog

from lucius.core.model.records import Instant, Millis, OutboxRow
from lucius.engine.outbound.host_queue import HostQueue, RequestTarget, Waiting
from lucius.engine.outbound.tenant_slots import TenantSlots
from lucius.ports.clock import Clock
from lucius.ports.http import Caller, Closed, Slot
from lucius.usecases.handover.row_holds import RowHolds
from lucius.usecases.handover.shielded_tasks import ShieldedTasks
from lucius.usecases.handover.waiting_pulls import Pull
from lucius.usecases.notifier import Notifier

log = structlog.get_logger(__name__)

GRACE_SECONDS = 10.0
BATCH_ROWS = 256
SECONDS_PER_PASSED_ROW = 1e-5  # queries read past each of these rows: the more, the rarer


class OutboundWork(Protocol):
    """One kind of outbound request: where its rows go, and how one is made."""

    service: str
    hold_ms: Millis
    """For how long other replicas do not take its rows."""
    patience_ms: Millis
    """Rows that wait longer for their host are put back."""
    takes_postponed: bool
    """Whether rows with a retry time are taken once it has come."""
    runs_while_paused: bool
    """Whether `run` is called for a host that asked for a pause, to record it; otherwise the row waits here."""

    async def target(self, row: OutboxRow) -> RequestTarget | None:
        """Return where the row's request goes; None if it is no longer to be made."""

    async def run(self, one: Waiting, admitted: Slot | Closed) -> bool:
        """Make the request and record its outcome. Return False if the row must be left alone for a while."""


class OutboundRunner:
    """Takes rows of one kind of work, and starts each when its host and its tenant have room."""

    def __init__(
        self,
        work: OutboundWork,
        *,
        holds: RowHolds,
        caller: Caller,
        notifier: Notifier,
        clock: Clock,
        retry_interval: float,
        parallel: int = 64,
    ) -> None:
        self._work = work
        self._holds = holds
        self._caller = caller
        self._notifier = notifier
        self._clock = clock
        self._retry_interval = retry_interval
        self._slots = TenantSlots(parallel)
        self._queue = HostQueue(caller, self._slots, parallel, work.patience_ms, round(retry_interval * 1000))
        self._more = False
        self._aside: deque[tuple[Instant, OutboxRow]] = deque()
        self._running: set[asyncio.Task[bool]] = set()
        self._shielded = ShieldedTasks()
        self._wake = asyncio.Event()
        self._opens_at: Instant | None = None
        self._stopping = False
        self._failure: Exception | None = None

    async def run_once(self) -> None:
        """Start every request that may start, then wait for more. Raises what failed since the last call."""
        self._raise_failure()
        self._wake.clear()
        seen = self._notifier.pulls.arrivals(self._work.service)
        if not await self.start_due():
            await self._wait_for_more(seen)

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Let running requests finish for `grace` seconds. One cancelled after that may be made again later."""
        self._stopping = True
        if under_way := {*self._running, *self._shielded.tasks}:
            await asyncio.wait(under_way, timeout=grace)
        left = {*self._running, *self._shielded.tasks}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._give_back_all()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def start_due(self) -> bool:
        """Start requests that may start; return whether there may be more to take right away."""
        await self._bring_back()
        self._start_waiting()
        await self._holds.put_back(self._queue.let_go(self._clock.now(), self._slots.has_free()))
        limit = min(BATCH_ROWS, self._queue.room, self._queue.size - len(self._aside))
        rows = await self._shielded.run(self._take_rows(limit)) if limit > 0 else []
        self._more = len(rows) >= limit
        self._start_waiting()
        return limit > 0 and self._has_use_for_more()

    async def _take_rows(self, limit: int) -> list[OutboxRow]:
        passed = self._queue.passed
        await asyncio.sleep(len(passed) * SECONDS_PER_PASSED_ROW)
        taken_at, work = self._clock.now(), self._work
        rows = await self._holds.take(
            work.service, limit, hold_ms=work.hold_ms, passing=passed, postponed=work.takes_postponed
        )
        targets = await asyncio.gather(*map(work.target, rows), return_exceptions=True)
        for row, target in zip(rows, targets, strict=True):
            self._enqueue(row, taken_at, target)
        return rows

    def _has_use_for_more(self) -> bool:
        """Return whether to take more rows. With slots free, the rows waiting here are blocked; others may not be."""
        if not self._more or len(self._aside) >= self._queue.size:
            return False
        return self._queue.is_low or (self._slots.has_free() and self._queue.may_pass(self._clock.now()))

    def _enqueue(self, row: OutboxRow, taken_at: Instant, target: RequestTarget | BaseException | None) -> None:
        """Queue the row, or set it aside if it can't be read; that error is raised after the others are started."""
        if isinstance(target, RequestTarget):
            self._queue.put(Waiting(target, row, taken_at))
            return
        self._set_aside(row)
        if isinstance(target, Exception):
            self._fail(row, target)
            self._wake.set()

    def _fail(self, row: OutboxRow, error: Exception) -> None:
        """Let the next iteration raise the error, so that it is counted, and followed by a pause."""
        log.warning("outbound request set aside", service=row.service, job_id=row.job_id, reason=str(error))
        self._failure = error

    def _start_waiting(self) -> None:
        """Start requests from every queue in turn, as many as tenants and hosts may have now."""
        self._opens_at = None
        now = self._clock.now()

        def start(one: Waiting) -> bool:
            if self._queue.is_stale(one, now):
                return False
            admitted = self._caller.admit(one.host)
            if isinstance(admitted, Closed) and not (self._work.runs_while_paused and admitted.until is not None):
                self._note_opening(admitted.until)
                return False
            self._start(one, admitted)
            return True

        self._queue.start_waiting(start)

    def _note_opening(self, until: Instant | None) -> None:
        if until is not None:
            self._opens_at = until if self._opens_at is None else min(until, self._opens_at)

    def _start(self, one: Waiting, admitted: Slot | Closed) -> None:
        self._slots.take(one.row.tenant_id)
        task = asyncio.create_task(self._work.run(one, admitted), name=f"lucius-outbound-{one.row.outbox_id}")
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, one, admitted))

    def _ended(self, done: asyncio.Task[bool], one: Waiting, admitted: Slot | Closed) -> None:
        """Start the next request at once; wake the loop to take rows, raise a failure or shorten its wait."""
        if isinstance(admitted, Slot):
            admitted.release()
        self._slots.release(one.row.tenant_id)
        self._running.discard(done)
        self._settle(done, one.row)
        opened_at = self._opens_at
        if not self._stopping:
            self._start_waiting()
        more = self._has_use_for_more() or self._queue.is_short_of(one.key)
        if more or self._failure is not None or self._opens_at != opened_at:
            self._wake.set()

    def _settle(self, done: asyncio.Task[bool], row: OutboxRow) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None and done.result():
            self._holds.let_go([row])
            return
        self._set_aside(row)
        if isinstance(error, Exception):
            self._fail(row, error)

    def _set_aside(self, row: OutboxRow) -> None:
        """Keep the row back for a retry interval: at once, nothing would have changed."""
        self._aside.append((self._clock.now() + round(self._retry_interval * 1000), row))

    async def _bring_back(self) -> None:
        now, rows = self._clock.now(), list[OutboxRow]()
        while self._aside and self._aside[0][0] <= now:
            rows.append(self._aside.popleft()[1])
        await self._holds.put_back(rows)

    async def _give_back_all(self) -> None:
        """Put all waiting rows back, for other replicas to take at once."""
        rows = self._queue.clear() + [row for _, row in self._aside]
        self._aside.clear()
        await self._holds.put_back(rows)

    async def _wait_for_more(self, seen: int) -> None:
        """Wait until a row arrives, a host opens, the loop is woken or the retry interval has passed."""
        seconds = self._retry_interval * self._notifier.poll_backoff()
        if self._opens_at is not None:
            seconds = min(seconds, max(0.0, (self._opens_at - self._clock.now()) / 1000))
        wake_task = asyncio.ensure_future(self._wake.wait())
        try:
            woken = await self._notifier.pulls.wait(self._work.service, Pull(gone=wake_task), seconds, seen)
            if not woken and self._notifier.closed:
                await wake_task
        finally:
            wake_task.cancel()
