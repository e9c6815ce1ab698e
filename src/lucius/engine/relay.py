"""From the outbox to a push bus, woken by the commit that wrote the row."""

import asyncio

import structlog

from lucius.core.decision import Applied
from lucius.core.inputs import HandedOver
from lucius.core.model import OutboxRow
from lucius.core.protocol import OF_THE_ENGINE
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.errors import BusDown
from lucius.ports.ledger import Outbox, PendingQuery, Reader
from lucius.service.dispatch import Dispatcher
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs

log = structlog.get_logger(__name__)

BATCH = 100


class Relay:
    def __init__(
        self,
        *,
        outbox: Outbox,
        reader: Reader,
        jobs: Jobs,
        dispatcher: Dispatcher,
        publisher: Publisher,
        hub: Hub,
        clock: Clock,
        retry_interval: float,
        publish_timeout: float,
        parallel: int = 32,
    ) -> None:
        self._outbox = outbox
        self._reader = reader
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._hub = hub
        self._clock = clock
        self._retry_interval = retry_interval
        self._publish_timeout = publish_timeout
        self._started_at = clock.now()
        self._slots = asyncio.Semaphore(parallel)
        self._down = False

    async def claims_turn(self) -> None:
        await self.settle_claims()
        await asyncio.sleep(self._publish_timeout)

    async def settle_claims(self) -> None:
        """Rows that nobody publishes any more: their outcome is unknown, so they count as handed over.

        Whoever claimed them died before we started, or could not report in time: a publish that lives is younger.
        """
        while True:
            now = self._clock.now()
            rows = await self._outbox.pending(PendingQuery(limit=BATCH, now=now, claimed=True))
            oldest_alive = max(self._started_at, now - round(self._publish_timeout * 2000))
            settled = 0
            for row in rows:
                if row.claimed_at is None or row.claimed_at >= oldest_alive:
                    continue
                report = HandedOver(row.step_id, row.attempt_no, row.lease_id)
                decision = await self._jobs.apply(row.job_id, (report,), row.step_id)
                settled += isinstance(decision.reply, Applied)
            if not settled:
                return

    async def turn(self) -> None:
        """Push everything that is ready, then wait for more."""
        self._hub.relay.clear()
        pushed = await self.push_ready()
        if self._down:
            await asyncio.sleep(self._retry_interval)  # no commit makes a bus come back
        elif not pushed:
            await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(self._retry_interval):
                await self._hub.relay.wait()
        except TimeoutError:
            pass  # look again all the same: a wake-up from another process never reaches us

    async def push_ready(self) -> int:
        """How many rows left us. A bus that is down ends the turn; what it did not take waits, with nothing burned."""
        self._down = False
        rows = await self._dispatcher.take(None, BATCH)
        left = await self._push_all(rows)
        waiting = {row.service for row, gone in zip(rows, left, strict=True) if not gone}
        if len(rows) == BATCH and waiting and not self._down:
            return sum(left) + await self._push_past(waiting)
        return sum(left)

    async def _push_past(self, waiting: set[str]) -> int:
        """Rows behind a full batch: a service at its cap must not hold up the others."""
        passed, backlog = waiting | OF_THE_ENGINE, await self._reader.backlog(self._clock.now())
        services = [service for service in backlog if service not in passed]
        return sum([sum(await self._push_all(await self._dispatcher.take(service, BATCH))) for service in services])

    async def _push_all(self, rows: list[OutboxRow]) -> list[bool]:
        """Which of them left us. One row's failure is raised only when all have been tried."""
        try:
            outcomes = await asyncio.gather(*(self._push(row) for row in rows), return_exceptions=True)
        finally:
            self._dispatcher.put_back(rows)
        failures = [failure for failure in outcomes if isinstance(failure, BaseException)]
        if failures and not self._down:  # a bus that is down is waited for first
            raise failures[0]
        return [outcome is True for outcome in outcomes]

    async def _push(self, row: OutboxRow) -> bool:
        async with self._slots:
            if self._down:
                return False
            try:
                return await self._dispatcher.publish(row, self._publisher, self._publish_timeout)
            except BusDown as down:
                self._down = True
                log.warning("the bus is down, the outbox waits", reason=str(down))
                return False
