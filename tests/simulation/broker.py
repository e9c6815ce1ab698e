"""Simulated message broker: the real MemoryBus, which outlives the orchestrators, behind a faulty link."""

import asyncio
import random
from contextvars import Context, copy_context

from lucius.adapters.bus.memory import MemoryBus
from lucius.contract import Directive
from lucius.ports.errors import BusDown, MessageRefused, OutcomeUnknown
from tests.simulation.faults import Faults
from tests.simulation.monitor import Monitor
from tests.simulation.process import Process


class Broker:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, faults: Faults, monitor: Monitor, timeout: float
    ) -> None:
        self.bus = MemoryBus()
        self.loop, self.rng, self.faults, self.monitor = loop, rng, faults, monitor
        self.timeout = timeout
        self.outside: Context = copy_context()

    def link(self, process: Process) -> "Link":
        return Link(self, process)

    async def take(self, topic: str, directive: Directive) -> None:
        """Accept, then deliver, delay, duplicate or lose a directive; raise BusDown or MessageRefused otherwise."""
        faults = self.faults
        if self.bus.down:
            raise BusDown("injected")
        if faults.hit("publish_refused"):
            raise MessageRefused("injected")
        if faults.hit("message_doubled"):
            self._later(topic, directive)
        if faults.hit("message_lost"):
            return
        if faults.hit("message_delayed"):
            self._later(topic, directive)
            return
        await self.bus.publish(topic, directive)

    def _later(self, topic: str, directive: Directive) -> None:
        delay = self.rng.choice((0.0, 0.5, 3.0)) * self.rng.random()
        self.loop.create_task(self._put(topic, directive, delay), context=self.outside.copy())

    async def _put(self, topic: str, directive: Directive, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            try:
                return await self.bus.publish(topic, directive)
            except BusDown:
                delay = 0.5


class Link:
    """Publisher of one process: its connection to the broker."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process

    async def publish(self, topic: str, directive: Directive) -> None:
        broker, faults, monitor = self._broker, self._broker.faults, self._broker.monitor
        if self._process.dead:
            raise asyncio.CancelledError
        monitor.trace.note(self._process.name, directive.jobId, "publishes", directive.message_id)
        monitor.publishes(directive)
        await asyncio.sleep(broker.rng.choice((0, 0, 0.01, 0.2)))
        if faults.hit("publish_unknown_lost"):
            raise OutcomeUnknown("injected")
        if faults.hit("publish_hung_lost"):
            await asyncio.sleep(broker.timeout * 2)
        await self._send(topic, directive)
        if faults.hit("publish_unknown_sent"):
            raise OutcomeUnknown("injected")
        if faults.hit("publish_hung_sent"):
            await asyncio.sleep(broker.timeout * 2)
        await asyncio.sleep(broker.rng.choice((0, 0, 0.01, 0.2)))

    async def _send(self, topic: str, directive: Directive) -> None:
        monitor = self._broker.monitor
        try:
            await self._broker.take(topic, directive)
        except MessageRefused:
            monitor.known.refused.add(directive.lease_id)
            monitor.did_not_leave(directive, self._process.name)
            raise
        except BusDown:
            self._broker.faults.saw("publish_on_a_bus_that_is_down")
            monitor.did_not_leave(directive, self._process.name)
            raise

    async def ping(self) -> None:
        if self._broker.bus.down:
            raise BusDown("the broker is down")

    async def close(self) -> None:
        """Do nothing: the broker outlives its links."""
