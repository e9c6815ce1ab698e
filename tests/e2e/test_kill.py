"""After kill -9 at random moments under load, no job is lost and no fenced result is applied."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.e2e.audit import audit_api, audit_file
from tests.e2e.chaos import SERVICES, Outcome, survive
from tests.e2e.support import Zygote

ROUNDS = 3
JOBS = 150
CLIENTS = 16


@pytest.mark.parametrize("seed", [1, 2])
async def test_kills_under_load_lose_no_job_and_apply_no_fenced_result(
    forks: Zygote, tmp_path: Path, seed: int
) -> None:
    outcome = await survive(forks, tmp_path, seed, rounds=ROUNDS, at_least=JOBS, clients=CLIENTS)
    counts = await asyncio.to_thread(check, outcome, ROUNDS, JOBS)
    print(counts)


def check(outcome: Outcome, rounds: int, jobs: int, *, busy: bool = True) -> str:
    """Return a summary; raise AssertionError if an invariant is broken. Unless `busy`, kills may hit idle services."""
    stack, load, chaos = outcome.stack, outcome.load, outcome.chaos
    audit_api(stack.api, load.orders)
    for name in SERVICES:
        assert stack.processes[name].stop() == 0, stack.log(name)
    assert stack.server.stop() in (0, -signal.SIGTERM), stack.log("server")  # uvicorn ends by the signal it got
    diaries = [stack.data_dir / f"service-{name}" / "diary.jsonl" for name in SERVICES]
    counts = audit_file(stack.ledger, load.orders, diaries)
    assert all(kills >= rounds for kills in chaos.kills.values())
    assert counts.jobs >= jobs
    hit = rounds * len(SERVICES) if busy else 1
    assert counts.retried >= hit, "every killed service had work in its hands"
    assert load.broken_connections > 0
    assert any(order.resubmitted for order in load.orders)
    assert counts.stale >= 1, "a frozen service sent a callback for a fenced attempt"
    assert counts.quarantined <= counts.stale
    return f"{counts}; kills {chaos.kills}, freezes {chaos.freezes}"
