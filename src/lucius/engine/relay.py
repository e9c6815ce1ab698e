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
from lucius.ports.errors import BusDown, LedgerDown
from lucius.ports.ledger import Outbox, PendingQuery
from lucius.service.dispatch import HOLD_MS, Dispatcher
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.ramp import Ramp

log = structlog.get_logger(__name__)

BATCH = 100
GRACE = 10.0


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
    ) -> None:
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
        self._waiting: deque[OutboxRow] = deque()
        self._running: set[asyncio.Task[None]] = set()
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
        while True:
            rows = await self._outbox.pending(PendingQuery(limit=BATCH, now=self._clock.now(), claimed=True))
            oldest_alive = self._oldest_alive()
            settled = 0
            for row in rows:
                if row.claimed_at is None or row.claimed_at >= oldest_alive:
                    continue
                report = HandedOver(row.step_id, row.attempt_no, row.lease_id)
                decision = await self._jobs.apply(row.job_id, (report,), row.step_id)
                settled += isinstance(decision.reply, Applied)
            if not settled:
                return

    def _oldest_alive(self) -> Instant:
        """Whoever claimed before that could not report in time or, where nobody else relays, died before we started."""
        timed_out = self._clock.now() - round(self._publish_timeout * 2000)
        return timed_out if self._shared else max(self._started_at, timed_out)

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
        await self._give_up_waiting()
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            await self._give_up_waiting()
            raise failure

    async def _sit_out(self) -> None:
        """No commit makes a bus come back. What it did not take waits, with nothing burned."""
        await self._give_up_waiting()
        while self._down:  # what was under way may meet it later: no row is tried again sooner than that
            self._down = False
            await asyncio.sleep(self._retry_interval)

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
        rows = await self._take(window)
        self._waiting.extend(rows)
        if self._down or self._failure is not None:
            return True  # it happened meanwhile: the next turn gives them back
        self._start_waiting()
        self._more = len(rows) >= window
        if not self._more:
            self._ramp.went_well()
            return False
        await asyncio.sleep(self._ramp.pause())
        if not self._down and self._failure is None:
            self._ramp.went_well()
        return True

    async def _take(self, limit: int) -> list[OutboxRow]:
        try:
            await self._dispatcher.release_claims()
            return await self._dispatcher.take(None, limit, hold_ms=HOLD_MS + round(self._publish_timeout * 1000))
        except LedgerDown:
            self._ramp.outage()
            raise

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._parallel:
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
