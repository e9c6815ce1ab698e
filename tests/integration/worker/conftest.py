from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lucius.worker.journal import Journal
from tests.integration.worker.bench import Bench, bench_for
from tests.integration.worker.journals import Opener
from tests.integration.worker.support import FakeOrchestrator, ManualTiming, fake_orchestrator


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
def open_journal(tmp_path: Path) -> Iterator[Opener]:
    """Yield a function that opens journals on one folder, as processes of one service would; close them at the end."""
    journals: list[Journal] = []

    def open_one(**options: Any) -> Journal:
        journals.append(Journal(tmp_path, **options))
        return journals[-1]

    yield open_one
    for journal in journals:
        journal.close()


@pytest.fixture
def journal(open_journal: Opener) -> Journal:
    return open_journal()
