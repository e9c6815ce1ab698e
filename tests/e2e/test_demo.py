"""`lucius demo`: the product's shop window, as a person or a pipe starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_loses_nothing_and_shows_every_failure(tmp_path: Path) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path), "LUCIUS_LEDGER_URL": "foreign:ledger"}  # not the demo's business
    done = subprocess.run(
        [sys.executable, "-m", "lucius.cli", "demo", "--json", "--jobs", "15"],
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"]
    assert set(verdict["checks"].values()) == {True}
    assert verdict["jobs_accepted"] == verdict["jobs_finished"] == verdict["outputs_present"] == 17
    assert (verdict["jobs_lost"], verdict["results_applied_twice"]) == (0, 0)
    assert verdict["steps_run_twice"] >= 1
    assert verdict["fenced_callbacks"] >= 1
    assert verdict["restarts_survived"] == ["ocr", "control plane"]
    assert verdict["seconds"] < 60
    assert "kill -9 the control plane" in done.stderr
    assert list(tmp_path.glob("lucius-demo-*")) == []
