from collections.abc import AsyncIterator

import pytest

from tests.unit.worker.bench import Bench, bench_for
from tests.unit.worker.support import FakeOrchestrator, ManualTiming, fake_orchestrator


@pytest.fixture
async def orchestrator() -> AsyncIterator[FakeOrchestrator]:
    async with fake_orchestrator() as server:
        yield server


@pytest.fixture
def timing() -> ManualTiming:
    return ManualTiming()


@pytest.fixture
async def bench(orchestrator: FakeOrchestrator, timing: ManualTiming) -> AsyncIterator[Bench]:
    async with bench_for(orchestrator, timing) as bench:
        yield bench
