"""Simulated HTTP servers that protocols call: they comply, fail, hang, and remember requests by idempotency key.

Replaces the Caller that opens sockets. It belongs to no process and outlives them all.
"""

import asyncio
import random
from collections import Counter
from typing import Any

from lucius.core.model.records import Instant
from lucius.ports.errors import CallFailed
from lucius.ports.http import Closed, HttpResponse, Outgoing, Slot
from tests.simulation.clock import LoopClock
from tests.simulation.faults import Faults
from tests.simulation.monitor import KEY_LENGTH, Monitor
from tests.simulation.protocols import OUTSIDE

MAX_AT_ONCE = 2


class Outside:
    def __init__(self, rng: random.Random, faults: Faults, monitor: Monitor, clock: LoopClock) -> None:
        self.rng, self.faults, self.monitor, self.clock = rng, faults, monitor, clock
        self.made: dict[str, dict[str, Any]] = {}
        self.slowed_until: Instant = 0

    def link(self) -> "Line":
        return Line(self)

    def make(self, call: Outgoing) -> dict[str, Any]:
        """Return the object made under this idempotency key, the same for every repeat."""
        fresh = {"key": call.idempotency_key, "n": self.rng.randint(1, 9), "items": [self.rng.randint(1, 9)]}
        return self.made.setdefault(call.idempotency_key, fresh)

    def slow_down(self) -> HttpResponse:
        self.slowed_until = self.clock.now() + 800
        return HttpResponse(status=429, headers={}, retry_after_ms=800)


class Line:
    """Caller of one process, with its own count of running calls."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._running: Counter[str] = Counter()

    def host(self, url: str, tenant_id: str = "") -> str:
        return OUTSIDE.removeprefix("https://") if url.startswith(OUTSIDE) else ""

    def admit(self, host: str) -> Slot | Closed:
        if self._outside.slowed_until > self._outside.clock.now():
            return Closed(self._outside.slowed_until)
        if self._running[host] >= MAX_AT_ONCE:
            return Closed()
        self._running[host] += 1
        return Slot(lambda: self._running.subtract([host]))

    async def send(self, call: Outgoing) -> HttpResponse:
        outside, faults, rng = self._outside, self._outside.faults, self._outside.rng
        what = call.url.removeprefix(OUTSIDE).split("/")[1]
        outside.monitor.calls_out(call, what)
        if faults.hit("call_lost"):
            await asyncio.sleep(rng.uniform(0, 1))
            raise CallFailed("CONNECTION_FAILED", "injected", sent=False)
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.3)))
        if what == "guard":
            made = outside.made.get(call.idempotency_key[:KEY_LENGTH])
            return HttpResponse(status=200, headers={}, body={"done": made is not None, "made": made})
        if faults.hit("call_slowed"):
            return outside.slow_down()
        if faults.hit("call_half_done"):
            return HttpResponse(status=409, headers={}, body={})
        if faults.hit("call_failed"):
            return HttpResponse(status=rng.choice((400, 500, 503, 424)), headers={}, body={})
        body = outside.make(call)
        if faults.hit("call_hung"):
            await asyncio.sleep(rng.uniform(1, 8))
        if faults.hit("call_answer_lost"):
            raise CallFailed("CONNECTION_LOST", "injected", sent=True)
        return HttpResponse(status=200, headers={}, body=body)
