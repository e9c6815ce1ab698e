"""What is refused before the ledger is asked, and how that heals: a gate remembers, the ledger knows."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from lucius.core.decision import Decision
from lucius.core.inputs import Cap
from lucius.ports.errors import LimitReached
from lucius.ports.gates import MARK_SECONDS, Gate
from lucius.ports.ledger import Reader

HEAL_SECONDS = 0.5
MOST_WATCHED = 1_000
IN_FLIGHT = "jobs"


class Admission:
    """Without a gate, everything is the ledger's to refuse."""

    def __init__(self, gate: Gate | None, reader: Reader, steady: Callable[[], float] = time.monotonic) -> None:
        self._gate = gate
        self._reader = reader
        self._steady = steady
        self._watched: dict[str, tuple[Cap, float]] = {}

    async def full(self, caps: Sequence[Cap]) -> LimitReached | None:
        """What the ledger would say, as far as is known without it."""
        if self._gate is None:
            return None
        cap = await self._gate.full(caps)
        if cap is None:
            return None
        self._watch(cap)
        return LimitReached(cap.counter, cap.limit)

    def refused(self, reached: LimitReached) -> None:
        """The ledger did."""
        if self._gate is not None:
            cap = Cap(reached.counter, reached.limit)
            self._gate.shut(cap)
            self._watch(cap)

    def committed(self, decision: Decision) -> None:
        """A job that ends leaves room for another."""
        if self._gate is not None:
            freed = [name for name, move in decision.counters.items() if move < 0 and _of_jobs(name)]
            if freed:
                self._gate.reopen(freed)

    async def heal(self) -> None:
        """Look up in the ledger what was refused here without it: who ended a job may not have lived to say so."""
        await asyncio.sleep(HEAL_SECONDS)
        now = self._steady()
        self._watched = {name: seen for name, seen in self._watched.items() if seen[1] > now}
        if self._gate is None or not self._watched:
            return
        counters = await self._reader.counters(*self._watched)
        roomy = [name for name, (cap, _) in self._watched.items() if counters.get(name, 0) < cap.limit]
        if roomy:
            self._gate.reopen(roomy)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What must go on for as long as commands are taken."""
        return {} if self._gate is None else {"gate": self._gate.turn, "gate-healing": self.heal}

    async def close(self) -> None:
        if self._gate is not None:
            await self._gate.close()

    def _watch(self, cap: Cap) -> None:
        if cap.counter in self._watched or len(self._watched) < MOST_WATCHED:
            self._watched[cap.counter] = (cap, self._steady() + MARK_SECONDS)


def _of_jobs(counter: str) -> bool:
    return counter == IN_FLIGHT or counter.startswith(f"{IN_FLIGHT}/")
