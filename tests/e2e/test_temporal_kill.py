"""kill -9 of the one process that is API and worker, while workflow tasks are open."""

import asyncio
from pathlib import Path

from tests.e2e.chaos import survive
from tests.e2e.support import Zygote
from tests.e2e.test_kill import check
from tests.support.fastpath import fastpath_env
from tests.support.temporal import TemporalServer

ROUNDS, JOBS, CLIENTS = 2, 40, 8


async def test_kills_with_temporal_lose_no_job_and_apply_no_fenced_result(
    forks: Zygote, tmp_path: Path, temporal_server: TemporalServer
) -> None:
    engine = {
        "LUCIUS_ENGINE": "temporal",
        "LUCIUS_TEMPORAL_ADDRESS": temporal_server.address,
        "LUCIUS_TEMPORAL_TASK_QUEUE": "killed",
    } | fastpath_env()
    outcome = await survive(forks, tmp_path, 3, rounds=ROUNDS, at_least=JOBS, clients=CLIENTS, **engine)
    print(await asyncio.to_thread(check, outcome, ROUNDS, JOBS, busy=False))  # jobs are mostly with Temporal
