from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lucius.worker.journal import Journal
from tests.unit.worker.bench import Bench, bench_for
from tests.unit.worker.journals import Opener
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


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens journals on one folder, as processes of one service would, and closes them."""
    journals: list[Journal] = []

    def open_one(**options: Any) -> Journal:
        journals.append(Journal(tmp_path, **options))
        return journals[-1]

    yield open_one
    for journal in journals:
        journal.close()


@pytest.fixture
def journal(opened: Opener) -> Journal:
    return opened()
