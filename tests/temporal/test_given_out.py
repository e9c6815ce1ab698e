"""What services pull from a Temporal deployment, and how much of it at once."""

from pathlib import Path

import pytest

from tests.conformance.control_plane import control_plane
from tests.support.temporal import TemporalServer
from tests.temporal.test_drift import _ended, _is_dispatching, finish, over, until

JOBS, CAP = 5, 2


@pytest.mark.parametrize("ledger", ["sqlite", "memory"])
async def test_no_more_is_given_out_at_once_than_may_be_unacknowledged(
    tmp_path: Path, temporal_server: TemporalServer, ledger: str
) -> None:
    url = {"sqlite": f"sqlite:///{tmp_path / 'ledger.db'}", "memory": "memory:"}[ledger]
    settings = over(temporal_server, LUCIUS_LEDGER_URL=url, LUCIUS_MAX_UNACKED=str(CAP))
    async with control_plane(tmp_path, **settings) as plane:
        job_ids = [await plane.submit(number) for number in range(JOBS)]
        for job_id in job_ids:
            await until(lambda job_id=job_id: _is_dispatching(plane, job_id))  # type: ignore[misc]
        given = await plane.consumer("ocr").pull(JOBS, 0)
        assert len(given) == CAP
        finished = 0
        while given:
            for directive in given:
                await finish(plane, directive)
            finished += len(given)
            given = await plane.consumer("ocr").pull(JOBS, 1 if finished == JOBS else 10)
            assert len(given) <= CAP
        assert finished == JOBS
        for job_id in job_ids:
            await until(lambda job_id=job_id: _ended(plane, job_id))  # type: ignore[misc]
