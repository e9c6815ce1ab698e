"""kill -9 of the one process that is API and worker, while tasks of its workflows are open."""

import asyncio
from pathlib import Path

from tests.e2e.chaos import survive
from tests.e2e.support import Zygote
from tests.e2e.test_kill import check
from tests.support.temporal import TemporalServer

ROUNDS, JOBS, CLIENTS = 2, 40, 8


async def test_nothing_is_lost_and_nothing_fenced_is_applied(
    forks: Zygote, tmp_path: Path, temporal_server: TemporalServer
) -> None:
    engine = {
        "LUCIUS_ENGINE": "temporal",
        "LUCIUS_TEMPORAL_ADDRESS": temporal_server.address,
        "LUCIUS_TEMPORAL_TASK_QUEUE": "killed",
    }
    outcome = await survive(forks, tmp_path, 3, rounds=ROUNDS, at_least=JOBS, clients=CLIENTS, **engine)
    print(await asyncio.to_thread(check, outcome, ROUNDS, JOBS, busy=False))  # jobs are with Temporal, mostly
