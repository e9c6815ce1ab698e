"""`lucius retention run`, killed again and again, archives each job once."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.core.model.statuses import JobStatus
from tests.conformance.builders import accept, then
from tests.e2e.support import until

JOBS = 1_500
BATCH = 20
KILLS = 5


async def _fill(url: str) -> None:
    store = await open_postgres(url)
    new = [accept(f"job-{n}", created_at=1_000 + n) for n in range(JOBS)]
    await asyncio.gather(*(store.ledger.commit(decision) for decision in new))
    ends = [then(decision, status=JobStatus.SUCCEEDED, completed_at=5_000) for decision in new]
    await asyncio.gather(*(store.ledger.commit(decision) for decision in ends))
    await store.close()


async def _left(url: str) -> list[str]:
    store = await open_postgres(url)
    rows = await store.database.fetch_rows("SELECT job_id FROM jobs")
    await store.close()
    return [row["job_id"] for row in rows]


def _run(url: str, archive: Path) -> "subprocess.Popen[str]":
    arguments = ["retention", "run", "--batch", str(BATCH), "--pause", "0.005", "--archive", str(archive)]
    return subprocess.Popen(
        [sys.executable, "-m", "lucius.cli", *arguments],
        env={**os.environ, "LUCIUS_LEDGER_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _archived(archive: Path) -> list[str]:
    files = [path for path in archive.glob("*/*.jsonl") if path.parent.name != "pending"]
    return [json.loads(line)["jobId"] for path in files for line in path.read_text().splitlines()]


def test_each_job_is_archived_once_although_the_run_is_killed(postgres_url: str, tmp_path: Path) -> None:
    asyncio.run(_fill(postgres_url))
    archive, chance = tmp_path / "archive", random.Random(5)
    for _ in range(KILLS):
        run = until(lambda: _writing(_run(postgres_url, archive), archive), "a run that writes")
        time.sleep(chance.uniform(0, 0.1))
        run.kill()
        run.communicate()
        archived = _archived(archive)
        assert len(archived) == len(set(archived)) < JOBS
        assert not set(archived) & set(asyncio.run(_left(postgres_url)))
    until(lambda: _ended_well(_run(postgres_url, archive)), "a run that comes to its end")
    assert sorted(_archived(archive)) == sorted(f"job-{n}" for n in range(JOBS))
    assert asyncio.run(_left(postgres_url)) == []
    assert list(archive.glob("pending/*")) == []


def _writing(run: "subprocess.Popen[str]", archive: Path) -> "subprocess.Popen[str] | None":
    before = _archived(archive)
    until(lambda: run.poll() is not None or _archived(archive) != before, "a run that writes or ends")
    if run.poll() is None:
        return run
    assert not _ended_well(run), "it came to its end before it could be killed"
    return None


def _ended_well(run: "subprocess.Popen[str]") -> bool:
    """Return True if the run succeeded, False if the lock of a killed run was still held by the server."""
    said, refused = run.communicate(timeout=60)
    assert run.returncode == 0 or "by somebody else" in refused, refused
    return run.returncode == 0 and "archived" in said
