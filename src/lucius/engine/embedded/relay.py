"""Publishes outbox rows to a push bus, woken by the commits that write them."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

import structlog

from lucius.backoff import Backoff, KeyedBackoff
from lucius.core.model.decision import Applied
from lucius.core.model.inputs import HandedOver
from lucius.core.model.records import Instant, OutboxRow
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.errors import BusDown, LedgerAway, LedgerDown
from lucius.ports.outbox import Outbox, PendingQuery
from lucius.usecases.handover.publish import BusHandover
from lucius.usecases.handover.row_holds import HOLD_TTL_MS, RowHolds
from lucius.usecases.handover.shielded_tasks import ShieldedTasks
from lucius.usecases.handover.slow_start import Ramp
from lucius.usecases.notifier import Notifier

log = structlog.get_logger(__name__)

BATCH_ROWS = 100
GRACE_SECONDS = 10.0
MAX_PAGES = 100


class Relay:
    """Takes rows in batches and publishes up to `parallel` at a time; each that ends makes room for the next.

    With `shared`, other relays may work on the same ledger. `at_work_since` returns since when the outcome of a claim
    could always be reported to the ledger.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        engine: Engine,
        handover: BusHandover,
        holds: RowHolds,
        publisher: Publisher,
        notifier: Notifier,
        clock: Clock,
        retry_interval: float,
        publish_timeout: float,
        jitter: Callable[[], float] = random.random,
        shared: bool = False,
        parallel: int = 32,
        on_failure: Callable[[str], None] = lambda name: None,
        at_work_since: Callable[[], Instant] = lambda: 0,
    ) -> None:
        self._outbox = outbox
        self._engine = engine
        self._handover = handover
        self._holds = holds
        self._publisher = publisher
        self._notifier = notifier
        self._clock = clock
        self._retry_interval = retry_interval
        self._publish_timeout = publish_timeout
        self._shared = shared
        self._started_at = clock.now()
        self._parallel = parallel
        self._on_failure = on_failure
        self._at_work_since = at_work_since
        self._put_off = KeyedBackoff(clock, jitter)
        # At most publish_timeout: the next iteration also releases claims, before others count them as handed over.
        self._backoff = Backoff(retry_interval, publish_timeout, jitter)
        self._waiting: deque[OutboxRow] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._shielded = ShieldedTasks()
        self._stopping = False
        self.ramp = Ramp(BATCH_ROWS, jitter)
        self.ramp.outage()  # a backlog may have built up before this process started
        self._more = False
        self._down = False
        self._failure: Exception | None = None

    async def run_claims(self) -> None:
        await self.settle_claims()
        await asyncio.sleep(self._publish_timeout * (3 * self._notifier.poll_backoff() if self._shared else 1))

    async def settle_claims(self) -> None:
        """Count rows with abandoned claims as handed over: whether they were published is unknown."""
        for _ in range(MAX_PAGES):
            limit = BATCH_ROWS + len(self._put_off)  # rows in backoff must not fill the page
            rows = await self._outbox.pending(PendingQuery(limit=limit, now=self._clock.now(), claimed=True))
            if len(rows) < limit:
                self._put_off.keep({row.outbox_id for row in rows})
            oldest_alive = self._oldest_alive()
            dead = [row for row in rows if row.claimed_at is not None and row.claimed_at < oldest_alive]
            tried = [row for row in dead if not self._put_off.waits(row.outbox_id)]
            for row in tried:
                await self._settle(row)
            if len(rows) < limit or not tried:
                return

    async def _settle(self, row: OutboxRow) -> None:
        """Settle one row on its own: a job that can't be decided about must not block others."""
        report = HandedOver(row.step_id, row.attempt_no, row.lease_id)
        try:
            decision = await self._engine.apply(row.job_id, (report,), row.step_id)
        except LedgerAway:
            raise  # an outage of the store affects every row: the loop backs off as a whole
        except Exception:
            self._on_failure("claims")
            seconds = self._put_off.failed(row.outbox_id)
            log.exception("could not settle a claim, will try again", job_id=row.job_id, retry_in_seconds=seconds)
            return
        if isinstance(decision.reply, Applied):
            self._put_off.forget(row.outbox_id)
        else:  # settled by its owner, or another engine's: it may stay at the head of the query
            self._put_off.failed(row.outbox_id)

    def _oldest_alive(self) -> Instant:
        """Return the time before which claims count as abandoned.

        Their owner did not report within twice `publish_timeout` or, unless `shared`, died before this process started.
        After an outage every owner gets that time again: it may know that its row was never published.
        """
        dead_before = 0 if self._shared else self._started_at
        timed_out = self._clock.now() - round(self._publish_timeout * 2000)
        return max(dead_before, timed_out) if self._at_work_since() <= timed_out else dead_before

    async def run_once(self) -> None:
        """Start publishing what is ready, then wait for more."""
        self._notifier.relay.clear()
        await self._raise_failure()
        if self._down:
            await self._sit_out()
        elif not await self.start_ready():
            await self._wait_for_more()

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Let publishes finish for `grace` seconds. One cancelled then leaves its claim and counts as handed over."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace
        if self._shielded.tasks:
            await asyncio.wait(self._shielded.tasks, timeout=grace)
        await self._give_up_waiting()
        if self._running:
            await asyncio.wait(self._running, timeout=max(0.0, ends_at - loop.time()))
        left = {*self._running, *self._shielded.tasks}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            await self._shielded.run(self._give_up_waiting())
            raise failure

    async def _sit_out(self) -> None:
        """Back off until the bus may be back; commits do not end the pause. Rows stay pending and use up no attempt."""
        await self._shielded.run(self._give_up_waiting())
        while self._down:  # a publish under way may fail during the pause, which then starts again
            self._down = False
            await asyncio.sleep(self._backoff.pause())

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(self._retry_interval * self._notifier.poll_backoff()):
                await self._notifier.relay.wait()
        except TimeoutError:
            pass  # query anyway: a wake-up from another process may be lost

    async def start_ready(self) -> bool:
        """Start publishing ready rows; return whether there may be more to start right away."""
        if self._waiting or len(self._running) >= self._parallel:
            self._more = True
            return False
        window = self.ramp.window
        taken = await self._shielded.run(self._take(window))
        if self._stopping or self._down or self._failure is not None:
            return True  # changed during the take: `stop` or the next iteration puts the rows back
        self._start_waiting()
        self._more = taken >= window
        if not self._more:
            self.ramp.note_success()
            return False
        await asyncio.sleep(self.ramp.pause())
        if not self._down and self._failure is None:
            self.ramp.note_success()
        return True

    async def _take(self, limit: int) -> int:
        """Take up to `limit` rows; return how many there were."""
        try:
            await self._handover.release_claims()
            rows = await self._handover.take_rows(limit, HOLD_TTL_MS + round(self._publish_timeout * 1000))
        except LedgerDown:
            self.ramp.outage()
            raise
        self._waiting.extend(rows)
        return len(rows)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._parallel and not self._stopping:
            row = self._waiting.popleft()
            task = asyncio.create_task(self._push(row), name=f"lucius-publish-{row.outbox_id}")
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, done: asyncio.Task[None]) -> None:
        """Start the next row at once; wake the loop to handle an outage or a failure, or to take more rows."""
        self._running.discard(done)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self._failure = error
        if self._down or self._failure is not None:
            self._notifier.relay.set()
        else:
            self._start_waiting()
            if self._more and not self._waiting:
                self._notifier.relay.set()

    async def _push(self, row: OutboxRow) -> None:
        left = False
        try:
            left = await self._handover.publish(row, self._publisher, self._publish_timeout)
            if left:
                self._backoff.went_well()
        except BusDown as down:
            self._down = True
            self.ramp.outage()
            log.warning("the bus is unreachable, outbox rows stay pending", reason=str(down))
        except LedgerDown:
            self.ramp.outage()
            raise
        finally:
            if left:
                self._holds.let_go([row])
            else:
                await self._holds.put_back([row, *self._not_to_be_had(row.service)])

    def _not_to_be_had(self, service: str) -> list[OutboxRow]:
        """Remove and return the waiting rows of a service at its cap; the next iteration takes what it has room for."""
        if not self._handover.is_capped(service):
            return []
        rows = [row for row in self._waiting if row.service == service]
        self._waiting = deque(row for row in self._waiting if row.service != service)
        return rows

    async def _give_up_waiting(self) -> None:
        rows = list(self._waiting)
        self._waiting.clear()
        await self._holds.put_back(rows)
