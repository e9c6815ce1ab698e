from collections.abc import AsyncIterator

import pytest

from tests.unit.worker.support import FakeOrchestrator, ManualTiming, fake_orchestrator


@pytest.fixture
async def orchestrator() -> AsyncIterator[FakeOrchestrator]:
    async with fake_orchestrator() as server:
        yield server


@pytest.fixture
def timing() -> ManualTiming:
    return ManualTiming()
