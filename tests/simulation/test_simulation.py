"""Two thousand worlds with every kind of fault: no job is lost or stuck, and no fenced result is applied."""

from pathlib import Path

import msgspec
import pytest

from tests.simulation.tally import SUCCEEDED_OF_100, Tally
from tests.simulation.world import run

CHUNKS = 20
SEEDS = 100  # per chunk


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder shared by the workers of this test run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "simulation"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_invariant_holds_under_random_faults(chunk: int, results: Path) -> None:
    tally = Tally()
    for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS):
        tally.add(run(seed))
    assert tally.missing(slack=3) == []
    assert tally.succeeded >= SUCCEEDED_OF_100
    (results / f"{chunk}.json").write_bytes(msgspec.json.encode(tally))
    _check_them_all(results)


def _check_them_all(results: Path) -> None:
    """Check the sum of all chunks; does nothing until the last one has written its file."""
    files = sorted(results.glob("*.json"))
    if len(files) < CHUNKS:
        return
    total = Tally()
    for file in files:
        total.add(msgspec.json.decode(file.read_bytes(), type=Tally))
    assert total.seeds == CHUNKS * SEEDS
    assert total.succeeded >= 20 * SUCCEEDED_OF_100
    assert total.missing() == []
    assert total.never() == []
