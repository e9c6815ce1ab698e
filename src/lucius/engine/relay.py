"""From the outbox to a push bus, woken by the commit that wrote the row."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

import structlog

from lucius.core.decision import Applied
from lucius.core.inputs import HandedOver
from lucius.core.model import Instant, OutboxRow
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.errors import BusDown, LedgerAway, LedgerDown
from lucius.ports.ledger import Outbox, PendingQuery
from lucius.service.backoff import Backoff, PutOff
from lucius.service.dispatch import HOLD_MS, Dispatcher
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.ramp import Ramp
from lucius.service.uncut import Uncut

log = structlog.get_logger(__name__)

BATCH = 100
GRACE = 10.0
MOST_PAGES = 100


class Relay:
    """Rows are taken a batch at a time and published a few at once; whichever ends makes room for the next.

    On a `shared` ledger there may be others like this one.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        jobs: Jobs,
        dispatcher: Dispatcher,
        publisher: Publisher,
        hub: Hub,
        clock: Clock,
        retry_interval: float,
        publish_timeout: float,
        jitter: Callable[[], float] = random.random,
        shared: bool = False,
        parallel: int = 32,
        on_failure: Callable[[str], None] = lambda name: None,
        at_work_since: Callable[[], Instant] = lambda: 0,
    ) -> None:
        """`at_work_since` says since when the ledger could be told of what became of a claim."""
        self._outbox = outbox
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._hub = hub
        self._clock = clock
        self._retry_interval = retry_interval
        self._publish_timeout = publish_timeout
        self._shared = shared
        self._started_at = clock.now()
        self._parallel = parallel
        self._on_failure = on_failure
        self._at_work_since = at_work_since
        self._put_off = PutOff(clock, jitter)
        # No longer than others leave us to give back what we claimed: that waits for the next turn, too.
        self._backoff = Backoff(retry_interval, publish_timeout, jitter)
        self._waiting: deque[OutboxRow] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._uncut = Uncut()
        self._stopping = False
        self._ramp = Ramp(BATCH, jitter)
        self._ramp.outage()  # we were away ourselves: what is ready may have waited for us
        self._more = False
        self._down = False
        self._failure: Exception | None = None

    async def claims_turn(self) -> None:
        await self.settle_claims()
        await asyncio.sleep(self._publish_timeout * (3 * self._hub.stretch() if self._shared else 1))

    async def settle_claims(self) -> None:
        """Rows that nobody publishes any more: their outcome is unknown, so they count as handed over."""
        for _ in range(MOST_PAGES):
            limit = BATCH + len(self._put_off)  # so that what can't be settled just now hides nothing behind it
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
        """By itself: one job that can't be decided must not keep others waiting."""
        report = HandedOver(row.step_id, row.attempt_no, row.lease_id)
        try:
            decision = await self._jobs.apply(row.job_id, (report,), row.step_id)
        except LedgerAway:
            raise  # the store's trouble is everybody's: the loop backs off as a whole
        except Exception:
            self._on_failure("claims")
            seconds = self._put_off.failed(row.outbox_id)
            log.exception("could not settle a claim, will try again", job_id=row.job_id, retry_in_seconds=seconds)
            return
        if isinstance(decision.reply, Applied):
            self._put_off.forget(row.outbox_id)
        else:  # its owner was faster, or it is another engine's: it may go on to stand before others
            self._put_off.failed(row.outbox_id)

    def _oldest_alive(self) -> Instant:
        """Whoever claimed before that could not report in time or, where nobody else relays, died before we started.

        After an outage everybody has his time anew: he may know that what he claimed has not left us.
        """
        dead_before = 0 if self._shared else self._started_at
        timed_out = self._clock.now() - round(self._publish_timeout * 2000)
        return max(dead_before, timed_out) if self._at_work_since() <= timed_out else dead_before

    async def turn(self) -> None:
        """Start what is ready, then wait for more."""
        self._hub.relay.clear()
        await self._raise_failure()
        if self._down:
            await self._sit_out()
        elif not await self.start_ready():
            await self._wait_for_more()

    async def stop(self, grace: float = GRACE) -> None:
        """Let publishes end, for a while. One that is cut off leaves its claim behind, which counts as handed over."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace
        if self._uncut.tasks:
            await asyncio.wait(self._uncut.tasks, timeout=grace)
        await self._give_up_waiting()
        if self._running:
            await asyncio.wait(self._running, timeout=max(0.0, ends_at - loop.time()))
        left = {*self._running, *self._uncut.tasks}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            await self._uncut.run(self._give_up_waiting())
            raise failure

    async def _sit_out(self) -> None:
        """No commit makes a bus come back. What it did not take waits, with nothing burned."""
        await self._uncut.run(self._give_up_waiting())
        while self._down:  # what was under way may meet it later: no row is tried again sooner than that
            self._down = False
            await asyncio.sleep(self._backoff.pause())

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(self._retry_interval * self._hub.stretch()):
                await self._hub.relay.wait()
        except TimeoutError:
            pass  # look again all the same: a wake-up from another process may not have reached us

    async def start_ready(self) -> bool:
        """Whether there may be more to start right away."""
        if self._waiting or len(self._running) >= self._parallel:
            self._more = True
            return False
        window = self._ramp.window
        taken = await self._uncut.run(self._take(window))
        if self._stopping or self._down or self._failure is not None:
            return True  # it happened meanwhile: whoever stops us, or the next turn, gives them back
        self._start_waiting()
        self._more = taken >= window
        if not self._more:
            self._ramp.went_well()
            return False
        await asyncio.sleep(self._ramp.pause())
        if not self._down and self._failure is None:
            self._ramp.went_well()
        return True

    async def _take(self, limit: int) -> int:
        """How many more wait now."""
        try:
            await self._dispatcher.release_claims()
            rows = await self._dispatcher.take(None, limit, hold_ms=HOLD_MS + round(self._publish_timeout * 1000))
        except LedgerDown:
            self._ramp.outage()
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
        """Its place goes to the next one at once; the turn is woken for what it alone can do."""
        self._running.discard(done)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self._failure = error
        if self._down or self._failure is not None:
            self._hub.relay.set()
        else:
            self._start_waiting()
            if self._more and not self._waiting:
                self._hub.relay.set()

    async def _push(self, row: OutboxRow) -> None:
        left = False
        try:
            left = await self._dispatcher.publish(row, self._publisher, self._publish_timeout)
            if left:
                self._backoff.went_well()
        except BusDown as down:
            self._down = True
            self._ramp.outage()
            log.warning("the bus is down, the outbox waits", reason=str(down))
        except LedgerDown:
            self._ramp.outage()
            raise
        finally:
            if left:
                self._dispatcher.let_go([row])
            else:
                await self._dispatcher.put_back([row, *self._not_to_be_had(row.service)])

    def _not_to_be_had(self, service: str) -> list[OutboxRow]:
        """What waits here for a service that turns out to be at its cap: the next turn takes what there is room for."""
        if not self._dispatcher.is_capped(service):
            return []
        rows = [row for row in self._waiting if row.service == service]
        self._waiting = deque(row for row in self._waiting if row.service != service)
        return rows

    async def _give_up_waiting(self) -> None:
        rows = list(self._waiting)
        self._waiting.clear()
        await self._dispatcher.put_back(rows)
