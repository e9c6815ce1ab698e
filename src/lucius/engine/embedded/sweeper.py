"""Applies due deadlines and retries of all jobs, found by the ledger's index, and repairs drift."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import structlog

from lucius.core.model.decision import Applied
from lucius.core.model.inputs import DeadlinePassed, Input, Repair
from lucius.core.model.records import Instant, Millis
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.errors import ForeignEngine, LedgerAway, LedgerDown
from lucius.ports.ledger import Ledger
from lucius.ports.peers import EngineLiveness
from lucius.usecases.handover.slow_start import Ramp

log = structlog.get_logger(__name__)

BATCH_JOBS = 200
LATER_MS = 30_000
FOREIGN_MS = 2_000
LEDGER_DOWN_GAP_MS = 500  # beyond one pause, counts as downtime after a ledger outage: no callback could be recorded
HOLD_MS = 10_000  # for how long other replicas leave a due job to this one
GAP_MS = 1_000  # no tick for this long counts as downtime
KNOWN_MS = 5_000  # for how long `at_work_since` relies on the last tick


class Sweeper:
    def __init__(
        self,
        *,
        ledger: Ledger,
        engine: Engine,
        liveness: EngineLiveness,
        clock: Clock,
        interval: float,
        repair_interval: float,
        on_action: Callable[[str], None],
        wake: asyncio.Event,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._liveness = liveness
        self._clock = clock
        self._interval = interval
        self._repair_interval = repair_interval
        self._on_action = on_action
        self._wake = wake
        self._last_tick: Instant = clock.now()
        self._resumed_at: Instant | None = None
        self._known_at: Instant = 0
        self._postponed: dict[str, Instant] = {}
        self._was_ledger_down = self._was_unavailable = False
        self._ramp = Ramp(BATCH_JOBS, jitter)
        self._ramp.outage()  # a backlog may have built up before this process started

    async def run_deadlines(self) -> None:
        await self.sweep()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause()):
                await self._wake.wait()
        self._wake.clear()

    async def run_repair(self) -> None:
        await self.repair()
        await asyncio.sleep(self._repair_interval * self._liveness.poll_backoff())

    async def sweep(self) -> int:
        """Apply all deadlines that are due now; return how many jobs changed. Raises LedgerDown."""
        try:
            return await self._sweep()
        except LedgerDown:
            self._was_ledger_down = True
            self._ramp.outage()
            raise

    async def _sweep(self) -> int:
        resumed_at = await self._tick()
        moved = 0
        while True:
            tick = DeadlinePassed(max(resumed_at, self._callbacks_available_since()), as_of=self._last_tick)
            window = self._ramp.window
            self._postponed = {job_id: at for job_id, at in self._postponed.items() if at > self._last_tick}
            due = await self._ledger.due(self._last_tick, window + len(self._postponed), HOLD_MS)
            changes = [self._feed(job_id, tick, "deadline") for job_id in due if not self._is_postponed(job_id)]
            acted = sum(await asyncio.gather(*changes))
            moved += acted
            is_last = len(changes) < window or not acted
            if not is_last:
                await asyncio.sleep(self._ramp.pause())
            self._ramp.note_success()
            resumed_at = await self._tick() if due else resumed_at  # this process may have been suspended meanwhile
            if is_last:
                return moved

    def _is_postponed(self, job_id: str) -> bool:
        """Return whether the job has to wait, because it failed a short while ago or belongs to another engine."""
        return self._postponed.get(job_id, 0) > self._last_tick

    def at_work_since(self) -> Instant:
        """Return since when an engine has always been at work; now, if the last tick is too old to tell."""
        now = self._clock.now()
        if self._resumed_at is None or now - self._known_at > max(KNOWN_MS, self._gap_ms()):
            return now
        return self._resumed_at

    async def _tick(self) -> Instant:
        """Record a tick; return since when an engine has always been at work."""
        ticked_at = self._last_tick = self._clock.now()
        gap_ms = self._gap_ms()
        if self._was_ledger_down:
            gap_ms = min(gap_ms, LEDGER_DOWN_GAP_MS + round(self._pause() * 1000))
        resumed_at = await self._liveness.record_tick(self._last_tick, gap_ms)
        self._was_ledger_down = False
        if self._resumed_at not in (None, resumed_at):
            self._ramp.outage()
            log.warning("no engine ticked for a while; overdue attempts get a fresh period", resumed_at=resumed_at)
        self._resumed_at, self._known_at = resumed_at, ticked_at
        return resumed_at

    def _callbacks_available_since(self) -> Instant:
        """Return since when callbacks could be delivered: services are not to blame for those that could not."""
        availability = self._liveness.callback_availability(self._last_tick)
        if availability.is_unavailable and not self._was_unavailable:
            log.warning("no process takes callbacks; overdue attempts are given more time")
        self._was_unavailable = availability.is_unavailable
        return availability.since

    def _pause(self) -> float:
        return self._interval * self._liveness.poll_backoff()

    def _gap_ms(self) -> Millis:
        return max(GAP_MS, round(self._interval * 4000), round(self._pause() * 1500))

    async def repair(self) -> int:
        """Repair jobs that no deadline or outbox row would ever move forward; return how many changed."""
        drifted = await self._ledger.drifted(BATCH_JOBS)
        return sum([await self._feed(drift.job_id, Repair(drift.missing_rows), "repair") for drift in drifted])

    async def _feed(self, job_id: str, happened: Input, action: str) -> bool:
        try:
            decision = await self._engine.apply(job_id, (happened,))
        except LedgerAway:
            raise  # an outage of the store affects every job: the loop backs off as a whole
        except ForeignEngine as error:
            self._postponed[job_id] = self._clock.now() + LATER_MS
            log.error("job belongs to an engine that this deployment does not run", job_id=job_id, reason=str(error))
            return False
        except Exception:
            self._on_action("failed")
            self._postponed[job_id] = self._clock.now() + LATER_MS
            log.exception("could not process job, will try again", job_id=job_id, retry_in_ms=LATER_MS)
            return False
        applied = isinstance(decision.reply, Applied)
        if applied:
            self._on_action(action)
        elif not decision.job.is_ledger_driven:  # it must not fill the page that this engine's jobs need
            self._postponed[job_id] = self._clock.now() + FOREIGN_MS
        return applied
