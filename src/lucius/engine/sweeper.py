"""The clocks of all jobs: deadlines and retries by index, and the repair of drift."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import structlog

from lucius.core.decision import Applied
from lucius.core.inputs import DeadlinePassed, Input, Repair
from lucius.core.model import Instant, Millis
from lucius.ports.clock import Clock
from lucius.ports.errors import ForeignEngine, LedgerAway, LedgerDown
from lucius.ports.ledger import Ledger
from lucius.ports.peers import Presence
from lucius.service.jobs import Jobs
from lucius.service.ramp import Ramp

log = structlog.get_logger(__name__)

BATCH = 200
LATER_MS = 30_000
FOREIGN_MS = 2_000
BLIND_MS = 500  # and while the ledger is down, nobody can be heard either: then this is long
HOLD_MS = 10_000  # other replicas leave a due job to us for so long
GAP_MS = 1_000  # not having ticked for this long counts as having been away
KNOWN_MS = 5_000  # what a tick has found out is good for others here for so long


class Sweeper:
    def __init__(
        self,
        *,
        ledger: Ledger,
        jobs: Jobs,
        presence: Presence,
        clock: Clock,
        interval: float,
        repair_interval: float,
        on_action: Callable[[str], None],
        wake: asyncio.Event,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._presence = presence
        self._clock = clock
        self._interval = interval
        self._repair_interval = repair_interval
        self._on_action = on_action
        self._wake = wake
        self._last_tick: Instant = clock.now()
        self._resumed_at: Instant | None = None
        self._known_at: Instant = 0
        self._later: dict[str, Instant] = {}
        self._was_blind = self._was_closed = False
        self._ramp = Ramp(BATCH, jitter)
        self._ramp.outage()  # we were away ourselves: what is due may have waited for us

    async def deadlines_turn(self) -> None:
        await self.sweep()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause()):
                await self._wake.wait()
        self._wake.clear()

    async def repair_turn(self) -> None:
        await self.repair()
        await asyncio.sleep(self._repair_interval * self._presence.stretch())

    async def sweep(self) -> int:
        """Act on every job that is due now. Answers how many moved."""
        try:
            return await self._sweep()
        except LedgerDown:
            self._was_blind = True
            self._ramp.outage()
            raise

    async def _sweep(self) -> int:
        resumed_at = await self._tick()
        moved = 0
        while True:
            tick = DeadlinePassed(max(resumed_at, self._served_since()), as_of=self._last_tick)
            window = self._ramp.window
            self._later = {job_id: at for job_id, at in self._later.items() if at > self._last_tick}
            due = await self._ledger.due(self._last_tick, window + len(self._later), HOLD_MS)
            looks = [self._feed(job_id, tick, "deadline") for job_id in due if not self._put_off(job_id)]
            acted = sum(await asyncio.gather(*looks))
            moved += acted
            is_last = len(looks) < window or not acted
            if not is_last:
                await asyncio.sleep(self._ramp.pause())
            self._ramp.went_well()
            resumed_at = await self._tick() if due else resumed_at  # we may have stood still in the middle of it
            if is_last:
                return moved

    def _put_off(self, job_id: str) -> bool:
        """Whether a job failed a short while ago and must wait its turn."""
        return self._later.get(job_id, 0) > self._last_tick

    def at_work_since(self) -> Instant:
        """Since when there was always an engine at work. Not before now, if nobody could find out for a while."""
        now = self._clock.now()
        if self._resumed_at is None or now - self._known_at > max(KNOWN_MS, self._gap_ms()):
            return now
        return self._resumed_at

    async def _tick(self) -> Instant:
        """Since when there was always an engine at work."""
        ticked_at = self._last_tick = self._clock.now()
        gap_ms = self._gap_ms()
        if self._was_blind:
            gap_ms = min(gap_ms, BLIND_MS + round(self._pause() * 1000))
        resumed_at = await self._presence.ticked(self._last_tick, gap_ms)
        self._was_blind = False
        if self._resumed_at not in (None, resumed_at):
            self._ramp.outage()
            log.warning("no engine ticked for a while; overdue attempts get a fresh period", resumed_at=resumed_at)
        self._resumed_at, self._known_at = resumed_at, ticked_at
        return resumed_at

    def _served_since(self) -> Instant:
        """What services could not tell anybody must not be held against them either."""
        door = self._presence.door(self._last_tick)
        if door.is_closed and not self._was_closed:
            log.warning("no process takes callbacks; overdue attempts are given more time")
        self._was_closed = door.is_closed
        return door.since

    def _pause(self) -> float:
        return self._interval * self._presence.stretch()

    def _gap_ms(self) -> Millis:
        return max(GAP_MS, round(self._interval * 4000), round(self._pause() * 1500))

    async def repair(self) -> int:
        """Put jobs back on the rails that nothing would ever look at again."""
        drifted = await self._ledger.drifted(BATCH)
        return sum([await self._feed(drift.job_id, Repair(drift.missing_rows), "repair") for drift in drifted])

    async def _feed(self, job_id: str, happened: Input, action: str) -> bool:
        try:
            decision = await self._jobs.apply(job_id, (happened,))
        except LedgerAway:
            raise  # the store's trouble is everybody's: the loop backs off as a whole
        except ForeignEngine as error:
            self._later[job_id] = self._clock.now() + LATER_MS
            log.error("a job waits for an engine that is not here", job_id=job_id, reason=str(error))
            return False
        except Exception:
            self._on_action("failed")
            self._later[job_id] = self._clock.now() + LATER_MS
            log.exception("could not look at a job, will try again", job_id=job_id, retry_in_ms=LATER_MS)
            return False
        applied = isinstance(decision.reply, Applied)
        if applied:
            self._on_action(action)
        elif decision.job.engine:  # another engine minds it; those of ours must not wait behind it
            self._later[job_id] = self._clock.now() + FOREIGN_MS
        return applied
