"""Refuses commands at limits that are known to be reached. The cache keeps refusals; the ledger is authoritative."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Cap
from lucius.ports.admission import MARK_SECONDS, AdmissionCache
from lucius.ports.errors import LimitReached
from lucius.ports.readers import JobReader

REPAIR_INTERVAL_SECONDS = 0.5
MAX_WATCHED_COUNTERS = 1_000
IN_FLIGHT = "jobs"


class Admission:
    """Checks limits before the ledger does; without a cache, only the ledger refuses."""

    def __init__(
        self, cache: AdmissionCache | None, jobs: JobReader, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self.cache = cache
        self._jobs = jobs
        self._steady = steady
        self._watched: dict[str, tuple[Cap, float]] = {}

    async def full(self, caps: Sequence[Cap]) -> LimitReached | None:
        """Return the limit that the ledger would refuse at, as far as it is known without a query; else None."""
        if self.cache is None:
            return None
        cap = await self.cache.full(caps)
        if cap is None:
            return None
        self._watch(cap)
        return LimitReached(cap.counter, cap.limit)

    def refused(self, reached: LimitReached) -> None:
        """Note that the ledger refused a command at this limit."""
        if self.cache is not None:
            cap = Cap(reached.counter, reached.limit)
            self.cache.mark(cap)
            self._watch(cap)

    def committed(self, decision: Decision) -> None:
        """Reopen the limits at which an ended job leaves room for another."""
        if self.cache is not None:
            freed = [name for name, move in decision.counters.items() if move < 0 and _of_jobs(name)]
            if freed:
                self.cache.unmark(freed)

    async def repair(self) -> None:
        """Reopen limits with room in the ledger: a process that ended a job may have died before it reported it."""
        await asyncio.sleep(REPAIR_INTERVAL_SECONDS)
        now = self._steady()
        self._watched = {name: seen for name, seen in self._watched.items() if seen[1] > now}
        if self.cache is None or not self._watched:
            return
        counters = await self._jobs.counters(*self._watched)
        roomy = [name for name, (cap, _) in self._watched.items() if counters.get(name, 0) < cap.limit]
        if roomy:
            self.cache.unmark(roomy)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the loops that must run for as long as commands are accepted."""
        return {} if self.cache is None else {"admission-cache": self.cache.run_once, "admission-repair": self.repair}

    def _watch(self, cap: Cap) -> None:
        if cap.counter in self._watched or len(self._watched) < MAX_WATCHED_COUNTERS:
            self._watched[cap.counter] = (cap, self._steady() + MARK_SECONDS)


def _of_jobs(counter: str) -> bool:
    return counter == IN_FLIGHT or counter.startswith(f"{IN_FLIGHT}/")
