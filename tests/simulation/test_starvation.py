"""A service that takes nothing does not block other services, nor one tenant another in its lane."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any
from unittest import mock

import msgspec
import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.adapters.ledger.memory.store import open_memory
from lucius.bootstrap import control_plane
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import attach
from lucius.bootstrap.settings import Settings
from lucius.contract import Directive
from lucius.core.model.decision import Env
from lucius.core.model.inputs import Ack
from lucius.core.model.routing import route
from lucius.core.model.statuses import Mode
from lucius.core.protocol.definition import ProtocolDefinition, StepSpec
from lucius.engine.embedded import relay
from tests.simulation.clients import WHO
from tests.simulation.clock import LoopClock, VirtualLoop
from tests.simulation.scenery import WEBHOOK_MASTER

BACKLOG = 12
BATCH = 4
LONG, SHORT = "acme", "tyrell"  # both in the same lane


def protocol(service: str) -> ProtocolDefinition:
    step = StepSpec(step_id=service, step_type="T", service=service)
    return ProtocolDefinition(protocol_id=service, version=1, request_type=service, steps=(step,))


class TwoProtocols:
    def list(self) -> tuple[ProtocolDefinition, ...]:
        return protocol("stuck"), protocol("busy")

    def problems(self) -> tuple[()]:
        return ()


def command(number: int, service: str, tenant_id: str = "acme") -> bytes:
    refs = {"input_ref": f"blob://in/{number}", "output_ref": f"blob://out/{number}"}
    fixed = {"tenant_id": tenant_id, "schema_version": "v1", "payload": {}}
    return msgspec.json.encode({**fixed, **refs, "request_type": service})


def runtime_over(bus: MemoryBus | None, loop: VirtualLoop, ids: "count[int]", max_unacked: int) -> ControlPlane:
    bus_url = "memory:" if bus else "local:"
    settings = Settings(
        bus_url=bus_url,
        token_secrets=("a secret of the simulation",),
        webhook_master=WEBHOOK_MASTER,
        max_unacked=max_unacked,
    )
    env = Env(new_id=lambda: f"id-{next(ids)}", jitter=lambda: 0.5)
    runtime = ControlPlane(settings, open_memory(), bus, LoopClock(loop), env)
    attach(runtime)
    return runtime


Life = Callable[[VirtualLoop, "count[int]"], Coroutine[Any, Any, None]]


def run(life: Life, batch: int = relay.BATCH_ROWS) -> None:
    loop, ids = VirtualLoop(random.Random(1), shuffle=False, max_steps=1_000_000), count(1)
    patched = mock.patch.multiple(
        control_plane, ProtocolsDir=lambda *_: TwoProtocols(), new_job_id=lambda: f"job-{next(ids)}"
    )
    with patched, mock.patch.object(relay, "BATCH_ROWS", batch):
        loop.run_until_complete(life(loop, ids))
    loop.drain()
    loop.close()


def test_rows_of_a_service_at_its_cap_do_not_block_rows_of_another_service() -> None:
    async def life(loop: VirtualLoop, ids: "count[int]") -> None:
        bus = MemoryBus()
        runtime = runtime_over(bus, loop, ids, max_unacked=2)
        await runtime.loops.start()
        for number in range(BACKLOG):
            await runtime.intake.submit(command(number, "stuck"), WHO)
        accepted = await runtime.intake.submit(command(BACKLOG, "busy"), WHO)
        directives = await bus.consumer("busy").pull(1, wait_seconds=10)
        await runtime.loops.stop()
        assert [directive.jobId for directive in directives] == [accepted.jobId]

    run(life, BATCH)


async def acked(runtime: ControlPlane, directive: Directive) -> None:
    ack = Ack(step_id=directive.stepId, attempt_no=directive.attempt_no, lease_id=directive.lease_id)
    await runtime.engine.apply(directive.jobId, (ack,))


@pytest.mark.parametrize("pushed", [True, False])
def test_short_queue_of_one_tenant_is_served_beside_a_long_one_in_the_same_lane(pushed: bool) -> None:
    async def life(loop: VirtualLoop, ids: "count[int]") -> None:
        bus = MemoryBus() if pushed else None
        runtime = runtime_over(bus, loop, ids, max_unacked=10)
        await runtime.loops.start()
        lanes = {route(name, None, Mode.DEFAULT, "", "").lane for name in (LONG, SHORT)}
        assert len(lanes) == 1
        for number in range(300):
            await runtime.intake.submit(command(number, "busy", LONG), WHO)

        async def pull() -> list[Directive]:
            if bus is not None:
                return await bus.consumer("busy", lanes).pull(10, wait_seconds=1)
            return await runtime.directive_pulls.pull("busy", 10, 1, frozenset(lanes))

        out = await pull()
        await runtime.intake.submit(command(300, "busy", SHORT), WHO)
        acks = 0
        while not any(directive.tenant_id == SHORT for directive in out):
            await acked(runtime, out.pop(0))
            acks += 1
            out += await pull()
        await runtime.loops.stop()
        assert acks <= 3

    run(life)


def test_publishing_after_a_bus_outage_starts_slowly() -> None:
    class Counting(MemoryBus):
        async def publish(self, topic: str, directive: Directive) -> None:
            await super().publish(topic, directive)
            taken[round(asyncio.get_running_loop().time(), 6)] += 1

    taken: Counter[float] = Counter()

    async def life(loop: VirtualLoop, ids: "count[int]") -> None:
        bus = Counting()
        runtime = runtime_over(bus, loop, ids, max_unacked=10_000)
        bus.down = True
        await runtime.loops.start()
        for number in range(2_000):
            await runtime.intake.submit(command(number, "busy"), WHO)
        await asyncio.sleep(60)
        assert not taken
        bus.down = False
        await asyncio.sleep(20)
        await runtime.loops.stop()

    run(life)
    waves, began = list(taken.values()), min(taken)
    assert sum(waves) == 2_000
    assert waves[:4] == [8, 16, 32, 64]
    assert max(taken) - began < 3
