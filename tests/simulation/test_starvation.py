"""One service that takes nothing must not keep the others from their work."""

import random
from itertools import count
from unittest import mock

import msgspec

from lucius import wiring
from lucius.adapters.bus_memory import MemoryBus
from lucius.adapters.ledger_memory import MemoryLedger
from lucius.core.decision import Env
from lucius.core.protocol import Protocol, StepSpec
from lucius.engine import relay
from lucius.settings import Settings
from tests.simulation.clients import WHO
from tests.simulation.clock import LoopClock, VirtualLoop

BACKLOG = 12
BATCH = 4


def protocol(service: str) -> Protocol:
    step = StepSpec(step_id=service, step_type="T", service=service)
    return Protocol(protocol_id=service, version=1, request_type=service, steps=(step,))


class TwoProtocols:
    def list(self) -> tuple[Protocol, ...]:
        return protocol("deaf"), protocol("busy")

    def problems(self) -> tuple[()]:
        return ()


def command(number: int, service: str) -> bytes:
    refs = {"input_ref": f"blob://in/{number}", "output_ref": f"blob://out/{number}"}
    fixed = {"tenant_id": "acme", "schema_version": "v1", "payload": {}}
    return msgspec.json.encode({**fixed, **refs, "request_type": service})


async def live(bus: MemoryBus, loop: VirtualLoop, ids: "count[int]") -> None:
    settings = Settings(bus_url="memory:", token_secrets=("a secret of the simulation",), max_unacked=2)
    env = Env(new_id=lambda: f"id-{next(ids)}", jitter=lambda: 0.5)
    runtime = wiring.build(settings, MemoryLedger(), bus, LoopClock(loop), env)
    wiring.attach(runtime)
    await runtime.engine.start()
    for number in range(BACKLOG):
        await runtime.ingress.submit(command(number, "deaf"), WHO)
    accepted = await runtime.ingress.submit(command(BACKLOG, "busy"), WHO)
    directives = await bus.consumer("busy").pull(1, wait_seconds=10)
    await runtime.engine.stop()
    assert [directive.jobId for directive in directives] == [accepted.jobId]


def test_rows_of_a_service_at_its_cap_do_not_hold_up_the_rows_behind_them() -> None:
    loop, ids = VirtualLoop(random.Random(1), shuffle=False, max_steps=100_000), count(1)
    patched = mock.patch.multiple(wiring, ProtocolsDir=lambda *_: TwoProtocols(), new_job_id=lambda: f"job-{next(ids)}")
    with patched, mock.patch.object(relay, "BATCH", BATCH):
        loop.run_until_complete(live(MemoryBus(), loop, ids))
    loop.drain()
    loop.close()
